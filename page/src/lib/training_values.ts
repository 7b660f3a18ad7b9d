/** PURE: which training metrics the rows of a list need, and what was found for them. */

import type { Row } from "./row_list";

export const TRAINING = "training.";
/** Trials of one request. */
const MOST_TRIALS = 80;

/** By trial and metric, as `keyOf` joins them. */
export type TrainingValues = ReadonlyMap<string, number>;

export function keyOf(trialId: unknown, metric: string): string {
  return `${trialId} ${metric}`;
}

/** Returns the best trials of these rows, each with the batches that say whether it has trained on. */
export function wantedTrials(rows: Row[]): Map<string, number> {
  const wanted = new Map<string, number>();
  for (const row of rows) {
    if (typeof row.bestTrial === "string" && wanted.size < MOST_TRIALS) wanted.set(row.bestTrial, Number(row.batches));
  }
  return wanted;
}

/** Returns the last value of each series that has one. */
export function newestOf(series: { trialId: string; metric: string; values: number[] }[]): TrainingValues {
  const found = new Map<string, number>();
  for (const { trialId, metric, values } of series) {
    const value = values.at(-1);
    if (value !== undefined) found.set(keyOf(trialId, metric), value);
  }
  return found;
}
