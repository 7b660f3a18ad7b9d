/** One experiment: overview, trials, learning curves, configuration, notes. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, addressOf, api, type Schemas } from "../api/client";
import { useLive } from "../api/live";
import { follow } from "../api/stream";
import { type Curve, smooth } from "../lib/curves";
import { formatNumber, formatValue } from "../lib/text";
import { Command, Empty, Loading, Name, Problem, StateBadge, Time } from "../parts/basic";
import { Chart } from "../parts/chart";
import { Actions } from "../parts/experiment_actions";
import { Tabs } from "../parts/tabs";
import { href, type ViewProps } from "../router";
import { complain, say } from "../toast";

type View = Schemas["ExperimentView"];
type TrialView = Schemas["TrialView"];
const TRIALS_SHOWN = 200;
const CURVES_SHOWN = 20;
const POINTS = 500;

export function Experiment({ ids }: ViewProps) {
  const id = Number(ids[0]);
  const [view, setView] = useState<View | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  useEffect(() => {
    const load = () =>
      api
        .get("/api/v1/experiments/{experiment_id}", { parts: { experiment_id: id } })
        .then(setView, (failure) => (failure instanceof ApiError ? setError(failure) : complain(failure)));
    void load();
    const address = addressOf("/api/v1/experiments/{experiment_id}/events", { experiment_id: id });
    const follower = follow(
      address,
      (event) => event.name === "experiment" && setView(JSON.parse(event.data) as View),
      setError,
    );
    return follower.stop;
  }, [id]);
  if (error !== null) return <Problem error={error} />;
  if (view === null) return <Loading />;
  const { experiment, trials } = view;
  return (
    <>
      <div class="row">
        <h1>
          Experiment {experiment.id}: <Name text={experiment.name} />
        </h1>
        <StateBadge state={experiment.state} outcome={experiment.outcome} />
      </div>
      <div class="row">
        <Actions ids={[experiment.id]} onDone={() => {}} />
        <Command text={`gangline experiment describe ${experiment.id}`} />
      </div>
      <Tabs
        label="Experiment"
        tabs={[
          { id: "overview", title: "Overview", show: () => <Overview view={view} /> },
          { id: "trials", title: `Trials (${trials.length})`, show: () => <Trials trials={trials} /> },
          { id: "curves", title: "Learning curves", show: () => <Curves view={view} /> },
          { id: "config", title: "Configuration", show: () => <Configuration config={experiment.config} /> },
          { id: "notes", title: "Notes", show: () => <Notes id={experiment.id} notes={experiment.notes} /> },
        ]}
      />
    </>
  );
}

interface Searcher {
  name?: string;
  metric?: string;
  smaller_is_better?: boolean;
}

function searcherOf(view: View): Searcher {
  const config = view.experiment.config as { searcher?: Searcher } | null;
  return config?.searcher ?? {};
}

/** The trial with the best value of the searcher's metric; undefined while no trial has one. */
function bestOf(view: View): TrialView | undefined {
  const sign = searcherOf(view).smaller_is_better === false ? -1 : 1;
  const rated = view.trials.filter(({ trial }) => trial.searcherMetricValue !== null);
  const value = ({ trial }: TrialView) => sign * (trial.searcherMetricValue ?? 0);
  return rated.reduce<TrialView | undefined>(
    (best, each) => (best && value(best) <= value(each) ? best : each),
    undefined,
  );
}

function Overview({ view }: { view: View }) {
  const { experiment } = view;
  const searcher = searcherOf(view);
  const best = bestOf(view)?.trial;
  const why = experiment.reason || view.reason?.message || "";
  return (
    <dl>
      <dt>Owner</dt>
      <dd>{experiment.username}</dd>
      <dt>Started</dt>
      <dd>
        <Time at={experiment.startTime} />
      </dd>
      <dt>Ended</dt>
      <dd>
        <Time at={experiment.endTime} />
      </dd>
      <dt>Searcher</dt>
      <dd>{searcher.name ?? "–"}</dd>
      <dt>Best so far</dt>
      <dd>
        {best === undefined ? (
          "no trial has validated yet"
        ) : (
          <>
            {searcher.metric} {formatNumber(best.searcherMetricValue)} of trial{" "}
            <a href={href(`/trials/${best.id}`)}>{best.id}</a>, after {best.searcherMetricBatches} batches
          </>
        )}
      </dd>
      {why === "" ? null : (
        <>
          <dt>Why</dt>
          <dd>{why}</dd>
        </>
      )}
      <dt>Labels</dt>
      <dd>
        {experiment.labels.join(", ") || <Command text={`gangline experiment label add ${experiment.id} LABEL`} />}
      </dd>
    </dl>
  );
}

function Trials({ trials }: { trials: TrialView[] }) {
  if (trials.length === 0) return <Empty>The scheduler has made no trial yet.</Empty>;
  const names = [...new Set(trials.flatMap(({ trial }) => Object.keys((trial.hparams ?? {}) as object)))];
  return (
    <>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a table wider than the screen is scrolled by keyboard */}
      <section class="scroll" aria-label="Trials" tabIndex={0}>
        <table>
          <thead>
            <tr>
              {["Trial", "State", "Batches", "Best", "Restarts", "Why", ...names].map((title) => (
                <th key={title} scope="col">
                  {title}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {trials.slice(0, TRIALS_SHOWN).map(({ trial, reason, newest }) => (
              <tr key={trial.id}>
                <td>
                  <a href={href(`/trials/${trial.id}`)}>{trial.id}</a>
                </td>
                <td>
                  <StateBadge state={trial.state} outcome={trial.outcome} />
                </td>
                <td class="number">{newest.progress?.batchesCompleted ?? trial.totalBatchesProcessed}</td>
                <td class="number">{formatNumber(trial.searcherMetricValue)}</td>
                <td class="number">{trial.restarts}</td>
                <td class="reason">{trial.reason || reason?.message}</td>
                {names.map((name) => (
                  <td key={name}>
                    <Name text={formatValue((trial.hparams as Record<string, unknown>)[name])} />
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </section>
      {trials.length > TRIALS_SHOWN ? <p>{trials.length - TRIALS_SHOWN} more are not shown here.</p> : null}
    </>
  );
}

/** The searcher's metric of the newest trials. A point is read once it is there; the whole curve never twice a second. */
function Curves({ view }: { view: View }) {
  const [weight, setWeight] = useState(0);
  const [isLog, setLog] = useState(false);
  const metric = searcherOf(view).metric ?? "";
  const trialIds = view.trials.slice(-CURVES_SHOWN).map(({ trial }) => trial.id);
  const isOver = view.experiment.outcome !== null;
  const curves = useLive(
    `${trialIds.join()} ${metric}`,
    (signal) => Promise.all(trialIds.map((id) => readCurve(id, metric, signal))),
    isOver ? 0 : 3,
  );
  const filled = (curves.value ?? []).filter((curve) => curve.points.length > 0);
  return (
    <>
      <div class="row">
        <label>
          Smoothing{" "}
          <input
            type="range"
            min="0"
            max="0.95"
            step="0.05"
            value={weight}
            onInput={(event) => setWeight(Number(event.currentTarget.value))}
          />
        </label>
        <label>
          <input type="checkbox" checked={isLog} onChange={(event) => setLog(event.currentTarget.checked)} />{" "}
          logarithmic
        </label>
      </div>
      <Problem error={curves.error} />
      {filled.length === 0 ? (
        <Empty>No trial has validated {metric} yet.</Empty>
      ) : (
        <Chart title={metric} curves={filled.map((curve) => smooth(curve, weight))} isLog={isLog} />
      )}
      {view.trials.length > CURVES_SHOWN ? (
        <p>
          The newest {CURVES_SHOWN} trials of {view.trials.length} are shown.
        </p>
      ) : null}
    </>
  );
}

async function readCurve(trialId: string, metric: string, signal: AbortSignal): Promise<Curve> {
  const query = { metric, group: "validation", maxDatapoints: POINTS };
  const series = await api.get("/api/v1/trials/{trial_id}/metrics/series", {
    parts: { trial_id: trialId },
    query,
    signal,
  });
  return { name: trialId, points: series.points.map((point) => [point.batchesCompleted, point.value]) };
}

function Configuration({ config }: { config: unknown }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: it is scrolled by keyboard
    <pre tabIndex={0}>{JSON.stringify(config, null, 2)}</pre>
  );
}

function Notes({ id, notes }: { id: number; notes: string }) {
  const [text, setText] = useState(notes);
  const save = async () => {
    try {
      await api.patch("/api/v1/experiments/{experiment_id}", {
        parts: { experiment_id: id },
        body: { notes: text } as Schemas["PatchExperiment"],
      });
      say("the notes are stored");
    } catch (failure) {
      complain(failure);
    }
  };
  return (
    <div class="stack">
      <label>
        Notes
        <textarea rows={12} cols={100} value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      <div class="row">
        <button type="button" class="main" disabled={text === notes} onClick={save}>
          Save
        </button>
      </div>
    </div>
  );
}
