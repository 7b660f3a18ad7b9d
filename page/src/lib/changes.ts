/** PURE: lists that are kept up to date by the changes that the stream sends. */

/** Replaces changed rows, appends new ones, and drops those that are gone. */
export function mergeRows<R>(
  rows: R[],
  changed: R[],
  gone: (string | number)[],
  keyOf: (row: R) => string | number,
): R[] {
  const byKey = new Map(rows.map((row) => [keyOf(row), row]));
  for (const row of changed) byKey.set(keyOf(row), row);
  for (const key of gone) byKey.delete(key);
  return [...byKey.values()];
}

/** Returns the jobs of the queue after a change. */
export function mergeQueue<J extends { trialId: string }>(
  jobs: J[],
  { rows, gone, isWhole }: { rows: J[]; gone: string[]; isWhole: boolean },
): J[] {
  return isWhole ? rows : mergeRows(jobs, rows, gone, (job) => job.trialId);
}
