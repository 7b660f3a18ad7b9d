import { describe, expect, it } from "vitest";
import { batchesBetween, type Curve, endedBy, extended, joinCurves, movedBy, smooth, toCurve } from "../src/lib/curves";

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
    expect(extended(known, { batch: 2, time: 0, value: 9, attempt: 1 })).toBe(known);
    expect(extended(known, { batch: 2, time: 1002, value: 3, attempt: 1 })).toBe(known);
    expect(extended(known, { batch: 3, time: 0, value: 2, attempt: 1 }).points).toHaveLength(3);
    expect(known.points).toHaveLength(2);
  });
  it("goes back with an attempt that goes on from an older checkpoint", () => {
    const known = extended(curve("a", [10, 4], [20, 3], [30, 2]), { batch: 40, time: 1040, value: 1, attempt: 1 });
    // Its clock may be that of another machine.
    const back = extended(known, { batch: 20, time: 900, value: 9, attempt: 2 });
    expect(back.points.map(({ batch, value }) => [batch, value])).toEqual([
      [10, 4],
      [20, 9],
    ]);
    const on = extended(back, { batch: 30, time: 910, value: 8, attempt: 2 });
    expect(on.points.map(({ batch }) => batch)).toEqual([10, 20, 30]);
    // The same attempt again, and what the ended one still reports.
    expect(extended(on, { batch: 20, time: 950, value: 7, attempt: 2 })).toBe(on);
    expect(extended(on, { batch: 50, time: 1050, value: 1, attempt: 1 })).toBe(on);
  });
  it("goes back also where the attempt of what was read is not known", () => {
    const back = extended(curve("a", [10, 4], [20, 3]), { batch: 15, time: 2000, value: 9, attempt: 2 });
    expect(back.points.map(({ batch }) => batch)).toEqual([10, 15]);
  });
});

describe("endedBy", () => {
  const known = extended(curve("a", [10, 4], [20, 3]), { batch: 30, time: 1030, value: 1, attempt: 1 });
  it("ends validations after the batch at which a newer attempt trains, and nothing of another group", () => {
    const place = { batch: 15, time: 2000, attempt: 2 };
    expect(endedBy(known, "validation", "training", place).points.map(({ batch }) => batch)).toEqual([10]);
    expect(endedBy(known, "profiling", "training", place)).toBe(known);
    expect(endedBy(known, "validation", "profiling", place)).toBe(known);
    expect(endedBy(known, "validation", "training", { ...place, attempt: 1 })).toBe(known);
  });
  it("notes the attempt, once", () => {
    const read = curve("a", [10, 4]);
    const noted = endedBy(read, "validation", "training", { batch: 5, time: 9, attempt: 1 });
    expect([noted.points, noted.attempt]).toEqual([read.points, 1]);
    expect(endedBy(noted, "validation", "training", { batch: 6, time: 9, attempt: 1 })).toBe(noted);
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
