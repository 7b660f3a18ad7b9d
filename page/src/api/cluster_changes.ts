/** Agents and the queue as the gateway has them now: read once, then changed by what `/api/v1/stream` sends. */

import { useEffect, useState } from "preact/hooks";
import { mergeRows } from "../lib/changes";
import { ApiError, addressOf, api, type Schemas } from "./client";
import { follow } from "./stream";

export type AgentMap = Schemas["AgentMap"];
export type Job = Schemas["Job"];

interface Changes {
  agents?: { rows: Schemas["AgentView"][]; gone: string[]; holders: AgentMap["holders"] };
  queue?: { rows: Job[]; gone: string[]; isWhole: boolean };
}

interface Kept<T> {
  value: T | null;
  error: ApiError | null;
}

type AgentChanges = NonNullable<Changes["agents"]>;

/** All agents, and who holds their slots. */
export function useAgents(): Kept<AgentMap> {
  const [value, setValue] = useState<AgentMap | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  useEffect(() => {
    const ending = new AbortController();
    // Changes that come while the list is read are made again on what was read, which may be older.
    let missed: AgentChanges[] = [];
    const load = async () => {
      missed = [];
      try {
        const read = await api.get("/api/v1/agents", { signal: ending.signal });
        setValue(missed.reduce(applyChanges, read));
        setError(null);
      } catch (failure) {
        if (ending.signal.aborted) return;
        if (!(failure instanceof ApiError)) throw failure;
        setError(failure);
      }
    };
    const follower = follow(
      addressOf("/api/v1/stream", {}, { agents: true }),
      ({ name, data }) => {
        // The first event of each connection is `open`, so a list that could not be read is read with the next one.
        if (name === "open" || name === "reset") void load();
        const changed = name === "changes" ? (JSON.parse(data) as Changes).agents : undefined;
        if (changed === undefined) return;
        missed.push(changed);
        setValue((former) => former && applyChanges(former, changed));
      },
      setError,
    );
    return () => {
      ending.abort();
      follower.stop();
    };
  }, []);
  return { value, error };
}

function applyChanges(map: AgentMap, { rows, gone, holders }: AgentChanges): AgentMap {
  return {
    agents: mergeRows(map.agents, rows, gone, (row) => row.agent.id),
    holders: { ...map.holders, ...holders },
  };
}

/** Jobs that hold slots or wait; the stream begins with all of them. */
export function useQueue(): Kept<Job[]> {
  const [value, setValue] = useState<Job[] | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  useEffect(() => {
    const follower = follow(
      addressOf("/api/v1/stream", {}, { queue: true }),
      ({ name, data }) => {
        const queue = name === "changes" ? (JSON.parse(data) as Changes).queue : undefined;
        if (name === "open") setValue((former) => former ?? []);
        if (queue === undefined) return;
        setValue((former) =>
          queue.isWhole ? queue.rows : mergeRows(former ?? [], queue.rows, queue.gone, (job) => job.trialId),
        );
      },
      setError,
    );
    return follower.stop;
  }, []);
  return { value, error };
}
