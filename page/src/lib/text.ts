/** PURE: numbers, times and names as the page writes them. */

/** Divides a name so that its end stays visible where its beginning is cut. */
export function splitName(name: string, tailLength = 8): [string, string] {
  const characters = Array.from(name);
  if (characters.length <= tailLength * 2) return [name, ""];
  return [characters.slice(0, -tailLength).join(""), characters.slice(-tailLength).join("")];
}

/** Returns a number with at most five significant digits. null stands for one that is infinite or none. */
export function formatNumber(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  const isPlain = Math.abs(value) >= 1e-4 && Math.abs(value) < 1e7;
  return isPlain ? String(Number(value.toPrecision(5))) : value.toExponential(3);
}

/** Returns a span of time in its two largest units, as "2 h 5 min". */
export function formatDuration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

/** Returns the time of an event in UTC. */
export function formatUtc(time: string): string {
  return `${new Date(time).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

/** Returns any value of a configuration or of a report on one line. */
export function formatValue(value: unknown): string {
  if (typeof value === "number") return formatNumber(value);
  if (typeof value === "string") return value;
  return value === undefined ? "–" : JSON.stringify(value);
}

/** Returns "1 trial", "2 trials". */
export function count(number: number, noun: string): string {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/** Returns a number of bytes in its largest unit, as "1.5 MiB". */
export function formatBytes(bytes: number): string {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  const step = bytes < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10));
  return `${Number((bytes / 1024 ** step).toPrecision(3))} ${units[step]}`;
}

/** Returns a text as one word of a shell's command line. */
export function shellWord(text: string): string {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
