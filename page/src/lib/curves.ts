/** PURE: curves of metrics over batches, joined into the columns that a chart draws. */

export interface Curve {
  name: string;
  /** Batches and value, in the order of the batches. */
  points: [number, number | null][];
}

/** Returns the batches of all curves, and for each curve its value at each of them; null where it has none. */
export function joinCurves(curves: Curve[]): [number[], ...(number | null)[][]] {
  const batches = [...new Set(curves.flatMap((curve) => curve.points.map(([batch]) => batch)))].sort((a, b) => a - b);
  const placeOf = new Map(batches.map((batch, index) => [batch, index]));
  const columns = curves.map((curve) => {
    const values: (number | null)[] = new Array(batches.length).fill(null);
    for (const [batch, value] of curve.points) values[placeOf.get(batch) ?? 0] = value;
    return values;
  });
  return [batches, ...columns];
}

/** Returns each value averaged with those before it, as an exponential mean. weight: of the past, from 0 to under 1. */
export function smooth(curve: Curve, weight: number): Curve {
  if (weight <= 0) return curve;
  let mean = 0;
  let total = 0;
  const points = curve.points.map(([batch, value]): [number, number | null] => {
    if (value === null) return [batch, null];
    // Divided by the sum of the weights, so that the first values are not drawn towards 0.
    mean = mean * weight + value * (1 - weight);
    total = total * weight + (1 - weight);
    return [batch, mean / total];
  });
  return { name: curve.name, points };
}
