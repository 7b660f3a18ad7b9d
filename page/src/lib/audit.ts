/** PURE: filters and records of the audit log, as the page writes them. */

import { formatValue, shellWord } from "./text";

/** The conditions on records. All have to hold; "" stands for none. */
export interface AuditFilter {
  user: string;
  action: string;
  object: string;
  outcome: string;
  address: string;
  /** A time in UTC, as "2026-01-31T14:00:00.000Z". */
  since: string;
  until: string;
}

export const NO_FILTER: AuditFilter = {
  user: "",
  action: "",
  object: "",
  outcome: "",
  address: "",
  since: "",
  until: "",
};

export interface Change {
  field: string;
  /** null where the record has no old value, as for a new object. */
  old: string | null;
  /** null where the record has no new value, as for an object that was deleted. */
  new: string | null;
}

/** Returns the filter that an address names. Times that are none are left out. */
export function readFilter(query: URLSearchParams): AuditFilter {
  const filter = { ...NO_FILTER };
  for (const name of Object.keys(filter) as (keyof AuditFilter)[]) filter[name] = query.get(name) ?? "";
  return { ...filter, since: utcOf(filter.since), until: utcOf(filter.until) };
}

/** Returns the command that lists the same records. */
export function commandOf(filter: AuditFilter): string {
  const options = Object.entries(filter).filter(([, value]) => value !== "");
  return ["gangline audit", ...options.map(([name, value]) => `--${name} ${shellWord(value)}`)].join(" ");
}

/** Returns the changes of a record by field. */
export function listChanges(changes: Record<string, unknown>): Change[] {
  return Object.entries(changes).map(([field, change]) => {
    const values = (typeof change === "object" && change !== null ? change : { new: change }) as Record<
      string,
      unknown
    >;
    const text = (side: string) => (side in values ? valueText(values[side]) : null);
    return { field, old: text("old"), new: text("new") };
  });
}

function valueText(value: unknown): string {
  return value === null ? "none" : formatValue(value);
}

/** Returns a change on one line. */
export function changeLine(change: Change): string {
  if (change.old === null) return `${change.field}: ${change.new ?? ""}`;
  return `${change.field}: ${change.old} → ${change.new ?? "removed"}`;
}

/** Returns a time in UTC; "" for a text that is no time. Without a zone a text is in the reader's zone. */
export function utcOf(text: string): string {
  const time = Date.parse(text);
  return Number.isNaN(time) ? "" : new Date(time).toISOString();
}

/** Returns a time in the reader's zone to the minute, as an input for times wants it; "" for no time. */
export function localMinute(utc: string): string {
  if (utc === "") return "";
  const time = new Date(utc);
  const two = (number: number) => String(number).padStart(2, "0");
  const year = String(time.getFullYear()).padStart(4, "0");
  const day = `${year}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
  return `${day}T${two(time.getHours())}:${two(time.getMinutes())}`;
}
