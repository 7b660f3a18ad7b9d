/** The trials of an experiment: a virtual table, sorted by the gateway, whose rows stay up to date. */

import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Retry } from "../../api/again";
import { useChanges } from "../../api/changes";
import { ApiError, api } from "../../api/client";
import { MOST_COMPARED } from "../../lib/differences";
import { writeFields } from "../../lib/field_list";
import { formatNumber, formatValue } from "../../lib/text";
import { Command, Empty, Problem, StateBadge } from "../../parts/basic";
import { type Column, VirtualTable } from "../../parts/virtual_table";
import { go, href, place, setQuery } from "../../router";
import { readFields, type StudyRow, type TrialRow } from "./study";

const PAGE_ROWS = 200;
const BASE = ["state", "outcome", "reason", "batches", "best", "bestBatches", "latest", "restarts", "duration"];

export function Trials({ row }: { row: StudyRow }) {
  const [hparams, setHparams] = useState<string[] | null>(null);
  const [selected, setSelected] = useState<string[]>([]);
  const sort = place.value.query.get("sort") ?? "";
  const toggle = (id: string) =>
    setSelected((former) => (former.includes(id) ? former.filter((each) => each !== id) : [...former, id]));
  useEffect(() => {
    readFields(row.id).then(
      (found) => setHparams(found.hparams),
      () => setHparams([]),
    );
  }, [row.id, row.numTrials === 0]);
  const fields = writeFields([...BASE, ...(hparams ?? [])]);
  const table = useTrialRows(row.id, hparams === null ? null : fields, sort);
  const { rows, total, loadMore } = table;
  const needRange = useCallback(
    (_first: number, last: number) => {
      if (rows.length < total && last >= rows.length - 1) loadMore();
    },
    [rows.length, total, loadMore],
  );
  if (row.numTrials === 0)
    return (
      <Empty>
        The scheduler has made no trial yet; why: <Command text={`gangline job explain ${row.id}`} />
      </Empty>
    );
  const columns = columnsOf(row, hparams ?? [], selected, toggle);
  return (
    <>
      <div class="row">
        <SortChoice names={[...BASE, ...(hparams ?? [])]} sort={sort} />
        <button
          type="button"
          disabled={selected.length < 2}
          onClick={() => go(`/compare?trial=${selected.join("&trial=")}`)}
        >
          Compare {selected.length} of at most {MOST_COMPARED}
        </button>
        <Command text={`gangline experiment trials ${row.id}`} />
      </div>
      <Problem error={table.error} />
      <VirtualTable
        label="Trials"
        columns={columns}
        numPinned={2}
        total={total}
        rowAt={(index) => rows[index]}
        keyOf={(trial) => trial.id}
        onRange={needRange}
      />
    </>
  );
}

function columnsOf(
  row: StudyRow,
  hparams: string[],
  selected: string[],
  toggle: (id: string) => void,
): Column<TrialRow>[] {
  const text = (id: string, title: string, width: number): Column<TrialRow> => ({
    id,
    title,
    width,
    cell: (trial) => <span title={formatValue(trial[id])}>{formatValue(trial[id] ?? undefined)}</span>,
  });
  const number = (id: string, title: string): Column<TrialRow> => ({
    id,
    title,
    width: 110,
    isNumber: true,
    cell: (trial) => formatNumber(trial[id] as number | null),
  });
  return [
    {
      id: "select",
      title: "Select",
      width: 64,
      cell: (trial) => (
        <input
          type="checkbox"
          aria-label={`Select trial ${trial.id}`}
          checked={selected.includes(trial.id)}
          disabled={!selected.includes(trial.id) && selected.length >= MOST_COMPARED}
          onChange={() => toggle(trial.id)}
        />
      ),
    },
    { id: "id", title: "Trial", width: 90, cell: (trial) => <a href={href(`/trials/${trial.id}`)}>{trial.id}</a> },
    {
      id: "state",
      title: "State",
      width: 130,
      cell: (trial) => <StateBadge state={trial.state} outcome={trial.outcome} />,
    },
    number("batches", "Batches"),
    number("best", `Best ${row.metric ?? ""}`),
    number("latest", `Newest ${row.metric ?? ""}`),
    number("restarts", "Restarts"),
    ...hparams.map((name) => text(name, name.slice(3), 140)),
    text("reason", "Reason", 360),
  ];
}

function SortChoice({ names, sort }: { names: string[]; sort: string }) {
  const name = sort.replace(/^-/, "");
  const isDown = sort.startsWith("-");
  return (
    <>
      <label>
        Sort by{" "}
        <select value={name} onChange={(event) => setQuery({ sort: (isDown ? "-" : "") + event.currentTarget.value })}>
          <option value="">number</option>
          {names.map((each) => (
            <option key={each} value={each}>
              {each}
            </option>
          ))}
        </select>
      </label>
      <label>
        <input
          type="checkbox"
          checked={isDown}
          disabled={name === ""}
          onChange={() => setQuery({ sort: isDown ? name : `-${name}` })}
        />{" "}
        greatest first
      </label>
    </>
  );
}

interface Rows {
  rows: TrialRow[];
  total: number;
  error: ApiError | null;
  loadMore: () => void;
}

/** Reads pages of the table. Rows that change are replaced in their places; the order is that of the first page. */
export function useTrialRows(experimentId: number, fields: string | null, sort: string): Rows {
  const [state, setState] = useState({ rows: [] as TrialRow[], total: 0, snapshot: "", cursor: "" });
  const [error, setError] = useState<ApiError | null>(null);
  const [round, setRound] = useState(0);
  const isLoading = useRef(false);
  const retry = useMemo(() => new Retry(), []);
  // Changes of rows that have not been read. What is read later may be older.
  const early = useRef(new Map<string, TrialRow>());
  const load = async (offset: number, snapshot: string, signal?: AbortSignal): Promise<ApiError | null> => {
    if (fields === null) return null;
    const query = { experimentId, fields, sort, offset, snapshot, limit: PAGE_ROWS };
    try {
      const page = await api.get("/api/v1/tables/{table}", {
        parts: { table: "trials" },
        query,
        ...(signal === undefined ? {} : { signal }),
      });
      const read = page.rows as unknown as TrialRow[];
      const rows = offset === 0 ? read : read.map((row) => early.current.get(row.id) ?? row);
      setError(null);
      if (offset === 0) {
        early.current = new Map();
        setState({ rows, total: page.total, snapshot: page.snapshot, cursor: page.cursor });
      } else if (page.snapshot !== snapshot) {
        // The gateway keeps the former order no longer, so that the places of the rows mean nothing.
        setRound((former) => former + 1);
      } else {
        // A list that was begun anew meanwhile has other places.
        setState((former) => (former.snapshot === snapshot ? { ...former, rows: [...former.rows, ...rows] } : former));
      }
      return null;
    } catch (failure) {
      if (signal?.aborted) return null;
      if (!(failure instanceof ApiError)) throw failure;
      setError(failure);
      return failure;
    }
  };
  useEffect(() => {
    const ending = new AbortController();
    void load(0, "", ending.signal).then((failure) => {
      if (failure?.isTemporary) retry.soon(() => setRound((former) => former + 1));
      else if (failure === null) retry.succeed();
    });
    return () => {
      ending.abort();
      retry.end();
    };
  }, [experimentId, fields, sort, round]);
  useChanges(
    state.cursor === "" || fields === null ? null : { trials: { experimentId, filter: "", fields } },
    state.cursor,
    ({ trials }) => {
      if (trials === undefined) return;
      const changed = new Map(trials.rows.map((row) => [row.id as string, row as unknown as TrialRow]));
      for (const [id, row] of changed) early.current.set(id, row);
      setState((former) => {
        const isWhole = former.rows.length === former.total;
        const known = new Set(former.rows.map((row) => row.id));
        const added = [...changed.values()].filter((row) => !known.has(row.id));
        const rows = former.rows.map((row) => changed.get(row.id) ?? row);
        return {
          ...former,
          rows: isWhole ? [...rows, ...added] : rows,
          total: former.total + (isWhole ? added.length : 0),
        };
      });
    },
    () => setRound((former) => former + 1),
  );
  const loadMore = useCallback(() => {
    if (isLoading.current) return;
    isLoading.current = true;
    void load(state.rows.length, state.snapshot).finally(() => {
      isLoading.current = false;
    });
  }, [state.rows.length, state.snapshot, fields, sort]);
  return { rows: state.rows, total: state.total, error, loadMore };
}
