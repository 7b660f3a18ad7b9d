/** Values that views keep up to date by the stream of changes, which all of them share (`live_store.ts`). */

import { useEffect, useRef, useState } from "preact/hooks";
import { mergeAgents, mergeQueue } from "../lib/changes";
import { type ApiError, api, type Schemas } from "./client";
import { type Live, Readings } from "./live";
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
  const readings = useRef<Readings<T> | null>(null);
  useEffect(() => {
    // Changes that come while the value is read are made again on what was read, which may be older. null: it is not read.
    let missed: Changes[] | null = null;
    const own = new Readings<T>(
      (signal) => {
        missed = [];
        return load(signal);
      },
      (read) => {
        const value = apply === null ? read : (missed ?? []).reduce(apply, read);
        missed = null;
        setState({ key, value, error: null });
      },
      (error) => {
        missed = null;
        setState((former) => ({ key, value: former.key === key ? former.value : null, error }));
      },
    );
    readings.current = own;
    const unsubscribe = subscribe({
      parts,
      cursor: "",
      onReset: own.again,
      onChanges: (changes) => {
        if (apply === null) return own.again();
        missed?.push(changes);
        setState((former) =>
          former.key !== key || former.value === null ? former : { ...former, value: apply(former.value, changes) },
        );
      },
    });
    return () => {
      own.end();
      unsubscribe();
    };
  }, [key]);
  const isCurrent = state.key === key;
  return {
    value: isCurrent ? state.value : null,
    error: isCurrent ? state.error : null,
    reload: () => readings.current?.again(),
  };
}

/** All agents, and who holds their slots. */
export function useAgents(): Live<AgentMap> {
  return useFollowed("agents", { agents: true }, (signal) => api.get("/api/v1/agents", { signal }), withAgents);
}

function withAgents(map: AgentMap, { agents }: Changes): AgentMap {
  return agents === undefined ? map : mergeAgents(map, agents);
}

/** Jobs that hold slots or wait; null until the stream has brought them: it begins with all of them, also with none. */
export function useQueue(): Job[] | null {
  const [jobs, setJobs] = useState<Job[] | null>(null);
  useChanges(
    { queue: true },
    "",
    ({ queue }) => queue && setJobs((former) => mergeQueue(former ?? [], queue)),
    () => {},
  );
  return jobs;
}
