/** PURE: the order of a table, as the address and the API hold it: "-best,name". */

export interface SortKey {
  name: string;
  isDescending: boolean;
}

const MAX_KEYS = 5;

export function readSort(text: string): SortKey[] {
  return splitNames(text).map((part) => ({ name: part.replace(/^-/, ""), isDescending: part.startsWith("-") }));
}

export function writeSort(keys: SortKey[]): string {
  return joinNames(keys.map((key) => (key.isDescending ? "-" : "") + key.name));
}

/**
 * Returns the order after a click on the head of a column: upwards, then downwards, then as before. isAdded: the column
 * joins the others as a further key; else it is the only one.
 */
export function clickedSort(keys: SortKey[], name: string, isAdded: boolean): SortKey[] {
  const index = keys.findIndex((key) => key.name === name);
  const present = keys[index];
  const next = present === undefined ? [{ name, isDescending: false }] : present.isDescending ? [] : [down(present)];
  if (!isAdded) return next;
  if (present === undefined) return [...keys, ...next].slice(-MAX_KEYS);
  return [...keys.slice(0, index), ...next, ...keys.slice(index + 1)];
}

function down(key: SortKey): SortKey {
  return { ...key, isDescending: true };
}

/** Joins names of fields with commas; a comma within a name has a backslash before it. */
export function joinNames(names: string[]): string {
  return names.map((name) => name.replaceAll(",", "\\,")).join(",");
}

function splitNames(text: string): string[] {
  return text
    .replaceAll("\\,", "\0")
    .split(",")
    .map((part) => part.replaceAll("\0", ",").trim())
    .filter((part) => part !== "");
}
