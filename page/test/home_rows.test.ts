import { expect, it } from "vitest";
import { mergeQueue } from "../src/lib/changes";
import { changed, divide, FAILED_SHOWN, reasonsOf } from "../src/lib/home_rows";
import type { Row } from "../src/lib/row_list";

const row = (id: number, state: string, outcome: string | null = null, endTime = ""): Row => ({
  id,
  state,
  outcome,
  endTime,
});
const job = (trialId: string, message?: string) => ({
  trialId,
  jobId: trialId.split(".")[0] ?? "",
  reason: message === undefined ? null : { message },
});

it("divides experiments into those that run, wait and failed", () => {
  const rows = [
    row(1, "RUNNING"),
    row(2, "QUEUED"),
    row(3, "STARTING"),
    row(4, "PAUSED"),
    row(5, "TERMINAL", "COMPLETED"),
    row(6, "TERMINAL", "FAILED", "2026-01-01T00:00:00Z"),
    row(7, "TERMINAL", "FAILED", "2026-01-02T00:00:00Z"),
  ];
  const home = divide(rows);
  expect([home.running, home.waiting, home.failed].map((list) => list.map((each) => each.id))).toEqual([
    [3, 1],
    [4, 2],
    [7, 6],
  ]);
  const many = Array.from({ length: 30 }, (_, id) => row(id, "TERMINAL", "FAILED", `2026-01-01T00:00:${id + 10}Z`));
  expect(divide(many).failed.map((each) => each.id)).toEqual([29, 28, 27, 26, 25, 24, 23, 22, 21, 20]);
  expect(FAILED_SHOWN).toBe(10);
});

it("applies deltas of rows and of the queue", () => {
  const rows = changed(new Map([[1, row(1, "RUNNING")]]), { rows: [row(2, "QUEUED"), row(1, "PAUSED")], gone: [] });
  expect([rows.size, rows.get(1)?.state]).toEqual([2, "PAUSED"]);
  expect([...changed(rows, { rows: [], gone: [1] }).keys()]).toEqual([2]);

  let jobs = mergeQueue([job("9.1", "an old one")], {
    rows: [job("1.1"), job("2.1", "no slots"), job("2.2", "later")],
    gone: [],
    isWhole: true,
  });
  expect([...reasonsOf(jobs)]).toEqual([[2, "no slots"]]);
  jobs = mergeQueue(jobs, { rows: [job("2.1")], gone: ["1.1"], isWhole: false });
  expect([...reasonsOf(jobs)]).toEqual([[2, "later"]]);
  expect(jobs.map((each) => each.trialId)).toEqual(["2.1", "2.2"]);
  expect(mergeQueue(jobs, { rows: [], gone: [], isWhole: true })).toEqual([]);
});
