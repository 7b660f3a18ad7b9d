/** Calls of the HTTP API, with the types of its description. The session's cookie authorises them. */

import { signal } from "@preact/signals";
import { basePath } from "../router";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];

type Method = "get" | "post" | "put" | "patch" | "delete";
/** The paths that have this method. */
export type PathOf<M extends Method> = {
  [P in keyof paths]: paths[P][M] extends { responses: unknown } ? P : never;
}[keyof paths];
type Operation<P extends keyof paths, M extends Method> = paths[P][M];
type PathParts<O> = O extends { parameters: { path: infer T } } ? T : Record<string, never>;
type Query<O> = O extends { parameters: { query?: infer T } } ? T : never;
type BodyOf<O> = O extends { requestBody?: { content: { "application/json": infer T } } } ? T : never;
type Result<O> = O extends { responses: { 200: { content: { "application/json": infer T } } } } ? T : unknown;

export interface Options<O> {
  parts?: PathParts<O>;
  query?: Query<O>;
  body?: BodyOf<O>;
  signal?: AbortSignal;
}

/** An answer of the API that is no success. `message` is one line with a way out. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }

  /** Whether the same call may succeed later: the gateway, or something behind it, is away. */
  get isTemporary(): boolean {
    return this.status === 0 || this.status >= 500;
  }
}

function unreachable(): ApiError {
  return new ApiError(0, "page.unreachable", "the gateway does not answer; the page tries again by itself");
}

export const PAGE_HEADERS = { "X-Gangline-Page": "1" };
/** Whether the last call reached the gateway. */
export const isConnected = signal(true);
/** Set by the session: called when the gateway knows no session of ours. */
export const onSignedOut: { call: () => void } = { call: () => {} };

type Value = string | number | boolean | null | undefined;

/** Returns the address of a call. Names in braces stand for parts of the path. */
export function addressOf(path: string, parts: object = {}, query: object = {}): string {
  const values = parts as Record<string, Value>;
  const filled = path.replace(/\{(\w+)(:path)?\}/g, (_, name: string) => encodeURIComponent(String(values[name])));
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query as Record<string, Value | Value[]>)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== undefined && each !== null && each !== "") search.append(name, String(each));
    }
  }
  const text = search.toString();
  return basePath() + filled.slice(1) + (text === "" ? "" : `?${text}`);
}

/** Sends a request of any path. Throws ApiError. */
export async function send(address: string, init: RequestInit = {}): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(address, { ...init, headers: { ...PAGE_HEADERS, ...init.headers } });
  } catch (failure) {
    if (init.signal?.aborted) throw failure;
    isConnected.value = false;
    throw unreachable();
  }
  const error = answer.ok ? null : await errorOf(answer);
  isConnected.value = error?.status !== 0;
  if (error === null) return answer;
  throw error;
}

/** Saves what a path answers as a file. A plain link cannot, because the session's cookie counts only with a header. */
export async function download(address: string, name: string): Promise<void> {
  const body = await (await send(address)).blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(body);
  link.download = name;
  link.click();
  // The browser has read the address once the click was handled.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

async function errorOf(answer: Response): Promise<ApiError> {
  let problem: { code?: string; detail?: string } = {};
  try {
    problem = await answer.json();
  } catch {
    // A proxy in front of the gateway answers in a form of its own, with one of these while no gateway answers.
    if ([502, 503, 504].includes(answer.status)) return unreachable();
  }
  const code = problem.code ?? "http.unknown";
  if (answer.status === 401 || code === "auth.inactive") onSignedOut.call();
  return new ApiError(answer.status, code, problem.detail ?? `the answer was ${answer.status} ${answer.statusText}`);
}

async function call<P extends keyof paths, M extends Method>(
  method: M,
  path: P,
  options: Options<Operation<P, M>>,
): Promise<Result<Operation<P, M>>> {
  const init: RequestInit = { method: method.toUpperCase() };
  if (options.signal !== undefined) init.signal = options.signal;
  if (options.body !== undefined) {
    init.body = JSON.stringify(options.body);
    init.headers = { "Content-Type": "application/json" };
  }
  const answer = await send(addressOf(path, options.parts, options.query as object | undefined), init);
  return (answer.status === 204 ? null : await answer.json()) as Result<Operation<P, M>>;
}

export const api = {
  get: <P extends PathOf<"get">>(path: P, options: Options<Operation<P, "get">> = {}) => call("get", path, options),
  post: <P extends PathOf<"post">>(path: P, options: Options<Operation<P, "post">> = {}) => call("post", path, options),
  put: <P extends PathOf<"put">>(path: P, options: Options<Operation<P, "put">> = {}) => call("put", path, options),
  patch: <P extends PathOf<"patch">>(path: P, options: Options<Operation<P, "patch">> = {}) =>
    call("patch", path, options),
  delete: <P extends PathOf<"delete">>(path: P, options: Options<Operation<P, "delete">> = {}) =>
    call("delete", path, options),
};
