/** PURE: the parts of the cluster that subscribers of the stream follow, joined into as few connections as possible. */

import type { TableChanges } from "../lib/row_list";
import type { Schemas } from "./client";

export interface TablePart {
  filter: string;
  /** Names of fields, separated by commas. */
  fields: string;
}

export interface Parts {
  experiments?: TablePart;
  trials?: TablePart & { experimentId?: number };
  agents?: boolean;
  models?: boolean;
  queue?: boolean;
  /** Ids of trials whose new reports are sent. */
  metrics?: string[];
  /** Workspaces and projects. Each change of one comes as a reset. */
  homes?: boolean;
}

export type Job = Schemas["Job"];
export type Report = Schemas["StoredMetrics"];

/** The data of an event `changes`. docs/http.md describes each part. */
export interface Changes {
  experiments?: TableChanges;
  trials?: { rows: Record<string, unknown>[]; gone: string[] };
  agents?: { rows: Schemas["AgentView"][]; gone: string[]; holders: Schemas["AgentMap"]["holders"] };
  models?: { rows: { id: number }[]; gone: number[] };
  queue?: { rows: Job[]; gone: string[]; isWhole: boolean };
  metrics?: Report[];
}

/**
 * Calls with each receiver of an event; what one throws is passed to `onFailure` once all have been called, so that a
 * defect of one view keeps the event from no other.
 */
export function callAll<T>(receivers: Iterable<T>, call: (receiver: T) => void, onFailure: (failure: unknown) => void) {
  const failures: unknown[] = [];
  for (const receiver of [...receivers]) {
    try {
      call(receiver);
    } catch (failure) {
      failures.push(failure);
    }
  }
  for (const failure of failures) onFailure(failure);
}

/** Parameters with which a stream sends no row of an experiment, and still a reset when a workspace changes. */
const NO_EXPERIMENT: TablePart = { filter: "id = 0", fields: "id" };

/** Returns the parts of both; null where both follow the same table in different ways, which one stream cannot. */
export function joined(one: Parts, other: Parts): Parts | null {
  for (const table of ["experiments", "trials"] as const) {
    const [a, b] = [one[table], other[table]];
    if (a !== undefined && b !== undefined && JSON.stringify(a) !== JSON.stringify(b)) return null;
  }
  const parts: Parts = { ...one, ...other };
  const flags = ["agents", "models", "queue", "homes"] as const;
  for (const name of flags) if (one[name] || other[name]) parts[name] = true;
  const metrics = [...new Set([...(one.metrics ?? []), ...(other.metrics ?? [])])];
  if (metrics.length > 0) parts.metrics = metrics;
  return parts;
}

/** Divides subscribers into groups of which each needs one stream. */
export function grouped<S extends { parts: Parts }>(subscribers: Iterable<S>): { parts: Parts; members: S[] }[] {
  const groups: { parts: Parts; members: S[] }[] = [];
  for (const subscriber of subscribers) {
    let isPlaced = false;
    for (const group of groups) {
      const parts = joined(group.parts, subscriber.parts);
      if (parts === null) continue;
      group.parts = parts;
      group.members.push(subscriber);
      isPlaced = true;
      break;
    }
    if (!isPlaced) groups.push({ parts: subscriber.parts, members: [subscriber] });
  }
  return groups;
}

/** Returns the parameters of the stream. */
export function parametersOf(parts: Parts): Record<string, string | number | boolean | string[]> {
  const { trials } = parts;
  const experiments = parts.experiments ?? (parts.homes ? NO_EXPERIMENT : undefined);
  return {
    ...(experiments
      ? { experiments: true, experimentFilter: experiments.filter, experimentFields: experiments.fields }
      : {}),
    ...(trials ? { trials: true, trialFilter: trials.filter, trialFields: trials.fields } : {}),
    ...(trials?.experimentId ? { experimentId: trials.experimentId } : {}),
    ...(parts.agents ? { agents: true } : {}),
    ...(parts.models ? { models: true } : {}),
    ...(parts.queue ? { queue: true } : {}),
    ...(parts.metrics?.length ? { metrics: [...parts.metrics].sort() } : {}),
  };
}

/**
 * Returns the cursor at which a stream for all these subscribers begins, so that none of them misses a change; empty for
 * now, where none has a cursor. A cursor is `REVISION[.METRICS[.QUEUE]]`, and each part of it is chosen by itself: a
 * page that was read has a revision alone, and must not move a subscriber of reports to the newest report.
 */
export function startOf(subscribers: { parts: Parts; cursor: string }[]): string {
  const places = subscribers
    .filter(({ cursor }) => cursor !== "")
    .map(({ parts, cursor }) => {
      const [revision = "", metrics = "", queue = ""] = cursor.split(".");
      return { revision, metrics: parts.metrics ? metrics : "", queue: parts.queue ? queue : null };
    });
  if (places.length === 0) return "";
  const revision = least(places.map((place) => place.revision));
  const metrics = least(places.map((place) => place.metrics));
  // A subscriber that has not got the queue yet needs all of it. A change of another version would not do.
  const numFollowing = subscribers.filter(({ parts }) => parts.queue).length;
  const queues = places.map((place) => place.queue).filter((queue) => queue !== null);
  const isKnown = queues.length === numFollowing && queues.every((queue) => queue === queues[0]);
  return `${revision}.${metrics}.${isKnown ? (queues[0] ?? "") : ""}`.replace(/\.+$/, "");
}

/** Returns the least of the numbers; empty if there are none. */
function least(texts: string[]): string {
  const numbers = texts.filter((text) => text !== "");
  return numbers.reduce((one, other) => (Number(other) < Number(one) ? other : one), numbers[0] ?? "");
}

/**
 * Returns whether a subscriber that has read nothing can join an open stream of the same parameters: what it reads then
 * is at least as new as the stream. One that needs the whole queue, which only a new stream begins with, cannot.
 */
export function canJoin({ parts, cursor }: { parts: Parts; cursor: string }): boolean {
  return cursor === "" && !parts.queue;
}

/** Returns what of an event belongs to a subscriber's parts; null if nothing does. */
export function selected(changes: Changes, parts: Parts): Changes | null {
  const own: Changes = {};
  if (parts.experiments && changes.experiments) own.experiments = changes.experiments;
  if (parts.trials && changes.trials) own.trials = changes.trials;
  if (parts.agents && changes.agents) own.agents = changes.agents;
  if (parts.models && changes.models) own.models = changes.models;
  if (parts.queue && changes.queue) own.queue = changes.queue;
  const reports = changes.metrics?.filter(({ trialId }) => parts.metrics?.includes(trialId)) ?? [];
  if (reports.length > 0) own.metrics = reports;
  return Object.keys(own).length === 0 ? null : own;
}
