/** Up to 20 trials beside one another: their curves, hyperparameters and newest metrics. The address names them, as
 * trials or as experiments, which stand for their best trials. */

import { api } from "../api/client";
import { useLive } from "../api/live";
import { type Comparison, compare, MOST_COMPARED } from "../lib/differences";
import { writeFields } from "../lib/field_list";
import { formatValue } from "../lib/text";
import { Empty, Loading, Name, Problem } from "../parts/basic";
import { Tabs } from "../parts/tabs";
import { href, place, setQuery } from "../router";
import { CurvesOf, Swatch } from "./experiment/curves_tab";
import type { TrialRow } from "./experiment/study";

const FIELDS = [
  "experimentId",
  "experimentName",
  "owner",
  "state",
  "outcome",
  "metric",
  "best",
  "bestBatches",
  "batches",
  "duration",
  "restarts",
  "slots",
  "pool",
  "seed",
];
/** Fields that name the trials, and stand in the head of the table. */
const HEAD = ["id", "experimentId", "experimentName"];

export function Compare() {
  const query = place.value.query;
  const trialIds = query.getAll("trial");
  const experimentIds = query.getAll("experiment");
  const key = JSON.stringify([trialIds, experimentIds]);
  const { value: trials, error } = useLive(key, (signal) => load(trialIds, experimentIds, signal), 0);
  if (trialIds.length + experimentIds.length === 0) {
    return (
      <>
        <h1>Compare</h1>
        <Empty>
          Select trials in the table of an experiment, or experiments in <a href={href("/experiments")}>their list</a>,
          or name them in the address: <code>?trial=7.1&amp;trial=7.2</code> or{" "}
          <code>?experiment=7&amp;experiment=8</code>.
        </Empty>
      </>
    );
  }
  const first = trials?.[0];
  return (
    <>
      <h1>Compare {trials === null ? "" : `${trials.length} trials`}</h1>
      <Problem error={error} />
      {trialIds.length + experimentIds.length > MOST_COMPARED ? <p>The first {MOST_COMPARED} are compared.</p> : null}
      {trials === null ? (
        error === null && <Loading />
      ) : first === undefined ? (
        <Empty>None of them exists, or none of the experiments has a trial yet.</Empty>
      ) : (
        <Tabs
          label="Compare"
          tabs={[
            { id: "table", title: "Table", show: () => <Table trials={trials} /> },
            {
              id: "curves",
              title: "Curves",
              show: () => (
                <CurvesOf
                  trialIds={trials.map((trial) => trial.id)}
                  nameOf={(id) => nameOf(trials, id)}
                  bestOf={(id) => trials.find((trial) => trial.id === id)?.best as number | null}
                  metric={String(first.metric ?? "")}
                  isLive={trials.some((trial) => trial.outcome === null)}
                />
              ),
            },
          ]}
        />
      )}
    </>
  );
}

function nameOf(trials: TrialRow[], id: string): string {
  const name = trials.find((trial) => trial.id === id)?.experimentName;
  return name === undefined ? id : `${id} ${name}`;
}

/** Reads the trials, and the best trial of each experiment, in the order of the address. */
async function load(trialIds: string[], experimentIds: string[], signal: AbortSignal): Promise<TrialRow[]> {
  const ids = trialIds.slice(0, MOST_COMPARED);
  const numbers = experimentIds.slice(0, MOST_COMPARED - ids.length).filter((id) => /^\d+$/.test(id));
  if (numbers.length > 0) {
    const query = { filter: `id in (${numbers.join(", ")})`, fields: "bestTrial,numTrials", limit: MOST_COMPARED };
    const { rows } = await api.get("/api/v1/tables/{table}", { parts: { table: "experiments" }, query, signal });
    for (const number of numbers) {
      const row = rows.find((each) => String(each.id) === number);
      // Without a value of its metric, the first trial stands for the experiment.
      if (row !== undefined && row.numTrials !== 0) ids.push(String(row.bestTrial ?? `${number}.1`));
    }
  }
  const wanted = [...new Set(ids)].filter((id) => /^\d+\.\d+$/.test(id));
  if (wanted.length === 0) return [];
  const filter = `id in (${wanted.map((id) => JSON.stringify(id)).join(", ")})`;
  const families = await namesOfFamilies(wanted, signal);
  const query = { filter, fields: writeFields([...FIELDS, ...families]), limit: MOST_COMPARED };
  const page = await api.get("/api/v1/tables/{table}", { parts: { table: "trials" }, query, signal });
  const rows = page.rows as unknown as TrialRow[];
  return wanted.map((id) => rows.find((row) => row.id === id)).filter((row) => row !== undefined);
}

/** The hyperparameters and validation metrics of the trials' experiments. */
async function namesOfFamilies(trialIds: string[], signal: AbortSignal): Promise<string[]> {
  const experimentIds = [...new Set(trialIds.map((id) => Number(id.split(".")[0])))];
  const answers = await Promise.all(
    experimentIds.map((experimentId) =>
      api.get("/api/v1/tables/{table}/fields", {
        parts: { table: "trials" },
        query: { experimentId, limit: 1000 },
        signal,
      }),
    ),
  );
  const names = answers.flatMap(({ fields }) => fields.map((field) => field.name));
  const wanted = [...new Set(names)].filter((name) => name.startsWith("hp.") || name.startsWith("validation."));
  return wanted.sort();
}

function Table({ trials }: { trials: TrialRow[] }) {
  const isBrief = place.value.query.get("all") !== "1";
  const rows = compare(trials.map((trial) => without(trial, HEAD)));
  const shown = isBrief ? rows.filter((row) => row.isDifferent) : rows;
  return (
    <>
      <div class="row">
        <label>
          <input
            type="checkbox"
            checked={isBrief}
            onChange={(event) => setQuery({ all: event.currentTarget.checked ? "" : "1" })}
          />{" "}
          only differences
        </label>
        <span class="quiet" role="status">
          {shown.length} of {rows.length} rows
        </span>
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a table wider than the screen is scrolled by keyboard */}
      <section class="scroll" aria-label="Values of the trials" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">Field</th>
              {trials.map((trial, index) => (
                <th key={trial.id} scope="col">
                  <Swatch index={index} /> <a href={href(`/trials/${trial.id}`)}>{trial.id}</a>
                  <br />
                  <Name text={String(trial.experimentName)} />
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.map((row) => (
              <Row key={row.name} row={row} trials={trials} />
            ))}
          </tbody>
        </table>
      </section>
      {shown.length === 0 ? <Empty>All values are the same.</Empty> : null}
    </>
  );
}

function Row({ row, trials }: { row: Comparison; trials: TrialRow[] }) {
  return (
    <tr class={row.isDifferent ? "different" : ""}>
      <th scope="row">
        <Name text={row.name} />
      </th>
      {row.values.map((value, index) => (
        <td key={trials[index]?.id}>
          <Name text={formatValue(value ?? undefined)} />
        </td>
      ))}
    </tr>
  );
}

function without(trial: TrialRow, names: string[]): Record<string, unknown> {
  return Object.fromEntries(Object.entries(trial).filter(([name]) => !names.includes(name)));
}
