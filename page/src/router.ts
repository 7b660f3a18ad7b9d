/** The address of the page: which view it names, and what is stored in its query. All paths are relative to the base. */

import { signal } from "@preact/signals";
import type { ComponentType } from "preact";

export interface Place {
  path: string;
  query: URLSearchParams;
}

export interface ViewProps {
  /** The named parts of the path, in their order. */
  ids: string[];
}

export interface View {
  /** A path whose parts `:name` stand for any text. */
  pattern: string;
  title: string;
  load: () => Promise<ComponentType<ViewProps>>;
}

/** The path that a proxy puts before the page's own, with a slash at both ends. */
export function basePath(): string {
  return new URL(document.baseURI).pathname;
}

function read(): Place {
  const path = `/${location.pathname.slice(basePath().length)}`;
  return { path, query: new URLSearchParams(location.search) };
}

export const place = signal<Place>({ path: "/", query: new URLSearchParams() });

/** Returns the text of a link to a place of the page, such as "/experiments/1". */
export function href(path: string): string {
  return basePath() + path.replace(/^\//, "");
}

/** Goes to a place. isReplacing: the browser's back button skips the present one. */
export function go(path: string, isReplacing = false): void {
  history[isReplacing ? "replaceState" : "pushState"](null, "", href(path));
  place.value = read();
}

/** Changes values of the query, and drops those that are empty. The browser's history keeps one entry for the view. */
export function setQuery(changes: Record<string, string | string[]>): void {
  const query = new URLSearchParams(place.value.query);
  for (const [name, value] of Object.entries(changes)) {
    query.delete(name);
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== "") query.append(name, each);
    }
  }
  const text = query.toString();
  go(place.value.path + (text === "" ? "" : `?${text}`), true);
}

/** Returns the parts of a path that stand for the names in a pattern; null for a path of another view. */
export function match(pattern: string, path: string): string[] | null {
  const wanted = pattern.split("/");
  const parts = path.replace(/\/$/, "").split("/");
  if (path === "/") return pattern === "/" ? [] : null;
  if (wanted.length !== parts.length) return null;
  const ids: string[] = [];
  for (const [index, part] of parts.entries()) {
    if (wanted[index]?.startsWith(":")) ids.push(decode(part));
    else if (wanted[index] !== part) return null;
  }
  return ids;
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Follows the browser's buttons, and clicks on links to other places of the page. */
export function startRouter(): void {
  place.value = read();
  // Later addresses have other depths than the one that the document was made for.
  const base = document.querySelector("base");
  if (base !== null) base.href = document.baseURI;
  addEventListener("popstate", () => {
    place.value = read();
  });
  document.addEventListener("click", (event) => {
    const link = (event.target as Element).closest?.("a[href]");
    if (!(link instanceof HTMLAnchorElement) || link.target !== "" || link.hasAttribute("download")) return;
    if (event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const isSamePage = link.hash !== "" && link.pathname === location.pathname;
    if (link.origin !== location.origin || !link.pathname.startsWith(basePath()) || isSamePage) return;
    if (link.pathname.startsWith(`${basePath()}api/`) || link.pathname.startsWith(`${basePath()}proxy/`)) return;
    event.preventDefault();
    go(`/${link.pathname.slice(basePath().length)}${link.search}`);
  });
}
