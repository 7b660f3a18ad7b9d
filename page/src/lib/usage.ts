/** PURE: slot-hours by key and period, as a table and as stacked bars. */

export interface UsagePoint {
  key: string;
  periodStart: string;
  slotSeconds: number;
}

export interface UsageTable {
  /** The keys with the most hours first; the last one may be OTHERS. */
  keys: string[];
  periods: string[];
  /** Slot-hours of each period, in the order of the keys. */
  hours: number[][];
  totals: number[];
}

export const OTHERS = "all others";

/** Sums up slot-hours. maxKeys: further keys are added up under OTHERS. */
export function tabulate(points: UsagePoint[], maxKeys: number): UsageTable {
  const totalOf = new Map<string, number>();
  for (const { key, slotSeconds } of points) totalOf.set(key, (totalOf.get(key) ?? 0) + slotSeconds);
  const sorted = [...totalOf.keys()].sort((a, b) => (totalOf.get(b) ?? 0) - (totalOf.get(a) ?? 0));
  const kept = sorted.length > maxKeys ? sorted.slice(0, maxKeys - 1) : sorted;
  const keys = sorted.length > maxKeys ? [...kept, OTHERS] : kept;
  const columnOf = new Map(kept.map((key, index) => [key, index]));
  const periods = [...new Set(points.map((point) => point.periodStart))].sort();
  const rowOf = new Map(periods.map((period, index) => [period, index]));
  const hours = periods.map(() => keys.map(() => 0));
  for (const { key, periodStart, slotSeconds } of points) {
    const row = hours[rowOf.get(periodStart) ?? 0];
    const column = columnOf.get(key) ?? keys.length - 1;
    if (row !== undefined) row[column] = (row[column] ?? 0) + slotSeconds / 3600;
  }
  const totals = keys.map((_, column) => hours.reduce((sum, row) => sum + (row[column] ?? 0), 0));
  return { keys, periods, hours, totals };
}

export interface Bar {
  key: string;
  period: string;
  hours: number;
  /** The index of the key. */
  column: number;
  x: number;
  y: number;
  width: number;
  height: number;
}

/** Returns the parts of stacked bars, and the hours of the highest bar. The first key is at the bottom. */
export function stackBars({ keys, periods, hours }: UsageTable, width: number, height: number): [Bar[], number] {
  const highest = Math.max(0, ...hours.map((row) => row.reduce((sum, value) => sum + value, 0)));
  if (highest === 0) return [[], 0];
  const step = width / periods.length;
  const bars: Bar[] = [];
  for (const [row, period] of periods.entries()) {
    let bottom = height;
    for (const [column, key] of keys.entries()) {
      const value = hours[row]?.[column] ?? 0;
      if (value === 0) continue;
      const size = (value / highest) * height;
      bottom -= size;
      bars.push({ key, period, hours: value, column, x: row * step, y: bottom, width: step * 0.85, height: size });
    }
  }
  return [bars, highest];
}
