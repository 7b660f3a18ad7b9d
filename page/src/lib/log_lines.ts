/** PURE: the lines of a log that the page keeps, and how it writes them. */

/** Lines in memory. Those at the far end go when others come. */
export const KEPT_LINES = 20_000;

interface Line {
  id: number;
}

/** Returns the lines with later ones; older ones go. Lines that are there already are left out. */
export function withLater<L extends Line>(lines: L[], added: L[], kept = KEPT_LINES): L[] {
  const last = lines.at(-1)?.id ?? 0;
  return [...lines, ...added.filter((line) => line.id > last)].slice(-kept);
}

/** Returns the lines with older ones; the latest ones go. */
export function withOlder<L extends Line>(lines: L[], added: L[], kept = KEPT_LINES): L[] {
  const first = lines[0]?.id ?? Number.POSITIVE_INFINITY;
  return [...added.filter((line) => line.id < first), ...lines].slice(0, kept);
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: these are the characters that are replaced
const ESCAPES = /\u001b\[[0-9;?]*[ -/]*[@-~]|\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)/g;
// biome-ignore lint/suspicious/noControlCharactersInRegex: as above
const CONTROLS = /[\u0000-\u0008\u000a-\u001f]/g;

/** Returns a line without colours and titles for terminals. Other control characters get their visible signs. */
export function shownText(text: string): string {
  return text
    .replace(ESCAPES, "")
    .replace(CONTROLS, (character) => String.fromCharCode(0x2400 + character.charCodeAt(0)))
    .replaceAll("\u007f", "\u2421");
}

/** Returns the ranks of a text such as "0, 2"; null if it names something else. */
export function readRanks(text: string): number[] | null {
  const parts = text.split(/[\s,]+/).filter((part) => part !== "");
  return parts.every((part) => /^\d{1,9}$/.test(part)) ? parts.map(Number) : null;
}
