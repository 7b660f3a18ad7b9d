/** PURE: how curves are told apart. Two neighbours differ in their colour and in their dashes. */

export interface Look {
  colour: string;
  /** Lengths of dashes and gaps in pixels; empty for a solid line. */
  dash: number[];
}

// Each is told from its neighbours in both themes.
const COLOURS = ["#2f6fc4", "#c2571a", "#14803c", "#8a4bd0", "#b3201a", "#0d8390", "#8a6d00", "#c03b88"];
// Their number and that of the colours have no common divisor, so 104 curves all look different.
const DASHES = [
  [],
  [8, 4],
  [2, 3],
  [10, 3, 2, 3],
  [16, 4],
  [4, 2],
  [1, 5],
  [12, 3, 3, 3, 3, 3],
  [6, 6],
  [20, 3, 2, 3],
  [3, 1],
  [14, 8],
  [5, 2, 1, 2],
];

export function lookOf(index: number): Look {
  return { colour: COLOURS[index % COLOURS.length] ?? "", dash: DASHES[index % DASHES.length] ?? [] };
}
