/** PURE: which experiments are selected: some by their ids, or all that match but some. */

import { allOf } from "../../lib/filter";

export interface Selection {
  /** Whether all that match are selected, but `ids`. */
  isAll: boolean;
  ids: ReadonlySet<number>;
}

export const NOTHING: Selection = { isAll: false, ids: new Set() };
export const EVERYTHING: Selection = { isAll: true, ids: new Set() };

export function isSelected({ isAll, ids }: Selection, id: number): boolean {
  return ids.has(id) !== isAll;
}

export function toggledIn({ isAll, ids }: Selection, id: number): Selection {
  const next = new Set(ids);
  if (!next.delete(id)) next.add(id);
  return { isAll, ids: next };
}

/** Returns how many are selected of `total` that match. */
export function sizeOf({ isAll, ids }: Selection, total: number): number {
  return isAll ? Math.max(0, total - ids.size) : ids.size;
}

/** Returns the selected ids in the order of the list; null if some of them are not known here. rows: those that are
 * known, in their order. total: how many match. */
export function chosenIn({ isAll, ids }: Selection, rows: { id: number }[], total: number): number[] | null {
  if (isAll) return rows.length < total ? null : rows.map((row) => row.id).filter((id) => !ids.has(id));
  const shown = rows.map((row) => row.id).filter((id) => ids.has(id));
  // Rows that have left the list meanwhile stay selected, and come last.
  return [...shown, ...[...ids].filter((id) => !shown.includes(id))];
}

/** Returns what an order on the selection names: ids, or a filter. filter: of the list. */
export function namedBy({ isAll, ids }: Selection, filter: string): { ids: number[] } | { filter: string } {
  if (!isAll) return { ids: [...ids].sort((a, b) => a - b) };
  return { filter: allOf([filter, ids.size === 0 ? "" : `id not in (${[...ids].join(", ")})`]) };
}
