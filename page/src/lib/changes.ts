/** PURE: lists that are kept up to date by the changes that the stream sends. */

import type { Schemas } from "../api/client";

type AgentMap = Schemas["AgentMap"];

/** Replaces changed rows, appends new ones, and drops those that are gone. */
export function mergeRows<R>(
  rows: R[],
  changed: R[],
  gone: (string | number)[],
  keyOf: (row: R) => string | number,
): R[] {
  const byKey = new Map(rows.map((row) => [keyOf(row), row]));
  for (const row of changed) byKey.set(keyOf(row), row);
  for (const key of gone) byKey.delete(key);
  return [...byKey.values()];
}

/** Returns the jobs of the queue after a change. */
export function mergeQueue<J extends { trialId: string }>(
  jobs: J[],
  { rows, gone, isWhole }: { rows: J[]; gone: string[]; isWhole: boolean },
): J[] {
  return isWhole ? rows : mergeRows(jobs, rows, gone, (job) => job.trialId);
}

/** Returns agents and who holds their slots after a change. Holders that hold no slot any more are dropped. */
export function mergeAgents(
  map: AgentMap,
  { rows, gone, holders }: { rows: AgentMap["agents"]; gone: string[]; holders: AgentMap["holders"] },
): AgentMap {
  const agents = mergeRows(map.agents, rows, gone, (row) => row.agent.id);
  const held = new Set(agents.flatMap((row) => Object.values(row.allocationIdBySlotId)));
  const kept = Object.entries({ ...map.holders, ...holders }).filter(([id]) => held.has(id));
  return { agents, holders: Object.fromEntries(kept) };
}
