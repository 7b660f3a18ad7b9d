/** PURE: what the first view shows: experiments that run, that wait, and that failed lately. */

import type { Row, TableChanges } from "./row_list";

export const FAILED_SHOWN = 10;
const WAITING = new Set(["QUEUED", "PAUSED"]);

export interface HomeRows {
  running: Row[];
  waiting: Row[];
  failed: Row[];
}

export function divide(rows: Iterable<Row>): HomeRows {
  const all = [...rows];
  const live = all.filter((row) => row.state !== "TERMINAL").sort((a, b) => b.id - a.id);
  const failed = all.filter((row) => row.outcome === "FAILED");
  failed.sort((a, b) => String(b.endTime).localeCompare(String(a.endTime)) || b.id - a.id);
  return {
    running: live.filter((row) => !WAITING.has(String(row.state))),
    waiting: live.filter((row) => WAITING.has(String(row.state))),
    failed: failed.slice(0, FAILED_SHOWN),
  };
}

/** Returns the rows after a delta. */
export function changed(rows: ReadonlyMap<number, Row>, changes: TableChanges): Map<number, Row> {
  const next = new Map(rows);
  for (const row of changes.rows) next.set(row.id, row);
  for (const id of changes.gone) next.delete(id);
  return next;
}

interface WaitingJob {
  jobId: string;
  reason: { message: string } | null;
}

/** Returns why each experiment waits: the reason of its first waiting trial. */
export function reasonsOf(jobs: WaitingJob[]): Map<number, string> {
  const reasons = new Map<number, string>();
  for (const job of jobs) {
    const id = Number(job.jobId);
    if (job.reason !== null && !reasons.has(id)) reasons.set(id, job.reason.message);
  }
  return reasons;
}
