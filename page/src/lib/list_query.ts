/** PURE: what a list of experiments shows, as the address and a saved view hold it. */

import { allOf, fieldsOf, writeValue } from "./filter";

/** Names in the query of the address. They are also the keys of a saved view. */
export const LIST_NAMES = ["filter", "q", "of", "archived", "sort", "columns"] as const;
export type ListName = (typeof LIST_NAMES)[number];
/** Values by name; an absent one is empty. */
export type ListQuery = Record<ListName, string>;

export function readListQuery(query: URLSearchParams): ListQuery {
  return Object.fromEntries(LIST_NAMES.map((name) => [name, query.get(name) ?? ""])) as ListQuery;
}

/** Reads a saved view. What is no text in it is left out. */
export function readContent(content: unknown): ListQuery {
  const values = (typeof content === "object" && content !== null ? content : {}) as Record<string, unknown>;
  const textOf = (name: ListName) => (typeof values[name] === "string" ? values[name] : "");
  return Object.fromEntries(LIST_NAMES.map((name) => [name, textOf(name)])) as ListQuery;
}

/** Returns a saved view of the list: its values that are not empty. */
export function contentOf(query: ListQuery): Record<string, string> {
  return Object.fromEntries(Object.entries(query).filter(([, value]) => value !== ""));
}

export function isSameQuery(one: ListQuery, other: ListQuery): boolean {
  return LIST_NAMES.every((name) => one[name] === other[name]);
}

/** Returns whether the reader has narrowed the list. */
export function isNarrowed(query: ListQuery): boolean {
  return query.filter !== "" || query.q.trim() !== "" || query.of !== "";
}

/** Returns the filter that the API gets. user: the reader's name. within: a filter that the place of the list sets. */
export function wholeFilter(query: ListQuery, user: string, within = ""): string {
  const named = fieldsOf(query.filter);
  return allOf([
    within,
    named.has("kind") ? "" : "kind = TRAINING",
    named.has("archived") || query.archived === "yes" ? "" : "archived = false",
    query.of === "mine" ? `owner = ${quoted(user)}` : "",
    searchFilter(query.q),
    query.filter,
  ]);
}

/** Returns a filter for rows whose name, owner or labels contain the text, or whose id it is. */
export function searchFilter(text: string): string {
  const wanted = text.trim();
  if (wanted === "") return "";
  const pattern = writeValue({ text: `(?i)${wanted.replace(/[\\^$.|?*+()[\]{}]/g, "\\$&")}`, isQuoted: true });
  const id = /^\d{1,15}$/.test(wanted) ? `id = ${wanted} or ` : "";
  return `${id}name ~ ${pattern} or owner ~ ${pattern} or labels ~ ${pattern}`;
}

export function quoted(text: string): string {
  return writeValue({ text, isQuoted: true });
}
