import { expect, test } from "vitest";
import { formatBytes } from "../src/lib/bytes";
import { mergeRows } from "../src/lib/changes";
import { OTHERS, stackBars, tabulate } from "../src/lib/usage";

const POINTS = [
  { key: "ann", periodStart: "2026-01-02", slotSeconds: 3600 },
  { key: "bob", periodStart: "2026-01-01", slotSeconds: 7200 },
  { key: "eve", periodStart: "2026-01-02", slotSeconds: 1800 },
  { key: "ann", periodStart: "2026-01-01", slotSeconds: 7200 },
];

test("slot-hours are added up, the largest key first", () => {
  expect(tabulate(POINTS, 8)).toEqual({
    keys: ["ann", "bob", "eve"],
    periods: ["2026-01-01", "2026-01-02"],
    hours: [
      [2, 2, 0],
      [1, 0, 0.5],
    ],
    totals: [3, 2, 0.5],
  });
});

test("keys beyond the most are added up in one", () => {
  const table = tabulate(POINTS, 2);
  expect(table.keys).toEqual(["ann", OTHERS]);
  expect(table.totals).toEqual([3, 2.5]);
});

test("bars stand on one another, and the highest fills the chart", () => {
  const [bars, highest] = stackBars(tabulate(POINTS, 8), 200, 100);
  expect(highest).toBe(4);
  expect(bars.map(({ key, x, y, height }) => [key, x, y, height])).toEqual([
    ["ann", 0, 50, 50],
    ["bob", 0, 0, 50],
    ["ann", 100, 75, 25],
    ["eve", 100, 62.5, 12.5],
  ]);
  expect(stackBars(tabulate([], 8), 200, 100)).toEqual([[], 0]);
});

test("changes replace rows, add new ones and drop those that are gone", () => {
  const rows = [
    { id: 1, text: "a" },
    { id: 2, text: "b" },
  ];
  const merged = mergeRows(
    rows,
    [
      { id: 2, text: "c" },
      { id: 3, text: "d" },
    ],
    [1],
    (row) => row.id,
  );
  expect(merged.map((row) => row.text)).toEqual(["c", "d"]);
});

test("sizes have three digits at most", () => {
  expect([0, 999, 999.7, 1250, 12_345_678, 3e15].map(formatBytes)).toEqual([
    "0 B",
    "999 B",
    "1 kB",
    "1.25 kB",
    "12.3 MB",
    "3000 TB",
  ]);
});
