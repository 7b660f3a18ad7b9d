/** Values that views keep up to date by the stream of changes, which all of them share (`live_store.ts`). */

import { useEffect, useRef, useState } from "preact/hooks";
import { mergeQueue, mergeRows } from "../lib/changes";
import { ApiError, api, type Schemas } from "./client";
import { AGAIN_SECONDS, type Live } from "./live";
import type { Changes, Job, Parts } from "./live_parts";
import { subscribe } from "./live_store";

export type AgentMap = Schemas["AgentMap"];

/**
 * Calls `onChanges` with each change after a cursor. parts: null follows nothing. onReset: the view has to read anew, for
 * the first time where it gives no cursor.
 */
export function useChanges(
  parts: Parts | null,
  cursor: string,
  onChanges: (changes: Changes) => void,
  onReset: () => void,
): void {
  const latest = useRef({ onChanges, onReset });
  latest.current = { onChanges, onReset };
  const key = JSON.stringify(parts);
  useEffect(() => {
    if (parts === null) return;
    return subscribe({
      parts,
      cursor,
      onChanges: (changes) => latest.current.onChanges(changes),
      onReset: () => latest.current.onReset(),
    });
  }, [key, cursor]);
}

/**
 * Reads a value once the stream is open, and keeps it up to date. key: another one reads at once. apply: makes the value
 * after a change; null reads the value again with each change.
 */
export function useFollowed<T>(
  key: string,
  parts: Parts,
  load: (signal: AbortSignal) => Promise<T>,
  apply: ((value: T, changes: Changes) => T) | null,
): Live<T> {
  const [state, setState] = useState<{ key: string; value: T | null; error: ApiError | null }>({
    key,
    value: null,
    error: null,
  });
  const reload = useRef(() => {});
  useEffect(() => {
    const ending = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let isReading = false;
    let isOutdated = false;
    // Changes that come while the value is read are made again on what was read, which may be older.
    let missed: Changes[] = [];
    const read = async () => {
      isOutdated = isReading;
      if (isReading) return;
      isReading = true;
      clearTimeout(timer);
      missed = [];
      try {
        const value = await load(ending.signal);
        setState({ key, value: apply === null ? value : missed.reduce(apply, value), error: null });
      } catch (failure) {
        if (ending.signal.aborted) return;
        if (!(failure instanceof ApiError)) throw failure;
        setState((former) => ({ key, value: former.key === key ? former.value : null, error: failure }));
        if (failure.isTemporary) timer = setTimeout(read, AGAIN_SECONDS * 1000);
      } finally {
        isReading = false;
      }
      if (isOutdated) void read();
    };
    reload.current = () => void read();
    const unsubscribe = subscribe({
      parts,
      cursor: "",
      onReset: reload.current,
      onChanges: (changes) => {
        if (apply === null) return void read();
        missed.push(changes);
        setState((former) =>
          former.key !== key || former.value === null ? former : { ...former, value: apply(former.value, changes) },
        );
      },
    });
    return () => {
      ending.abort();
      clearTimeout(timer);
      unsubscribe();
    };
  }, [key]);
  const isCurrent = state.key === key;
  return {
    value: isCurrent ? state.value : null,
    error: isCurrent ? state.error : null,
    reload: () => reload.current(),
  };
}

/** All agents, and who holds their slots. */
export function useAgents(): Live<AgentMap> {
  return useFollowed("agents", { agents: true }, (signal) => api.get("/api/v1/agents", { signal }), withAgents);
}

function withAgents(map: AgentMap, { agents }: Changes): AgentMap {
  if (agents === undefined) return map;
  return {
    agents: mergeRows(map.agents, agents.rows, agents.gone, (row) => row.agent.id),
    holders: { ...map.holders, ...agents.holders },
  };
}

/** Jobs that hold slots or wait; null until the stream is open, which begins with all of them. */
export function useQueue(): Job[] | null {
  const [jobs, setJobs] = useState<Job[] | null>(null);
  useChanges(
    { queue: true },
    "",
    ({ queue }) => queue && setJobs((former) => mergeQueue(former ?? [], queue)),
    () => setJobs((former) => former ?? []),
  );
  return jobs;
}
