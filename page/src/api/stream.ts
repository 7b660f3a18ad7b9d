/**
 * Follows a stream of server-sent events, and goes on after the last event when the connection was lost.
 *
 * `EventSource` cannot send a header, without which the session's cookie does not count, so this reads with `fetch`.
 */

import { later } from "./again";
import { ApiError, isConnected, send } from "./client";
import { backoff, readEvents, type ServerEvent } from "./event_text";

// The gateway sends a comment at least every 10 seconds, or 15 in streams of logs. After so long it is taken for gone.
const SILENCE_SECONDS = 35;

export interface Follower {
  stop: () => void;
}

/**
 * Calls `onEvent` with each event until the stream ends by itself, with an event `end`. onError: gets why the gateway
 * refuses the stream, and null once it is accepted. After an error that is not temporary, such as a missing right,
 * nothing is tried again.
 */
export function follow(
  address: string,
  onEvent: (event: ServerEvent) => void,
  onError: (error: ApiError | null) => void = () => {},
): Follower {
  const ending = new AbortController();
  void run(address, onEvent, onError, ending.signal);
  return { stop: () => ending.abort() };
}

async function run(
  address: string,
  onEvent: (event: ServerEvent) => void,
  onError: (error: ApiError | null) => void,
  signal: AbortSignal,
): Promise<void> {
  let lastId = "";
  for (let tries = 0; !signal.aborted; tries++) {
    try {
      const headers: Record<string, string> = lastId === "" ? {} : { "Last-Event-ID": lastId };
      const answer = await send(address, { signal, headers: { Accept: "text/event-stream", ...headers } });
      onError(null);
      for await (const event of eventsOf(answer)) {
        if (signal.aborted) return;
        tries = 0;
        if (event.id !== "") lastId = event.id;
        if (event.name === "end") return;
        onEvent(event);
      }
    } catch (failure) {
      if (signal.aborted) return;
      if (failure instanceof ApiError && failure.status !== 0) {
        onError(failure);
        if (!failure.isTemporary) return;
      } else isConnected.value = false;
    }
    await sleep(backoff(tries, Math.random()), signal);
  }
}

async function* eventsOf(answer: Response): AsyncGenerator<ServerEvent> {
  if (answer.body === null) return;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await withinSilence(reader);
    if (done) return;
    const found = readEvents(text + value);
    text = found.rest;
    yield* found.events;
  }
}

/** Reads the next part. Throws where none comes: a machine that has lost its network closes no connection. */
async function withinSilence(reader: ReadableStreamDefaultReader<string>): Promise<ReadableStreamReadResult<string>> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const silence = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error("the stream is silent")), SILENCE_SECONDS * 1000);
  });
  try {
    return await Promise.race([reader.read(), silence]);
  } catch (failure) {
    void reader.cancel().catch(() => {});
    throw failure;
  } finally {
    clearTimeout(timer);
  }
}

function sleep(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const cancel = later(milliseconds, resolve);
    signal.addEventListener("abort", () => {
      cancel();
      resolve();
    });
  });
}
