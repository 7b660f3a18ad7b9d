/**
 * Loads the window anew where the code of a view did not come: the connection broke meanwhile, or the gateway has a newer
 * version. A browser keeps the failure of a module as long as the window, so asking for the module again would not do.
 */

import { Retry } from "./api/again";
import { api } from "./api/client";
import { complain } from "./toast";

const MISSING = "the gateway does not send this page; it may have a newer version: reload the window";
const KEY = "gangline.reloads";
const MOST_IN_A_ROW = 3;

export class Reload {
  private readonly retry = new Retry();
  private isEnded = false;

  /** The code has come. */
  succeed(): void {
    remember(0);
  }

  /** Loads the window anew as soon as the gateway answers; says so where that has not helped before. */
  fail(): void {
    if (this.isEnded) return;
    if (numReloads() < MOST_IN_A_ROW) this.retry.soon(() => void this.reload());
    else {
      remember(0);
      complain(MISSING);
    }
  }

  /** The reader has left the view. */
  end(): void {
    this.isEnded = true;
    this.retry.end();
  }

  private async reload(): Promise<void> {
    try {
      // Without a gateway the browser would show a page of its own, which never tries again.
      await api.get("/api/v1/me");
    } catch {
      if (!this.isEnded) this.retry.soon(() => void this.reload());
      return;
    }
    if (this.isEnded) return;
    remember(numReloads() + 1);
    location.reload();
  }
}

/** Loads the code of a part of a view, which may hold what the user has typed, so the window is not loaded anew. */
export async function partOf<T>(load: () => Promise<T>): Promise<T> {
  try {
    return await load();
  } catch {
    throw new Error(MISSING);
  }
}

function numReloads(): number {
  return Number(sessionStorage.getItem(KEY) ?? 0);
}

function remember(count: number): void {
  if (count > 0) sessionStorage.setItem(KEY, String(count));
  else sessionStorage.removeItem(KEY);
}
