/** Values of the gateway that stay up to date while a view shows them. */

import { useEffect, useRef, useState } from "preact/hooks";
import { later, Retry } from "./again";
import { ApiError } from "./client";

export interface Live<T> {
  value: T | null;
  error: ApiError | null;
  reload: () => void;
}

/**
 * Reads a value as often as `again` is called, one reading at a time: calls during a reading lead to one more after it,
 * so that calls which come faster than a reading do not keep it from ending.
 */
export class Readings<T> {
  private readonly ending = new AbortController();
  private readonly retry = new Retry();
  private isReading = false;
  private isOutdated = false;

  /** onError: gets each failure. After one that is temporary it reads again by itself. */
  constructor(
    private readonly load: (signal: AbortSignal) => Promise<T>,
    private readonly onValue: (value: T) => void,
    private readonly onError: (error: ApiError) => void,
  ) {}

  readonly again = (): void => {
    void this.read();
  };

  end(): void {
    this.ending.abort();
    this.retry.end();
  }

  private async read(): Promise<void> {
    this.isOutdated = this.isReading;
    if (this.isReading) return;
    this.isReading = true;
    this.retry.end();
    try {
      const value = await this.load(this.ending.signal);
      if (this.ending.signal.aborted) return;
      this.retry.succeed();
      this.onValue(value);
    } catch (failure) {
      if (this.ending.signal.aborted) return;
      if (!(failure instanceof ApiError)) throw failure;
      this.onError(failure);
      if (failure.isTemporary) this.retry.soon(this.again);
    } finally {
      this.isReading = false;
    }
    if (this.isOutdated) this.again();
  }
}

/** Loads a value, and again when `version` changes. The former value stays until the next one is there. */
export function useReadAgain<T>(version: string, load: (signal: AbortSignal) => Promise<T>): Live<T> {
  const [state, setState] = useState<{ value: T | null; error: ApiError | null }>({ value: null, error: null });
  const latest = useRef(load);
  latest.current = load;
  const readings = useRef<Readings<T> | null>(null);
  useEffect(() => {
    const own = new Readings<T>(
      (signal) => latest.current(signal),
      (value) => setState({ value, error: null }),
      (error) => setState((former) => ({ ...former, error })),
    );
    readings.current = own;
    return () => own.end();
  }, []);
  useEffect(() => readings.current?.again(), [version]);
  return { ...state, reload: () => readings.current?.again() };
}

/**
 * Loads a value, and again every `seconds` while the window is visible; 0 for once. key: another one loads at once.
 * A load that failed because the gateway is away keeps the former value, and is repeated.
 */
export function useLive<T>(key: string, load: (signal: AbortSignal) => Promise<T>, seconds: number): Live<T> {
  const [state, setState] = useState<{ key: string; value: T | null; error: ApiError | null }>({
    key,
    value: null,
    error: null,
  });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const ending = new AbortController();
    const retry = new Retry();
    let cancel = () => {};
    // A window that was opened in the background is filled as well.
    let isFirst = true;
    const next = async () => {
      try {
        if (isFirst || !document.hidden) {
          const value = await load(ending.signal);
          isFirst = false;
          retry.succeed();
          setState({ key, value, error: null });
        }
      } catch (failure) {
        if (ending.signal.aborted) return;
        if (!(failure instanceof ApiError)) throw failure;
        setState((former) => ({ key, value: former.key === key ? former.value : null, error: failure }));
        if (failure.isTemporary) return retry.soon(next, seconds * 1000);
      }
      if (seconds > 0 && !ending.signal.aborted) cancel = later(seconds * 1000, next);
    };
    void next();
    return () => {
      ending.abort();
      retry.end();
      cancel();
    };
  }, [key, seconds, round]);
  const isCurrent = state.key === key;
  return {
    value: isCurrent ? state.value : null,
    error: isCurrent ? state.error : null,
    reload: () => setRound((former) => former + 1),
  };
}
