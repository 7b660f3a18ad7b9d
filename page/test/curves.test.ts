import { describe, expect, it } from "vitest";
import { batchesBetween, type Curve, extended, joinCurves, movedBy, smooth, toCurve } from "../src/lib/curves";

function curve(name: string, ...points: [number, number | null][]): Curve {
  return { name, points: points.map(([batch, value]) => ({ batch, time: 1000 + batch, value })) };
}

describe("joinCurves", () => {
  it("gives each curve a value at each batch, or null", () => {
    const training = curve("training", [1, 0.5], [2, 0.4], [3, 0.3]);
    const validation = curve("validation", [2, 0.6], [4, 0.5]);
    expect(joinCurves([training, validation])).toEqual([
      [1, 2, 3, 4],
      [0.5, 0.4, 0.3, null],
      [null, 0.6, null, 0.5],
    ]);
  });
  it("sorts times as numbers", () => {
    expect(joinCurves([curve("a", [9, 1], [10, 2])], "time")[0]).toEqual([1009, 1010]);
  });
});

describe("smooth", () => {
  it("begins at the first value, and keeps gaps", () => {
    const smoothed = smooth(curve("a", [1, 4], [2, null], [3, 0]), 0.5);
    // The second value: (0.25 * 4 + 0.5 * 0) / 0.75.
    expect(smoothed.points.map((point) => point.value)).toEqual([4, null, expect.closeTo(4 / 3, 10)]);
  });
  it("changes nothing without a weight", () => {
    const plain = curve("a", [1, 4], [2, 0]);
    expect(smooth(plain, 0)).toBe(plain);
  });
});

describe("extended", () => {
  it("adds later points alone, because a page and the stream overlap", () => {
    const known = curve("a", [1, 4], [2, 3]);
    expect(extended(known, { batch: 2, time: 0, value: 9 })).toBe(known);
    expect(extended(known, { batch: 3, time: 0, value: 2 }).points).toHaveLength(3);
    expect(known.points).toHaveLength(2);
  });
});

describe("batchesBetween", () => {
  const curves = [curve("a", [1, 4], [20, 3]), curve("b", [5, 4], [30, 3])];
  it("finds the batches of a part of either axis", () => {
    expect(batchesBetween(curves, "batch", 2, 25)).toEqual({ from: 5, to: 20 });
    expect(batchesBetween(curves, "time", 1004, 1040)).toEqual({ from: 5, to: 30 });
  });
  it("finds none between two points", () => {
    expect(batchesBetween(curves, "batch", 6, 7)).toBeNull();
  });
});

it("reads the columns of a series", () => {
  const columns = { batches: [1, 2], times: [7, 8], values: [0.5, 0.25] };
  expect(toCurve("a", columns).points).toEqual([
    { batch: 1, time: 7, value: 0.5 },
    { batch: 2, time: 8, value: 0.25 },
  ]);
});

describe("movedBy", () => {
  const drawn = [curve("a", [400, 1], [600, 2])];
  it("moves a range by a share of its width", () => {
    expect(movedBy(0.25, { from: 400, to: 600 }, drawn)).toEqual({ from: 450, to: 650 });
    expect(movedBy(-0.25, { from: 400, to: 600 }, drawn)).toEqual({ from: 350, to: 550 });
  });
  it("moves what is drawn where the range has no end", () => {
    expect(movedBy(0.5, null, drawn)).toEqual({ from: 500, to: 700 });
    expect(movedBy(0.5, { from: 0, to: Number.MAX_SAFE_INTEGER }, drawn)).toEqual({ from: 500, to: 700 });
  });
  it("keeps the width at the beginning", () => {
    expect(movedBy(-9, { from: 400, to: 600 }, drawn)).toEqual({ from: 0, to: 200 });
  });
  it("has nothing to move without points", () => {
    expect(movedBy(0.5, { from: 4, to: 6 }, [curve("a")])).toBeNull();
  });
});
