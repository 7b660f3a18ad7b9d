/** Agents and slots as a map, with a table behind it. Administrators take them out of use and back. */

import { useState } from "preact/hooks";
import { useAgents } from "../api/changes";
import { api, type Schemas } from "../api/client";
import {
  compareIds,
  describeSlot,
  listSlots,
  matchesSlot,
  type SlotStatus,
  type SlotView,
  STATUS_MARKS,
} from "../lib/slots";
import { count } from "../lib/text";
import { Confirm, Empty, Loading, Name, Problem } from "../parts/basic";
import { Head, Same, TableFrame } from "../parts/form";
import { href, place, setQuery } from "../router";
import { user } from "../session";
import { say } from "../toast";

type Agent = Schemas["Agent"];
type Action = "enable" | "drain" | "disable";

const TITLES: Record<Action, string> = { enable: "Enable", drain: "Drain", disable: "Disable" };
const TABLE_ROWS = 500;

/** An agent, or a slot of one, and what is to be done with it. */
interface Asked {
  agentId: string;
  slot: SlotView | null;
  action: Action;
}

export function SlotMap() {
  const { value, error } = useAgents();
  const [asked, setAsked] = useState<Asked | null>(null);
  if (value === null) return error ? <Problem error={error} /> : <Loading />;
  const text = place.value.query.get("text") ?? "";
  const all = listSlots(value, Date.now());
  const slots = all.filter((slot) => matchesSlot(slot, text));
  const shownIds = new Set(slots.map((slot) => slot.agentId));
  const agents = value.agents
    .map((view) => view.agent)
    .filter((agent) => shownIds.has(agent.id) || (text === "" && agent.slots.length === 0))
    .sort((a, b) => compareIds(a.id, b.id));
  const isAdmin = user.value?.admin ?? false;
  return (
    <>
      <Problem error={error} />
      <search class="row">
        <label>
          Agent, pool, state, trial or user contains{" "}
          <input type="search" value={text} onInput={(event) => setQuery({ text: event.currentTarget.value })} />
        </label>
        <span role="status">{summarize(slots, all.length)}</span>
      </search>
      <Legend slots={slots} />
      {isAdmin ? null : <p class="quiet">Only administrators enable, drain and disable agents and slots.</p>}
      {agents.length === 0 ? (
        <Empty>
          {text === "" ? "No agent has registered. Start one on each host: gangline-agent" : "No slot matches."}
        </Empty>
      ) : null}
      <ul class="plain agents">
        {agents.map((agent) => (
          <AgentCard
            key={agent.id}
            agent={agent}
            slots={slots.filter((slot) => slot.agentId === agent.id)}
            ask={isAdmin ? (action) => setAsked({ agentId: agent.id, slot: null, action }) : null}
          />
        ))}
      </ul>
      <SlotTable
        slots={slots}
        ask={isAdmin ? (slot, action) => setAsked({ agentId: slot.agentId, slot, action }) : null}
      />
      <Same command="gangline slot list" />
      {asked === null ? null : <AskedDialog asked={asked} onClose={() => setAsked(null)} />}
    </>
  );
}

function summarize(slots: SlotView[], total: number): string {
  const held = slots.filter((slot) => slot.holder !== null).length;
  const shown = slots.length === total ? count(total, "slot") : `${slots.length} of ${count(total, "slot")}`;
  return `${shown}, ${held} held`;
}

function Legend({ slots }: { slots: SlotView[] }) {
  const numbers = new Map<SlotStatus, number>();
  for (const slot of slots) numbers.set(slot.status, (numbers.get(slot.status) ?? 0) + 1);
  return (
    <ul class="plain row" aria-label="Slots by state">
      {[...numbers].map(([status, number]) => (
        <li key={status}>
          <span class={`slot ${status}`} aria-hidden="true">
            {STATUS_MARKS[status]}
          </span>{" "}
          {number} {status}
        </li>
      ))}
    </ul>
  );
}

interface CardProps {
  agent: Agent;
  slots: SlotView[];
  /** null for callers who may change nothing. */
  ask: ((action: Action) => void) | null;
}

function AgentCard({ agent, slots, ask }: CardProps) {
  const problems = [agent.problem, agent.quarantinedUntil ? agent.quarantineReason : ""].filter((each) => each !== "");
  return (
    <li class="agent">
      <div class="row">
        <h2>
          <Name text={agent.id} />
        </h2>
        <span class="quiet">
          {agent.pool}, {agent.state.toLowerCase()}, {agent.availability.toLowerCase()}
        </span>
      </div>
      {problems.map((problem) => (
        <p key={problem} class="problem">
          {problem}
        </p>
      ))}
      <div class="slots">
        {slots.map((slot) => (
          <Square key={slot.id} slot={slot} />
        ))}
      </div>
      {ask === null ? null : <ActionButtons name={agent.id} availability={agent.availability} ask={ask} />}
    </li>
  );
}

function Square({ slot }: { slot: SlotView }) {
  const text = describeSlot(slot);
  return slot.holder === null ? (
    <span class={`slot ${slot.status}`} role="img" aria-label={text} title={text}>
      {STATUS_MARKS[slot.status]}
    </span>
  ) : (
    <a class={`slot ${slot.status}`} aria-label={text} title={text} href={href(`/trials/${slot.holder.trialId}`)}>
      {STATUS_MARKS[slot.status]}
    </a>
  );
}

interface ButtonsProps {
  name: string;
  availability: Schemas["Availability"];
  ask: (action: Action) => void;
}

function ActionButtons({ name, availability, ask }: ButtonsProps) {
  const possible: Action[] = [];
  if (availability !== "ENABLED") possible.push("enable");
  if (availability === "ENABLED") possible.push("drain");
  if (availability !== "DISABLED") possible.push("disable");
  return (
    <span class="row">
      {possible.map((action) => (
        <button key={action} type="button" aria-label={`${TITLES[action]} ${name}`} onClick={() => ask(action)}>
          {TITLES[action]}
        </button>
      ))}
    </span>
  );
}

function SlotTable({ slots, ask }: { slots: SlotView[]; ask: ((slot: SlotView, action: Action) => void) | null }) {
  // A closed table of a large cluster costs nothing.
  const [isOpen, setOpen] = useState(false);
  return (
    <details open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Table of slots</summary>
      {isOpen ? (
        <>
          <TableFrame label="Table of slots">
            <Head titles={["Slot", "Pool", "State", "Trial", "Experiment", "User", "Device", "Problem", "Actions"]} />
            <tbody>
              {slots.slice(0, TABLE_ROWS).map((slot) => (
                <SlotRow key={slot.id} slot={slot} ask={ask} />
              ))}
            </tbody>
          </TableFrame>
          {slots.length > TABLE_ROWS ? <p>{slots.length - TABLE_ROWS} more slots; search for them above.</p> : null}
        </>
      ) : null}
    </details>
  );
}

function SlotRow({ slot, ask }: { slot: SlotView; ask: ((slot: SlotView, action: Action) => void) | null }) {
  const { holder } = slot;
  return (
    <tr>
      <th scope="row">
        <Name text={slot.id} />
      </th>
      <td>
        <Name text={slot.pool} />
      </td>
      <td>
        {STATUS_MARKS[slot.status]} {slot.status}
      </td>
      <td>{holder === null ? "–" : <a href={href(`/trials/${holder.trialId}`)}>{holder.trialId}</a>}</td>
      <td>
        {holder === null ? (
          "–"
        ) : (
          <a href={href(`/experiments/${holder.experimentId}`)}>
            <Name text={holder.experimentName} />
          </a>
        )}
      </td>
      <td>{holder === null ? "–" : <Name text={holder.owner} />}</td>
      <td>
        <Name text={slot.model || slot.kind} />
      </td>
      <td class="reason">{slot.problem || "–"}</td>
      <td>
        {ask === null ? (
          "for administrators"
        ) : (
          <ActionButtons name={slot.id} availability={slot.availability} ask={(action) => ask(slot, action)} />
        )}
      </td>
    </tr>
  );
}

const EFFECTS: Record<Action, string> = {
  enable: "Work may start there again.",
  drain: "What runs there goes on to its end; no other work starts there.",
  disable: "No more work starts there. What runs there checkpoints, and waits for other slots.",
};

function AskedDialog({ asked, onClose }: { asked: Asked; onClose: () => void }) {
  const { agentId, slot, action } = asked;
  const name = slot === null ? agentId : slot.id;
  const group = slot === null ? "agent" : "slot";
  const command = action === "enable" ? `enable ${name}` : `disable ${name}${action === "drain" ? " --drain" : ""}`;
  const confirm = async () => {
    const body = { drain: action === "drain" };
    const parts = { agent_id: agentId };
    if (slot === null) {
      if (action === "enable") await api.post("/api/v1/agents/{agent_id}/enable", { parts });
      else await api.post("/api/v1/agents/{agent_id}/disable", { parts, body });
    } else {
      const slotParts = { ...parts, slot_id: slot.name };
      if (action === "enable") await api.post("/api/v1/agents/{agent_id}/slots/{slot_id}/enable", { parts: slotParts });
      else await api.post("/api/v1/agents/{agent_id}/slots/{slot_id}/disable", { parts: slotParts, body });
    }
    say(`${TITLES[action]}: done for ${name}`);
  };
  return (
    <Confirm title={`${TITLES[action]} ${name}?`} action={TITLES[action]} onConfirm={confirm} onClose={onClose}>
      <p>{EFFECTS[action]}</p>
      <Same command={`gangline ${group} ${command}`} />
    </Confirm>
  );
}
