import { expect, test } from "vitest";
import { keyOf, newestOf, wantedTrials } from "../src/lib/training_values";

test("the best trials of the rows are read, and read again when they have trained on", () => {
  const rows = [
    { id: 1, bestTrial: "1.2", batches: 7 },
    { id: 2, bestTrial: null, batches: 0 },
  ];
  expect([...wantedTrials(rows)]).toEqual([["1.2", 7]]);
  const many = Array.from({ length: 500 }, (_, id) => ({ id, bestTrial: `${id}.1`, batches: 1 }));
  expect(wantedTrials(many).size).toBe(80);
});

test("the newest value is the last one, and a series without values has none", () => {
  const series = [
    { trialId: "1.2", metric: "loss", values: [3, 1, 2] },
    { trialId: "1.2", metric: "accuracy", values: [] },
  ];
  expect([...newestOf(series)]).toEqual([[keyOf("1.2", "loss"), 2]]);
});
