/** PURE: scales of the plots of hyperparameters: numbers, on a linear or logarithmic scale, or names in their order. */

export interface Scale {
  /** Returns the place from 0 to 1; null for a value that the scale does not have. */
  place: (value: unknown) => number | null;
  ticks: { at: number; text: string }[];
  isNumeric: boolean;
}

const MANY = 100;

/** Returns a scale for these values. It is logarithmic if they are positive and span more than a factor of 100. */
export function scaleOf(values: unknown[], write: (value: unknown) => string): Scale {
  const present = values.filter((value) => value !== null && value !== undefined);
  const numbers = present.filter((value): value is number => typeof value === "number" && Number.isFinite(value));
  if (numbers.length === present.length && numbers.length > 0) return numeric(numbers, write);
  const names = [...new Set(present.map(write))].sort();
  const at = (index: number) => (names.length < 2 ? 0.5 : index / (names.length - 1));
  const indexOf = new Map(names.map((name, index) => [name, index]));
  const step = Math.ceil(names.length / 12);
  return {
    place: (value) => {
      const index = value === null || value === undefined ? undefined : indexOf.get(write(value));
      return index === undefined ? null : at(index);
    },
    ticks: names.map((text, index) => ({ at: at(index), text })).filter((_, index) => index % step === 0),
    isNumeric: false,
  };
}

function numeric(numbers: number[], write: (value: unknown) => string): Scale {
  const low = numbers.reduce((a, b) => Math.min(a, b));
  const high = numbers.reduce((a, b) => Math.max(a, b));
  const isLog = low > 0 && high / low > MANY;
  const bend = isLog ? Math.log : (value: number) => value;
  const span = bend(high) - bend(low);
  const place = (value: unknown) => {
    if (typeof value !== "number" || !Number.isFinite(value)) return null;
    return span === 0 ? 0.5 : (bend(value) - bend(low)) / span;
  };
  const marks = span === 0 ? [low] : isLog ? decades(low, high) : evenTicks(low, high);
  return { place, ticks: marks.map((value) => ({ at: place(value) ?? 0, text: write(value) })), isNumeric: true };
}

/** Returns round numbers between two, about `wanted` of them. */
export function evenTicks(low: number, high: number, wanted = 5): number[] {
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10) * power;
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  // Multiples of the step, written with its digits, so that no 0.30000000000000004 appears.
  const digits = Math.min(100, Math.max(0, -Math.floor(Math.log10(step))));
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toFixed(digits)));
}

function decades(low: number, high: number): number[] {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  const step = Math.ceil((last - first + 1) / 6);
  return Array.from({ length: Math.ceil((last - first + 1) / step) }, (_, index) => 10 ** (first + index * step));
}

export interface Bin {
  column: number;
  row: number;
  /** Mean of the values in the bin. */
  mean: number;
  count: number;
}

/** Returns the means of values in a square of bins over two scales. Values without a place are left out. */
export function binned(points: { x: number | null; y: number | null; value: number | null }[], size: number): Bin[] {
  const bins = new Map<string, Bin>();
  for (const { x, y, value } of points) {
    if (x === null || y === null || value === null) continue;
    const column = Math.min(size - 1, Math.floor(x * size));
    const row = Math.min(size - 1, Math.floor(y * size));
    const bin = bins.get(`${column} ${row}`) ?? { column, row, mean: 0, count: 0 };
    bin.mean += (value - bin.mean) / ++bin.count;
    bins.set(`${column} ${row}`, bin);
  }
  return [...bins.values()];
}
