/** The audit log, for administrators: who changed what, when and from where, and what was refused. */

import { useState } from "preact/hooks";
import { addressOf, api, download, type Schemas } from "../api/client";
import { useLive } from "../api/live";
import { type AuditFilter, changeLine, commandOf, listChanges, localMinute, readFilter, utcOf } from "../lib/audit";
import { Empty, Loading, Name, Problem, Time } from "../parts/basic";
import { DraftInput } from "../parts/draft_input";
import { Head, Same, TableFrame } from "../parts/form";
import { href, place, setQuery } from "../router";
import { user } from "../session";
import { complain } from "../toast";

type AuditRecord = Schemas["AuditRecord"];
const PAGE_ROWS = 100;
const TITLES = ["Time", "User", "Action", "Object", "Outcome", "Changes", "From", "Token", "Request"];
const OUTCOMES: Record<string, string> = { "": "any", done: "done", repeated: "repeated", failed: "failed or refused" };
/** Longer changes of a record are folded. */
const MAX_SHOWN = 120;

export function Audit() {
  return (
    <>
      <h1>Audit log</h1>
      {user.value?.admin ? <Records /> : <p class="quiet">Only administrators read the audit log.</p>}
    </>
  );
}

function Records() {
  const query = place.value.query;
  const filter = readFilter(query);
  const before = query.get("before") ?? "";
  const asked = { ...filter, limit: PAGE_ROWS, before };
  // Records before a given one stay as they are.
  const live = useLive(
    JSON.stringify(asked),
    (signal) => api.get("/api/v1/audit", { query: asked, signal }),
    before === "" ? 10 : 0,
  );
  const records = live.value?.records ?? [];
  return (
    <>
      <Filter filter={filter} />
      <Problem error={live.error} />
      {live.value === null && live.error === null ? <Loading /> : null}
      {live.value !== null && records.length === 0 ? <Empty>No record matches.</Empty> : null}
      {records.length === 0 ? null : (
        <TableFrame label="Records">
          <Head titles={TITLES} />
          <tbody>
            {records.map((record) => (
              <Row key={record.id} record={record} filter={filter} />
            ))}
          </tbody>
        </TableFrame>
      )}
      <nav class="row" aria-label="Parts of the list">
        {before === "" ? null : <a href={hrefOf(filter)}>Newest records</a>}
        {live.value?.next ? <a href={hrefOf(filter, live.value.next)}>Older records</a> : null}
      </nav>
      <Same command={commandOf(filter)} />
    </>
  );
}

/** Returns the address of the view with a filter. before: where the list begins. */
function hrefOf(filter: AuditFilter, before = ""): string {
  const values = Object.entries({ ...filter, before }).filter(([, value]) => value !== "");
  return href(`/audit${values.length === 0 ? "" : `?${new URLSearchParams(values)}`}`);
}

function Filter({ filter }: { filter: AuditFilter }) {
  const [isBusy, setBusy] = useState(false);
  const set = (changes: Partial<AuditFilter>) => setQuery({ ...changes, before: "" });
  const save = async () => {
    setBusy(true);
    await download(addressOf("/api/v1/audit.csv", {}, filter), "audit.csv").catch(complain);
    setBusy(false);
  };
  const outcomes = filter.outcome in OUTCOMES ? OUTCOMES : { ...OUTCOMES, [filter.outcome]: filter.outcome };
  const isFiltered = Object.values(filter).some((value) => value !== "");
  return (
    <search class="row">
      <DraftInput label="User" value={filter.user} onCommit={(text) => set({ user: text.trim() })} />
      <DraftInput
        label="Action"
        value={filter.action}
        placeholder="experiment.kill"
        onCommit={(text) => set({ action: text.trim() })}
      />
      <DraftInput
        label="Object"
        value={filter.object}
        placeholder="experiment/7"
        onCommit={(text) => set({ object: text.trim() })}
      />
      <label>
        Outcome{" "}
        <select value={filter.outcome} onChange={(event) => set({ outcome: event.currentTarget.value })}>
          {Object.entries(outcomes).map(([value, title]) => (
            <option key={value} value={value}>
              {title}
            </option>
          ))}
        </select>
      </label>
      <DraftInput label="Address" value={filter.address} onCommit={(text) => set({ address: text.trim() })} />
      <TimeInput label="From" value={filter.since} onCommit={(since) => set({ since })} />
      <TimeInput label="Until" value={filter.until} onCommit={(until) => set({ until })} />
      {isFiltered ? <a href={hrefOf(readFilter(new URLSearchParams()))}>All records</a> : null}
      <button type="button" disabled={isBusy} onClick={save}>
        Save as CSV
      </button>
    </search>
  );
}

interface TimeInputProps {
  label: string;
  /** In UTC. */
  value: string;
  onCommit: (utc: string) => void;
}

/** A time in the reader's zone. An incomplete one counts as none. */
function TimeInput({ label, value, onCommit }: TimeInputProps) {
  return (
    <label>
      {label}{" "}
      <input
        type="datetime-local"
        value={localMinute(value)}
        onChange={(event) => onCommit(utcOf(event.currentTarget.value))}
      />
    </label>
  );
}

function Row({ record, filter }: { record: AuditRecord; filter: AuditFilter }) {
  const object = record.objectId === "" ? record.objectKind : `${record.objectKind}/${record.objectId}`;
  const isUser = record.actorKind === "user";
  return (
    <tr>
      <th scope="row">
        <Time at={record.time} />
      </th>
      <td>
        {record.actor === "" ? null : (
          <FilterLink filter={{ ...filter, user: record.actor }} what="user" text={record.actor} />
        )}
        {isUser ? null : <span class="quiet"> {record.actorKind}</span>}
      </td>
      <td>
        <FilterLink filter={{ ...filter, action: record.action }} what="action" text={record.action} />
      </td>
      <td>
        {object === "" ? "–" : <FilterLink filter={{ ...filter, object }} what="object" text={object} />}
        {record.workspace === "" ? null : (
          <span class="quiet">
            {" "}
            in <Name text={record.workspace} />
          </span>
        )}
      </td>
      <td>
        <Outcome outcome={record.outcome} />
      </td>
      <td class="reason">
        <Changes changes={record.changes} />
      </td>
      <td>
        {record.address || "–"} <span class="quiet">{record.surface}</span>
      </td>
      <td>{record.credential || "–"}</td>
      <td>{record.requestId === "" ? "–" : <Name text={record.requestId} />}</td>
    </tr>
  );
}

/** A value of a record, which leads to all records that have it. */
function FilterLink({ filter, what, text }: { filter: AuditFilter; what: string; text: string }) {
  return (
    <a href={hrefOf(filter)} aria-label={`Only ${what} ${text}`}>
      <Name text={text} />
    </a>
  );
}

function Outcome({ outcome }: { outcome: string }) {
  const isFailed = !(outcome in OUTCOMES);
  return (
    <span class={`badge ${isFailed ? "failed" : ""}`}>
      <span aria-hidden="true">{isFailed ? "✗" : "✓"} </span>
      {outcome}
    </span>
  );
}

function Changes({ changes }: { changes: Record<string, unknown> }) {
  const listed = listChanges(changes);
  if (listed.length === 0) return <>–</>;
  const lines = listed.map(changeLine);
  const whole = lines.join(", ");
  if (whole.length <= MAX_SHOWN) return <bdi>{whole}</bdi>;
  return (
    <details>
      <summary>
        <Name text={listed.map((change) => change.field).join(", ")} />
      </summary>
      <ul class="plain">
        {listed.map((change, index) => (
          <li key={change.field}>
            <bdi>{lines[index]}</bdi>
          </li>
        ))}
      </ul>
    </details>
  );
}
