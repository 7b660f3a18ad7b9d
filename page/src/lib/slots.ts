/** PURE: what the map of the cluster says about each slot. */

import type { Schemas } from "../api/client";

type Agent = Schemas["Agent"];
type Slot = Schemas["Slot"];
type Holder = Schemas["SlotHolder"];

export interface SlotView {
  id: string;
  agentId: string;
  /** The part of the id after the agent's, by which the API names it. */
  name: string;
  pool: string;
  status: SlotStatus;
  /** Why it takes no work; empty if it does, or if nothing more is known. */
  problem: string;
  kind: string;
  model: string;
  availability: Schemas["Availability"];
  holder: Holder | null;
}

export type SlotStatus = "free" | "held" | "draining" | "disabled" | "faulty" | "lost" | "absent" | "quarantined";

/** A mark and a word for each status, so that its colour says nothing alone. */
export const STATUS_MARKS: Record<SlotStatus, string> = {
  free: "○",
  held: "●",
  draining: "▽",
  disabled: "⊘",
  faulty: "✗",
  lost: "?",
  absent: "–",
  quarantined: "‖",
};

/** Returns the slots of all agents, in the order of their ids. now: in milliseconds since 1970. */
export function listSlots({ agents, holders }: Schemas["AgentMap"], now: number): SlotView[] {
  return [...agents]
    .sort((a, b) => compareIds(a.agent.id, b.agent.id))
    .flatMap(({ agent, allocationIdBySlotId }) => {
      const present = agent.slots.map((slot) => {
        const holder = holders[allocationIdBySlotId[slot.id] ?? ""] ?? null;
        return viewOf(agent, slot, holder, statusOf(agent, slot, allocationIdBySlotId[slot.id] !== undefined, now));
      });
      return [...present, ...agent.absentSlots.map((slot) => viewOf(agent, slot, null, "absent"))];
    });
}

function viewOf(agent: Agent, slot: Slot, holder: Holder | null, status: SlotStatus): SlotView {
  return {
    id: slot.id,
    agentId: agent.id,
    name: slot.id.slice(agent.id.length + 1),
    pool: agent.pool,
    status,
    problem: slot.problem || agent.problem || (status === "quarantined" ? agent.quarantineReason : ""),
    kind: slot.kind,
    model: slot.model,
    availability: slot.availability,
    holder,
  };
}

/** The worst that is known: a faulty slot is that also while work holds it. */
function statusOf(agent: Agent, slot: Slot, isHeld: boolean, now: number): SlotStatus {
  if (agent.state === "LOST") return "lost";
  if (!slot.isHealthy) return "faulty";
  for (const availability of ["DISABLED", "DRAINING"] as const) {
    if (agent.availability === availability || slot.availability === availability) {
      return availability === "DISABLED" ? "disabled" : "draining";
    }
  }
  if (agent.quarantinedUntil !== null && Date.parse(agent.quarantinedUntil) > now) return "quarantined";
  return isHeld ? "held" : "free";
}

/** Returns one line that says all that a square shows. */
export function describeSlot(slot: SlotView): string {
  const holder = slot.holder;
  const held = holder === null ? "" : `, trial ${holder.trialId} of ${holder.owner}: ${holder.experimentName}`;
  const problem = slot.problem === "" ? "" : `, ${slot.problem}`;
  return `${slot.id}: ${slot.status}${held}${problem}, ${slot.model || slot.kind}`;
}

/** Whether the agent, the pool, the trial, the experiment or the user contains the text. */
export function matchesSlot(slot: SlotView, text: string): boolean {
  const wanted = text.toLowerCase();
  const { holder } = slot;
  const texts = [slot.id, slot.pool, slot.status, slot.model];
  if (holder !== null) texts.push(holder.trialId, holder.experimentName, holder.owner);
  return texts.some((each) => each.toLowerCase().includes(wanted));
}

export interface PoolView {
  name: string;
  agents: number;
  slots: number;
  held: number;
  free: number;
  waiting: number;
}

/** Returns the pools that agents or waiting jobs name, in the order of their names. */
export function listPools(slots: SlotView[], jobs: Schemas["Job"][]): PoolView[] {
  const names = new Set([...slots.map((slot) => slot.pool), ...jobs.map((job) => job.resourcePool)]);
  return [...names].sort().map((name) => {
    const own = slots.filter((slot) => slot.pool === name);
    return {
      name,
      agents: new Set(own.map((slot) => slot.agentId)).size,
      slots: own.length,
      held: own.filter((slot) => slot.holder !== null).length,
      free: own.filter((slot) => slot.status === "free").length,
      waiting: jobs.filter((job) => job.resourcePool === name && job.queuePlace > 0).length,
    };
  });
}

/** Orders names by the numbers in them: agent-2 before agent-10. */
export function compareIds(first: string, second: string): number {
  return first.localeCompare(second, "en", { numeric: true });
}
