/** PURE: which columns a table shows, in which order, and how many stay at its left edge; as the address holds it. */

export interface Layout {
  ids: string[];
  numPinned: number;
}

/** Reads "id,name|state,owner": the columns before the bar are pinned. Unknown ones are left out. */
export function readLayout(text: string, known: readonly string[], standard: Layout): Layout {
  if (text === "") return standard;
  const [pinned = "", others = ""] = text.includes("|") ? text.split("|", 2) : ["", text];
  const isKnown = (id: string, index: number, all: string[]) => known.includes(id) && all.indexOf(id) === index;
  const ids = [...pinned.split(","), ...others.split(",")].filter(isKnown);
  const numPinned = pinned.split(",").filter((id) => known.includes(id)).length;
  return ids.length === 0 ? standard : { ids, numPinned: Math.min(numPinned, ids.length) };
}

export function writeLayout({ ids, numPinned }: Layout): string {
  return `${ids.slice(0, numPinned).join(",")}|${ids.slice(numPinned).join(",")}`;
}

/** Moves a column by one place, to the left or to the right. */
export function moved({ ids, numPinned }: Layout, id: string, step: -1 | 1): Layout {
  const from = ids.indexOf(id);
  const to = from + step;
  if (from < 0 || to < 0 || to >= ids.length) return { ids, numPinned };
  const others = ids.filter((each) => each !== id);
  return { ids: [...others.slice(0, to), id, ...others.slice(to)], numPinned };
}

/** Shows a column at the end, or hides it. */
export function toggled({ ids, numPinned }: Layout, id: string): Layout {
  const index = ids.indexOf(id);
  if (index < 0) return { ids: [...ids, id], numPinned };
  if (ids.length === 1) return { ids, numPinned };
  return { ids: ids.filter((each) => each !== id), numPinned: index < numPinned ? numPinned - 1 : numPinned };
}
