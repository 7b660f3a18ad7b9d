/** All experiments: a table with columns to choose, filters, and actions on those that are selected. The address holds
 * the view. */

import { useCallback, useEffect, useState } from "preact/hooks";
import { ApiError, api, type Schemas } from "../api/client";
import { type Layout, moved, readLayout, toggled, writeLayout } from "../lib/columns";
import { count } from "../lib/text";
import { Command, Confirm, Dialog, Empty, Name, Problem, StateBadge, Time } from "../parts/basic";
import { type Column, VirtualTable } from "../parts/virtual_table";
import { href, place, setQuery } from "../router";
import { user } from "../session";
import { complain, say } from "../toast";

type Experiment = Schemas["Experiment"];
type Wanted = NonNullable<Parameters<typeof api.get<"/api/v1/experiments">>[1]>["query"];
type States = NonNullable<NonNullable<Wanted>["states"]>;
const PAGE_ROWS = 200;
const REFRESH_SECONDS = 5;
const STANDARD: Layout = {
  ids: ["select", "id", "name", "state", "owner", "started", "ended", "labels"],
  numPinned: 2,
};
const STATES = ["QUEUED", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELED"];

const ACTIONS = {
  pause: { title: "Pause", command: "pause", isFinal: false },
  activate: { title: "Activate", command: "activate", isFinal: false },
  kill: { title: "Kill", command: "kill", isFinal: true },
  archive: { title: "Archive", command: "archive", isFinal: false },
} as const;
type Action = keyof typeof ACTIONS;

function columnsOf(selected: Set<number>, toggle: (id: number) => void): Column<Experiment>[] {
  return [
    {
      id: "select",
      title: "Select",
      width: 64,
      cell: (row) => (
        <input
          type="checkbox"
          aria-label={`Select experiment ${row.id}`}
          checked={selected.has(row.id)}
          onChange={() => toggle(row.id)}
        />
      ),
    },
    { id: "id", title: "ID", width: 80, cell: (row) => <a href={href(`/experiments/${row.id}`)}>{row.id}</a> },
    { id: "name", title: "Name", width: 300, cell: (row) => <Name text={row.name} /> },
    {
      id: "state",
      title: "State",
      width: 140,
      cell: (row) => <StateBadge state={row.state} outcome={row.outcome} />,
    },
    { id: "owner", title: "Owner", width: 140, cell: (row) => <Name text={row.username} /> },
    { id: "started", title: "Started", width: 180, cell: (row) => <Time at={row.startTime} /> },
    { id: "ended", title: "Ended", width: 180, cell: (row) => <Time at={row.endTime} /> },
    { id: "labels", title: "Labels", width: 200, cell: (row) => row.labels.join(", ") },
    { id: "reason", title: "Reason", width: 360, cell: (row) => <span title={row.reason}>{row.reason}</span> },
    { id: "template", title: "Template", width: 140, cell: (row) => row.template },
  ];
}

export function Experiments() {
  const query = place.value.query;
  const wanted = {
    name: query.get("name") ?? "",
    states: query.getAll("state") as States,
    users: query.get("of") === "mine" ? [user.value?.username ?? ""] : [],
    labels: query.getAll("label"),
  };
  const { rows, total, error, isLoaded, loadMore, reload } = useExperiments(wanted);
  const [selected, setSelected] = useState<Set<number>>(new Set());
  const [isChoosing, setChoosing] = useState(false);
  const toggle = (id: number) => {
    const next = new Set(selected);
    if (!next.delete(id)) next.add(id);
    setSelected(next);
  };
  const columns = columnsOf(selected, toggle);
  const known = columns.map((column) => column.id);
  const layout = readLayout(query.get("columns") ?? "", known, STANDARD);
  const shown = layout.ids
    .map((id) => columns.find((column) => column.id === id))
    .filter((column) => column !== undefined);
  const isFiltered = wanted.name !== "" || wanted.states.length + wanted.users.length + wanted.labels.length > 0;
  return (
    <>
      <h1>Experiments</h1>
      <Filters />
      <div class="row">
        <span role="status">
          {isLoaded ? count(total, "experiment") : "Loading…"}
          {selected.size > 0 ? `, ${selected.size} selected` : ""}
        </span>
        <Actions
          ids={[...selected]}
          onDone={() => {
            setSelected(new Set());
            reload();
          }}
        />
        <button type="button" onClick={() => setChoosing(true)}>
          Columns
        </button>
      </div>
      <Problem error={error} />
      {isLoaded && rows.length === 0 ? (
        <Empty>
          {isFiltered ? (
            "No experiment matches these filters."
          ) : (
            <>
              There is no experiment yet. Start one: <Command text="gangline experiment create -f CONFIG.yaml FOLDER" />
            </>
          )}
        </Empty>
      ) : (
        <VirtualTable
          label="Experiments"
          columns={shown}
          numPinned={layout.numPinned}
          rows={rows}
          total={total}
          keyOf={(row) => row.id}
          onEnd={loadMore}
        />
      )}
      {isChoosing ? <ColumnChoice columns={columns} layout={layout} onClose={() => setChoosing(false)} /> : null}
    </>
  );
}

interface Loaded {
  key: string;
  rows: Experiment[];
  total: number;
  isLoaded: boolean;
  error: ApiError | null;
}

/** The experiments that match, the newest first. The first page is read again every few seconds; further ones when the
 * reader comes near them. */
function useExperiments(wanted: NonNullable<Wanted>) {
  const key = JSON.stringify(wanted);
  const empty: Loaded = { key, rows: [], total: 0, isLoaded: false, error: null };
  const [state, setState] = useState<Loaded>(empty);
  const [round, setRound] = useState(0);
  useEffect(() => {
    const ending = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const load = async () => {
      try {
        const query = { ...wanted, limit: PAGE_ROWS };
        const page = await api.get("/api/v1/experiments", { query, signal: ending.signal });
        setState((former) => ({ ...joined(key, former, page.experiments), total: page.pagination.total }));
      } catch (failure) {
        if (ending.signal.aborted) return;
        if (!(failure instanceof ApiError)) throw failure;
        setState((former) => ({ ...former, key, isLoaded: true, error: failure }));
      }
      timer = setTimeout(load, REFRESH_SECONDS * 1000);
    };
    void load();
    return () => {
      ending.abort();
      clearTimeout(timer);
    };
  }, [key, round]);
  const current = state.key === key ? state : empty;
  const beforeId = current.rows.at(-1)?.id;
  const loadMore = useCallback(() => {
    if (beforeId === undefined) return;
    api
      .get("/api/v1/experiments", { query: { ...wanted, limit: PAGE_ROWS, beforeId } })
      .then(
        (page) =>
          setState((former) =>
            former.key === key && former.rows.at(-1)?.id === beforeId
              ? { ...former, rows: [...former.rows, ...page.experiments] }
              : former,
          ),
        complain,
      );
  }, [key, beforeId]);
  return { ...current, loadMore, reload: () => setRound((former) => former + 1) };
}

/** The new first page, and what was read beyond it. */
function joined(key: string, former: Loaded, first: Experiment[]): Loaded {
  const lastId = first.at(-1)?.id ?? 0;
  const further = former.key === key && first.length === PAGE_ROWS ? former.rows.filter((row) => row.id < lastId) : [];
  return { key, rows: [...first, ...further], total: 0, isLoaded: true, error: null };
}

function Filters() {
  const query = place.value.query;
  return (
    <search class="row">
      <label>
        Name contains{" "}
        <input
          type="search"
          value={query.get("name") ?? ""}
          onInput={(event) => setQuery({ name: event.currentTarget.value })}
        />
      </label>
      <label>
        State{" "}
        <select value={query.get("state") ?? ""} onChange={(event) => setQuery({ state: event.currentTarget.value })}>
          <option value="">all</option>
          {STATES.map((state) => (
            <option key={state} value={state}>
              {state}
            </option>
          ))}
        </select>
      </label>
      <label>
        Label{" "}
        <input value={query.get("label") ?? ""} onChange={(event) => setQuery({ label: event.currentTarget.value })} />
      </label>
      <label>
        <input
          type="checkbox"
          checked={query.get("of") === "mine"}
          onChange={(event) => setQuery({ of: event.currentTarget.checked ? "mine" : "" })}
        />{" "}
        only mine
      </label>
    </search>
  );
}

/** Buttons that act on experiments, one after another. */
export function Actions({ ids, onDone }: { ids: number[]; onDone: () => void }) {
  const [asked, setAsked] = useState<Action | null>(null);
  const run = async (action: Action) => {
    let numDone = 0;
    for (const id of ids) {
      try {
        await api.post(`/api/v1/experiments/{experiment_id}/${action}`, { parts: { experiment_id: id } });
        numDone++;
      } catch (failure) {
        complain(failure);
      }
    }
    if (numDone > 0) say(`${ACTIONS[action].title}: done for ${count(numDone, "experiment")}`);
    onDone();
  };
  return (
    <fieldset class="choice" disabled={ids.length === 0}>
      <legend class="hidden">Actions</legend>
      {(Object.keys(ACTIONS) as Action[]).map((action) => (
        <button
          key={action}
          type="button"
          class={ACTIONS[action].isFinal ? "danger" : ""}
          onClick={() => (ACTIONS[action].isFinal ? setAsked(action) : void run(action))}
        >
          {ACTIONS[action].title}
        </button>
      ))}
      {asked === null ? null : (
        <Confirm
          title={`${ACTIONS[asked].title} ${count(ids.length, "experiment")}?`}
          action={ACTIONS[asked].title}
          onConfirm={() => run(asked)}
          onClose={() => setAsked(null)}
        >
          <p>Their trials end at once, and what they trained since their last checkpoint is lost.</p>
          <p>
            The same on the command line: <Command text={`gangline experiment ${asked} ${ids.join(" ")}`} />
          </p>
        </Confirm>
      )}
    </fieldset>
  );
}

interface ColumnChoiceProps {
  columns: Column<Experiment>[];
  layout: Layout;
  onClose: () => void;
}

function ColumnChoice({ columns, layout, onClose }: ColumnChoiceProps) {
  const set = (next: Layout) => setQuery({ columns: writeLayout(next) });
  const hidden = columns.filter((column) => !layout.ids.includes(column.id));
  const titleOf = (id: string) => columns.find((column) => column.id === id)?.title ?? id;
  return (
    <Dialog title="Columns" onClose={onClose}>
      <ul class="plain">
        {layout.ids.map((id, index) => (
          <li key={id} class="row">
            <label>
              <input type="checkbox" checked onChange={() => set(toggled(layout, id))} /> {titleOf(id)}
            </label>
            <button
              type="button"
              class="plain"
              aria-label={`Move ${titleOf(id)} left`}
              onClick={() => set(moved(layout, id, -1))}
            >
              ←
            </button>
            <button
              type="button"
              class="plain"
              aria-label={`Move ${titleOf(id)} right`}
              onClick={() => set(moved(layout, id, 1))}
            >
              →
            </button>
            {index < layout.numPinned ? <span class="quiet">pinned</span> : null}
          </li>
        ))}
        {hidden.map((column) => (
          <li key={column.id}>
            <label>
              <input type="checkbox" checked={false} onChange={() => set(toggled(layout, column.id))} /> {column.title}
            </label>
          </li>
        ))}
      </ul>
      <label>
        Columns that stay at the left{" "}
        <select
          value={layout.numPinned}
          onChange={(event) => set({ ...layout, numPinned: Number(event.currentTarget.value) })}
        >
          {[0, 1, 2, 3].map((number) => (
            <option key={number} value={number}>
              {number}
            </option>
          ))}
        </select>
      </label>
      <div class="row end">
        <button type="button" onClick={() => setQuery({ columns: "" })}>
          Standard
        </button>
        <button type="button" class="main" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
