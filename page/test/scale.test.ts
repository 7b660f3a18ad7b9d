import { describe, expect, it } from "vitest";
import { binned, evenTicks, scaleOf } from "../src/lib/scale";

describe("evenTicks", () => {
  it.each([
    [0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]],
    [0.13, 0.31, [0.15, 0.2, 0.25, 0.3]],
    [-5, 95, [0, 20, 40, 60, 80]],
  ])("finds round numbers from %d to %d", (low, high, ticks) => {
    expect(evenTicks(low, high)).toEqual(ticks);
  });
});

describe("scaleOf", () => {
  it("is logarithmic over a wide range of positive numbers", () => {
    const scale = scaleOf([1e-4, 1e-2, 1], String);
    expect(scale.place(1e-2)).toBeCloseTo(0.5);
    expect(scale.ticks.map((tick) => tick.at)).toEqual([0, 0.25, 0.5, 0.75, 1].map((at) => expect.closeTo(at, 10)));
  });
  it("is linear with zero, and has one place for one value", () => {
    expect(scaleOf([0, 500, 1000], String).place(500)).toBe(0.5);
    expect(scaleOf([3, 3], String).place(3)).toBe(0.5);
  });
  it("orders names, and has no place for a value that is missing", () => {
    const scale = scaleOf(["sgd", "adam", null, 3], String);
    expect([scale.place("3"), scale.place("adam"), scale.place("sgd")]).toEqual([0, 0.5, 1]);
    expect(scale.place(null)).toBeNull();
    expect(scale.isNumeric).toBe(false);
  });
});

it("means the values of each bin", () => {
  const bins = binned(
    [
      { x: 0, y: 0, value: 1 },
      { x: 0.1, y: 0.1, value: 3 },
      { x: 1, y: 1, value: 5 },
      { x: null, y: 0, value: 9 },
    ],
    4,
  );
  expect(bins).toEqual([
    { column: 0, row: 0, mean: 2, count: 2 },
    { column: 3, row: 3, mean: 5, count: 1 },
  ]);
});
