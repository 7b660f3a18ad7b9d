/** PURE: curves of metrics over batches or time, joined into the columns that a chart draws. */

export interface Point {
  batch: number;
  /** Seconds since 1970. */
  time: number;
  value: number | null;
}

export interface Curve {
  name: string;
  /** In the order in which they were reported. */
  points: Point[];
  /** The newest attempt of the trial that has reported since the curve was read; absent before. */
  attempt?: number;
}

/** Where and when something was reported. */
interface ReportPlace {
  batch: number;
  time: number;
  /** The attempt of the trial, from 1. */
  attempt: number;
}

export type Axis = "batch" | "time";

interface Columns {
  batches: number[];
  times: number[];
  values: number[];
}

/** Returns the curve of one series of the API. */
export function toCurve(name: string, series: Columns): Curve {
  const points = series.values.map((value, index) => ({
    batch: series.batches[index] ?? 0,
    time: series.times[index] ?? 0,
    value,
  }));
  return { name, points };
}

/** Returns the places on the axis of all curves, and for each curve its value there; null where it has none. */
export function joinCurves(curves: Curve[], axis: Axis = "batch"): [number[], ...(number | null)[][]] {
  const places = [...new Set(curves.flatMap((curve) => curve.points.map((point) => point[axis])))].sort(
    (a, b) => a - b,
  );
  const indexOf = new Map(places.map((place, index) => [place, index]));
  const columns = curves.map((curve) => {
    const values: (number | null)[] = new Array(places.length).fill(null);
    for (const point of curve.points) values[indexOf.get(point[axis]) ?? 0] = point.value;
    return values;
  });
  return [places, ...columns];
}

/** Returns each value averaged with those before it, as an exponential mean. weight: of the past, from 0 to under 1. */
export function smooth(curve: Curve, weight: number): Curve {
  if (weight <= 0) return curve;
  let mean = 0;
  let total = 0;
  const points = curve.points.map((point): Point => {
    if (point.value === null) return point;
    // Divided by the sum of the weights, so that the first values are not drawn towards 0.
    mean = mean * weight + point.value * (1 - weight);
    total = total * weight + (1 - weight);
    return { ...point, value: mean / total };
  });
  return { name: curve.name, points };
}

/**
 * Returns the curve with a later point; the same one if it has that point, because streams and pages overlap. An attempt
 * that goes on from an older checkpoint replaces the points from its first batch on, as it does in the series that the
 * gateway returns.
 */
export function extended(curve: Curve, { batch, time, attempt, value }: ReportPlace & { value: number | null }): Curve {
  const last = curve.points.at(-1);
  const isBack = last !== undefined && batch <= last.batch;
  if (isBack && !isOfNewerAttempt(curve, { batch, time, attempt })) return curve;
  // What an ended attempt still had to say belongs to the branch that its successor has left.
  if (attempt < (curve.attempt ?? 0)) return curve;
  const kept = isBack ? curve.points.filter((point) => point.batch < batch) : curve.points;
  return { name: curve.name, points: [...kept, { batch, time, value }], attempt };
}

/** Groups that count the same batches. A newer attempt that reports in one of them ends the other one there. */
const LINKED = ["training", "validation"];

/** Returns the curve of a group after a report of another one. */
export function endedBy(curve: Curve, group: string, other: string, place: ReportPlace): Curve {
  if (!LINKED.includes(group) || !LINKED.includes(other)) return curve;
  if (curve.attempt === undefined) return { ...curve, attempt: place.attempt };
  if (place.attempt <= curve.attempt) return curve;
  return { ...curve, points: curve.points.filter((point) => point.batch <= place.batch), attempt: place.attempt };
}

/** Whether a report is of a newer attempt than the curve. The attempts of points that were read are not known; of these
 * an overlapping report is no newer. */
function isOfNewerAttempt(curve: Curve, { time, attempt }: ReportPlace): boolean {
  if (curve.attempt !== undefined) return attempt > curve.attempt;
  return time > (curve.points.at(-1)?.time ?? 0);
}

export interface Range {
  from: number;
  to: number;
}

/** Returns the batches of the points between two places of the axis; null if there are none. */
export function batchesBetween(curves: Curve[], axis: Axis, low: number, high: number): Range | null {
  let from = Number.POSITIVE_INFINITY;
  let to = Number.NEGATIVE_INFINITY;
  for (const curve of curves) {
    for (const point of curve.points) {
      if (point[axis] < low || point[axis] > high) continue;
      from = Math.min(from, point.batch);
      to = Math.max(to, point.batch);
    }
  }
  return from <= to ? { from, to } : null;
}

/** Returns a range after a move by a share of its width; of all batches if it is null. It does not begin before 0. null
 * without points. */
export function movedBy(share: number, range: Range | null, curves: Curve[]): Range | null {
  const whole = batchesBetween(curves, "batch", Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY);
  if (whole === null) return null;
  const from = Math.max(range?.from ?? 0, whole.from);
  const to = Math.min(range?.to ?? Number.MAX_SAFE_INTEGER, whole.to);
  const shift = Math.max(Math.round(share * (to - from)), -from);
  return { from: from + shift, to: to + shift };
}
