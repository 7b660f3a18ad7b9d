/** Values of the gateway that stay up to date while a view shows them. */

import { useEffect, useState } from "preact/hooks";
import { ApiError } from "./client";

export interface Live<T> {
  value: T | null;
  error: ApiError | null;
  reload: () => void;
}

// A value that could not be read because the gateway is away is read again after so long.
export const AGAIN_SECONDS = 2;

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
    let timer: ReturnType<typeof setTimeout> | undefined;
    const next = async () => {
      let pause = seconds;
      try {
        if (!document.hidden) {
          const value = await load(ending.signal);
          setState({ key, value, error: null });
        }
      } catch (failure) {
        if (ending.signal.aborted) return;
        if (!(failure instanceof ApiError)) throw failure;
        setState((former) => ({ ...former, key, error: failure }));
        if (failure.isTemporary) pause = Math.max(seconds, AGAIN_SECONDS);
      }
      if (pause > 0 && !ending.signal.aborted) timer = setTimeout(next, pause * 1000);
    };
    void next();
    return () => {
      ending.abort();
      clearTimeout(timer);
    };
  }, [key, seconds, round]);
  const isCurrent = state.key === key;
  return {
    value: isCurrent ? state.value : null,
    error: isCurrent ? state.error : null,
    reload: () => setRound((former) => former + 1),
  };
}
