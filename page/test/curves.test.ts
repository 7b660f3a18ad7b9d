import { expect, it } from "vitest";
import { joinCurves, smooth } from "../src/lib/curves";

it("joins curves of different batches", () => {
  const curves = [
    {
      name: "a",
      points: [
        [1, 10],
        [3, 30],
      ] as [number, number][],
    },
    {
      name: "b",
      points: [
        [2, 5],
        [3, null],
      ] as [number, number | null][],
    },
  ];
  expect(joinCurves(curves)).toEqual([
    [1, 2, 3],
    [10, null, 30],
    [null, 5, null],
  ]);
});

it("smooths a constant to itself, and keeps gaps", () => {
  const curve = {
    name: "a",
    points: [
      [1, 2],
      [2, 2],
      [3, null],
      [4, 2],
    ] as [number, number | null][],
  };
  const values = smooth(curve, 0.9).points.map(([, value]) => value);
  expect(values[2]).toBeNull();
  for (const value of [values[0], values[1], values[3]]) expect(value).toBeCloseTo(2, 10);
  expect(smooth(curve, 0)).toBe(curve);
});
