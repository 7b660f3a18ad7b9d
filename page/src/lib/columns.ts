/** PURE: which columns a table shows, in which order, how wide, and how many stay at its left edge; as the address
 * holds it: "id:80,name|state,owner", where the columns before the bar are pinned. */

export interface Layout {
  ids: string[];
  numPinned: number;
  /** Widths in pixels that the reader has chosen. */
  widths: Record<string, number>;
}

export const MIN_WIDTH = 40;
export const MAX_WIDTH = 1200;

/** Reads what `writeLayout` wrote. Unknown columns and repetitions are left out. */
export function readLayout(text: string, isKnown: (id: string) => boolean, standard: Layout): Layout {
  if (text === "") return standard;
  const [pinned = "", others = ""] = text.includes("|") ? text.split("|", 2) : ["", text];
  const ids: string[] = [];
  const widths: Record<string, number> = {};
  const add = (part: string) => {
    const [encoded = "", width = ""] = part.split(":", 2);
    const id = decode(encoded);
    if (!isKnown(id) || ids.includes(id)) return;
    ids.push(id);
    const pixels = Number(width);
    if (pixels >= MIN_WIDTH && pixels <= MAX_WIDTH) widths[id] = Math.round(pixels);
  };
  pinned.split(",").forEach(add);
  const numPinned = ids.length;
  others.split(",").forEach(add);
  return ids.length === 0 ? standard : { ids, numPinned, widths };
}

export function writeLayout({ ids, numPinned, widths }: Layout): string {
  const write = (id: string) => encode(id) + (widths[id] === undefined ? "" : `:${widths[id]}`);
  return `${ids.slice(0, numPinned).map(write).join(",")}|${ids.slice(numPinned).map(write).join(",")}`;
}

function encode(id: string): string {
  return id.replace(/[%,|:]/g, (mark) => `%${mark.charCodeAt(0).toString(16)}`);
}

function decode(text: string): string {
  return text.replace(/%(25|2c|7c|3a)/g, (_, code: string) => String.fromCharCode(Number.parseInt(code, 16)));
}

/** Moves a column by one place, to the left or to the right. */
export function moved(layout: Layout, id: string, step: -1 | 1): Layout {
  const from = layout.ids.indexOf(id);
  const to = from + step;
  if (from < 0 || to < 0 || to >= layout.ids.length) return layout;
  const others = layout.ids.filter((each) => each !== id);
  return { ...layout, ids: [...others.slice(0, to), id, ...others.slice(to)] };
}

/** Shows a column at the end, or hides it. The last one stays. */
export function toggled(layout: Layout, id: string): Layout {
  const index = layout.ids.indexOf(id);
  if (index < 0) return { ...layout, ids: [...layout.ids, id] };
  if (layout.ids.length === 1) return layout;
  const numPinned = index < layout.numPinned ? layout.numPinned - 1 : layout.numPinned;
  return { ...layout, ids: layout.ids.filter((each) => each !== id), numPinned };
}

export function resized(layout: Layout, id: string, width: number): Layout {
  const pixels = Math.round(Math.max(MIN_WIDTH, Math.min(MAX_WIDTH, width)));
  return { ...layout, widths: { ...layout.widths, [id]: pixels } };
}
