/** PURE: the order of a queue, and the changes that a move in it asks for. */

import type { Schemas } from "../api/client";

type Job = Schemas["Job"];
export type QueueUpdate = Schemas["QueueUpdate"];

/** Returns the jobs of a pool that wait, in their order; those without a place, such as paused ones, come last. */
export function waitingJobs(jobs: Job[], pool: string): Job[] {
  const placeOf = (job: Job) => job.queuePlace || Number.MAX_SAFE_INTEGER;
  return jobs
    .filter((job) => job.resourcePool === pool && job.allocatedSlots === 0)
    .sort((a, b) => placeOf(a) - placeOf(b) || compareTimes(a, b));
}

/** Returns the jobs of a pool that hold slots, the oldest first. */
export function runningJobs(jobs: Job[], pool: string): Job[] {
  return jobs.filter((job) => job.resourcePool === pool && job.allocatedSlots > 0).sort(compareTimes);
}

function compareTimes(first: Job, second: Job): number {
  return (first.submissionTime ?? "").localeCompare(second.submissionTime ?? "");
}

/**
 * Returns the change that moves a trial's experiment by one place, past the next other experiment; null at the end of
 * the queue. waiting: in the order of the queue. step: -1 towards the start of the queue.
 */
export function moveByOne(waiting: Job[], trialId: string, step: -1 | 1): QueueUpdate | null {
  const index = waiting.findIndex((job) => job.trialId === trialId);
  const job = waiting[index];
  if (job === undefined) return null;
  for (let each = index + step; each >= 0 && each < waiting.length; each += step) {
    const other = waiting[each];
    if (other !== undefined && other.jobId !== job.jobId) return place(job, other, step);
  }
  return null;
}

/** Returns the change that puts a trial's experiment where another trial is; null where the two are of one experiment. */
export function moveTo(waiting: Job[], trialId: string, targetId: string): QueueUpdate | null {
  const from = waiting.findIndex((job) => job.trialId === trialId);
  const to = waiting.findIndex((job) => job.trialId === targetId);
  const [job, other] = [waiting[from], waiting[to]];
  if (job === undefined || other === undefined || job.jobId === other.jobId) return null;
  return place(job, other, to < from ? -1 : 1);
}

function place(job: Job, other: Job, step: -1 | 1): QueueUpdate {
  const otherId = Number(other.jobId);
  return step < 0 ? { jobId: Number(job.jobId), aheadOf: otherId } : { jobId: Number(job.jobId), behindOf: otherId };
}

/** Returns the command that makes the same change. */
export function commandOf(update: QueueUpdate): string {
  const options: [string, number | null | undefined][] = [
    ["--priority", update.priority],
    ["--weight", update.weight],
    ["--ahead-of", update.aheadOf],
    ["--behind-of", update.behindOf],
  ];
  const given = options.filter(([, value]) => value !== null && value !== undefined);
  return `gangline job update ${update.jobId} ${given.map(([name, value]) => `${name} ${value}`).join(" ")}`;
}

/** Returns what a plan decides about a trial, in words. */
export function describeStanding(standing: Schemas["PlannedStanding"]): string {
  const parts: string[] = [];
  if (standing.isStarting) parts.push("starts now");
  if (standing.isStopping) parts.push("gives its slots back");
  if (standing.queuePlace > 0) parts.push(`waits at place ${standing.queuePlace}`);
  if (standing.message !== "") parts.push(standing.message);
  return parts.length === 0 ? "unchanged" : parts.join("; ");
}
