/** PURE: sizes as the page writes them. */

const UNITS = ["B", "kB", "MB", "GB", "TB"];

/** Returns a number of bytes with at most three digits, as "1.25 MB". */
export function formatBytes(number: number): string {
  let value = number;
  let unit = 0;
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit++;
  }
  return `${Number(value.toPrecision(3))} ${UNITS[unit]}`;
}
