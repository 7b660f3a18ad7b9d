/** The first view: what runs, what waits and why, and what failed lately. Kept up to date by the stream. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Retry } from "../api/again";
import { ApiError, api } from "../api/client";
import type { Job } from "../api/live_parts";
import { subscribe } from "../api/live_store";
import { mergeQueue } from "../lib/changes";
import { allOf } from "../lib/filter";
import { changed, divide, FAILED_SHOWN, reasonsOf } from "../lib/home_rows";
import { quoted } from "../lib/list_query";
import type { Row } from "../lib/row_list";
import { formatNumber } from "../lib/text";
import { Age, Command, Empty, Loading, Name, Problem, StateBadge } from "../parts/basic";
import { href, place, setQuery } from "../router";
import { user } from "../session";

const LIVE_READ = 500;
const ROWS_SHOWN = 50;
const FIELDS = "id,name,owner,state,outcome,startTime,endTime,reason,progress,batches,numTrials,metric,best,failure";
const BASE = "kind = TRAINING and archived = false";
const FAILED = "outcome = FAILED";
const LIVE = "state != TERMINAL";

interface State {
  key: string;
  rows: Map<number, Row> | null;
  jobs: Job[];
  error: ApiError | null;
}

export function Home() {
  const isMine = place.value.query.get("of") !== "all";
  const { rows, jobs, error } = useHome(isMine ? `owner = ${quoted(user.value?.username ?? "")}` : "");
  const home = rows === null ? null : divide(rows.values());
  const reasons = reasonsOf(jobs);
  return (
    <>
      <div class="row">
        <h1>Home</h1>
        <Choice isMine={isMine} />
      </div>
      <Problem error={error} />
      {home === null ? (
        error === null && <Loading />
      ) : (
        <>
          <Part
            title="Running"
            rows={home.running}
            last={["Best", (row) => (row.best === null ? "–" : `${row.metric} ${formatNumber(Number(row.best))}`)]}
            empty={
              <>
                Nothing runs. Start something: <Command text="gangline experiment create CONFIG.yaml FOLDER" />
              </>
            }
          />
          <Part
            title="Waiting"
            rows={home.waiting}
            last={["Why", (row) => reasons.get(row.id) ?? (row.state === "PAUSED" ? "it is paused" : "–")]}
            empty={<>Nothing waits.</>}
          />
          <Failed rows={home.failed} isMine={isMine} />
        </>
      )}
    </>
  );
}

function useHome(owner: string): State {
  const [round, setRound] = useState(0);
  const key = `${round} ${owner}`;
  const [state, setState] = useState<State>({ key, rows: null, jobs: [], error: null });
  useEffect(() => {
    const ending = new AbortController();
    let unsubscribe = () => {};
    const retry = new Retry();
    const read = (filter: string, sort: string, limit: number) =>
      api.get("/api/v1/tables/{table}", {
        parts: { table: "experiments" },
        query: { filter: allOf([BASE, owner, filter]), sort, limit, fields: FIELDS },
        signal: ending.signal,
      });
    const begin = async () => {
      try {
        const [live, failed] = await Promise.all([read(LIVE, "", LIVE_READ), read(FAILED, "-endTime", FAILED_SHOWN)]);
        const rows = [...live.rows, ...failed.rows] as unknown as Row[];
        setState({ key, rows: new Map(rows.map((row) => [row.id, row])), jobs: [], error: null });
        unsubscribe = subscribe({
          parts: { experiments: { filter: allOf([BASE, owner, `${LIVE} or ${FAILED}`]), fields: FIELDS }, queue: true },
          cursor: live.cursor,
          onChanges: ({ experiments, queue }) =>
            setState((former) => ({
              ...former,
              rows: experiments && former.rows ? changed(former.rows, experiments) : former.rows,
              jobs: queue ? mergeQueue(former.jobs, queue) : former.jobs,
            })),
          onReset: () => setRound((number) => number + 1),
        });
      } catch (failure) {
        if (ending.signal.aborted) return;
        if (!(failure instanceof ApiError)) throw failure;
        setState((former) => ({ ...former, error: failure }));
        if (failure.isTemporary) retry.soon(begin);
      }
    };
    void begin();
    return () => {
      ending.abort();
      retry.end();
      unsubscribe();
    };
  }, [key, owner]);
  return state;
}

function Choice({ isMine }: { isMine: boolean }) {
  const choose = (of: string) => () => setQuery({ of });
  return (
    <fieldset class="choice">
      <legend class="hidden">Whose work</legend>
      <button type="button" aria-pressed={isMine} onClick={choose("")}>
        Mine
      </button>
      <button type="button" aria-pressed={!isMine} onClick={choose("all")}>
        All
      </button>
    </fieldset>
  );
}

interface PartProps {
  title: string;
  rows: Row[];
  last: [string, (row: Row) => string];
  empty: ComponentChildren;
}

function Part({ title, rows, last, empty }: PartProps) {
  const id = title.toLowerCase();
  return (
    <section aria-labelledby={id}>
      <h2 id={id}>
        {title} ({rows.length})
      </h2>
      {rows.length === 0 ? (
        <Empty>{empty}</Empty>
      ) : (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a table wider than the screen is scrolled by keyboard
        <section class="scroll" aria-labelledby={id} tabIndex={0}>
          <table>
            <thead>
              <tr>
                {["Experiment", "Owner", "State", "Trials", "Progress", "Since", last[0]].map((head) => (
                  <th key={head} scope="col">
                    {head}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.slice(0, ROWS_SHOWN).map((row) => (
                <tr key={row.id}>
                  <td>
                    <a href={href(`/experiments/${row.id}`)}>
                      {row.id} <Name text={String(row.name)} />
                    </a>
                  </td>
                  <td>
                    <Name text={String(row.owner)} />
                  </td>
                  <td>
                    <StateBadge state={String(row.state)} outcome={row.outcome as string | null} />
                  </td>
                  <td class="number">{String(row.numTrials)}</td>
                  <td class="number">{progressOf(row)}</td>
                  <td>
                    <Age at={row.startTime as string | null} />
                  </td>
                  <td class="reason">{last[1](row)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
      {rows.length > ROWS_SHOWN ? (
        <p>
          {rows.length - ROWS_SHOWN} more are <a href={href("/experiments?filter=state+!%3D+TERMINAL")}>in the list</a>.
        </p>
      ) : null}
    </section>
  );
}

/** Returns how much is done: a share, or batches where the length is not known. */
function progressOf(row: Row): string {
  return row.progress === null ? `${row.batches} batches` : `${Math.floor(Number(row.progress) * 100)} %`;
}

function Failed({ rows, isMine }: { rows: Row[]; isMine: boolean }) {
  const query = new URLSearchParams({ filter: FAILED, sort: "-endTime", ...(isMine ? { of: "mine" } : {}) });
  return (
    <section aria-labelledby="failed">
      <h2 id="failed">Failed lately</h2>
      {rows.length === 0 ? (
        <Empty>No experiment in the list has failed.</Empty>
      ) : (
        <>
          <ul class="plain">
            {rows.map((row) => (
              <li key={row.id} class="row">
                <StateBadge state={String(row.state)} outcome={row.outcome as string | null} />
                <a href={href(`/experiments/${row.id}`)}>
                  {row.id} <Name text={String(row.name)} />
                </a>
                <span class="quiet">
                  <Age at={row.endTime as string | null} />
                </span>
                <span class="reason">{row.reason === null ? "" : String(row.reason)}</span>
              </li>
            ))}
          </ul>
          <p>
            <a href={href(`/experiments?${query}`)}>All that failed</a>
          </p>
        </>
      )}
    </section>
  );
}
