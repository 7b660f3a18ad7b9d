/**
 * When a view tries again what has failed and may succeed later: after a pause that grows with each failure, and at once
 * when something says that it may succeed now.
 */

import { isConnected } from "./client";
import { backoff } from "./event_text";

const waiting = new Set<() => void>();

/** Ends all pauses: the reader looks at the page again, the network is back, or a call has reached the gateway. */
export function wake(): void {
  for (const end of [...waiting]) end();
}

/** Wakes when the browser says so. Called once, at the start of the page. */
export function startWaking(): void {
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) wake();
  });
  addEventListener("online", wake);
  isConnected.subscribe((isNow) => {
    if (isNow) wake();
  });
}

/** Calls after so long, or when woken; not after the returned function was called. */
export function later(milliseconds: number, call: () => void): () => void {
  const end = () => {
    cancel();
    call();
  };
  const timer = setTimeout(end, milliseconds);
  const cancel = () => {
    clearTimeout(timer);
    waiting.delete(end);
  };
  waiting.add(end);
  return cancel;
}

/** The pauses between the tries of one thing. */
export class Retry {
  private numFailures = 0;
  private cancel = () => {};

  /** Calls after the pause that follows one more failure. least: milliseconds of the shortest pause. */
  soon(call: () => void, least = 0): void {
    this.cancel();
    this.cancel = later(Math.max(least, backoff(this.numFailures++, Math.random())), call);
  }

  /** The next failure is the first again. */
  succeed(): void {
    this.numFailures = 0;
  }

  end(): void {
    this.cancel();
  }
}
