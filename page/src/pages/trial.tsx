/** One trial: its metrics while they come in, its log, its hyperparameters, and how its attempts ended. */

import { useEffect, useRef, useState } from "preact/hooks";
import { type ApiError, addressOf, api, type Schemas } from "../api/client";
import { useLive } from "../api/live";
import { follow } from "../api/stream";
import { type Curve, smooth } from "../lib/curves";
import { formatNumber, formatUtc, formatValue } from "../lib/text";
import { Command, Confirm, Empty, Loading, Problem, StateBadge, Time } from "../parts/basic";
import { Chart } from "../parts/chart";
import { Tabs } from "../parts/tabs";
import { href, type ViewProps } from "../router";
import { say } from "../toast";

type TrialView = Schemas["TrialView"];
type StoredLog = Schemas["StoredLog"];
const POINTS = 800;
const CHARTS_SHOWN = 6;
const LINES_KEPT = 2000;
const LEVELS = ["", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];

export function Trial({ ids }: ViewProps) {
  const id = ids[0] ?? "";
  const live = useLive(id, (signal) => api.get("/api/v1/trials/{trial_id}", { parts: { trial_id: id }, signal }), 2);
  if (live.value === null) return live.error === null ? <Loading /> : <Problem error={live.error} />;
  const view = live.value;
  return (
    <>
      <div class="row">
        <h1>Trial {id}</h1>
        <StateBadge state={view.trial.state} outcome={view.trial.outcome} />
        <a href={href(`/experiments/${view.trial.experimentId}`)}>Experiment {view.trial.experimentId}</a>
      </div>
      <div class="row">
        <Kill view={view} onDone={live.reload} />
        <Command text={`gangline trial describe ${id}`} />
      </div>
      <Tabs
        label="Trial"
        tabs={[
          { id: "metrics", title: "Metrics", show: () => <Metrics view={view} /> },
          { id: "logs", title: "Logs", show: () => <Logs id={id} /> },
          { id: "overview", title: "Overview", show: () => <Overview view={view} /> },
        ]}
      />
    </>
  );
}

function Kill({ view, onDone }: { view: TrialView; onDone: () => void }) {
  const [isAsked, setAsked] = useState(false);
  const { id, outcome } = view.trial;
  const kill = async () => {
    await api.post("/api/v1/trials/{trial_id}/kill", { parts: { trial_id: id } });
    say(`trial ${id} is killed`);
    onDone();
  };
  if (outcome !== null) return null;
  return (
    <>
      <button type="button" class="danger" onClick={() => setAsked(true)}>
        Kill
      </button>
      {isAsked ? (
        <Confirm title={`Kill trial ${id}?`} action="Kill" onConfirm={kill} onClose={() => setAsked(false)}>
          <p>It ends at once. {view.batchesAtRisk} batches since its last checkpoint are lost.</p>
        </Confirm>
      ) : null}
    </>
  );
}

/** The metrics that the newest reports have. Training and validation of one name share a chart. */
function namesOf(view: TrialView): string[] {
  const { training, validation } = view.newest;
  const names = [training, validation].flatMap((point) => Object.keys(point?.metrics ?? {}));
  return [...new Set(names)].sort();
}

function Metrics({ view }: { view: TrialView }) {
  const [search, setSearch] = useState("");
  const [weight, setWeight] = useState(0);
  const [isLog, setLog] = useState(false);
  const names = namesOf(view);
  const found = names.filter((name) => name.toLowerCase().includes(search.toLowerCase()));
  if (names.length === 0) return <Empty>The trial has reported no metric yet.</Empty>;
  return (
    <>
      <div class="row">
        <label>
          Metric contains{" "}
          <input type="search" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
        </label>
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
      {found.slice(0, CHARTS_SHOWN).map((name) => (
        <MetricChart key={name} view={view} name={name} weight={weight} isLog={isLog} />
      ))}
      {found.length > CHARTS_SHOWN ? (
        <p>
          {CHARTS_SHOWN} of {found.length} metrics are drawn; type more of a name to see others.
        </p>
      ) : null}
    </>
  );
}

function MetricChart({ view, name, weight, isLog }: { view: TrialView; name: string; weight: number; isLog: boolean }) {
  const { id, outcome } = view.trial;
  const groups = (["training", "validation"] as const).filter((group) => name in (view.newest[group]?.metrics ?? {}));
  const live = useLive(
    `${id} ${name} ${groups}`,
    (signal) => Promise.all(groups.map((group) => readCurve(id, name, group, signal))),
    outcome === null ? 2 : 0,
  );
  const curves = (live.value ?? []).filter((curve) => curve.points.length > 0);
  return (
    <>
      <Problem error={live.error} />
      {curves.length === 0 ? null : (
        <Chart title={name} curves={curves.map((curve) => smooth(curve, weight))} isLog={isLog} />
      )}
    </>
  );
}

async function readCurve(id: string, metric: string, group: string, signal: AbortSignal): Promise<Curve> {
  const series = await api.get("/api/v1/trials/{trial_id}/metrics/series", {
    parts: { trial_id: id },
    query: { metric, group, maxDatapoints: POINTS },
    signal,
  });
  return { name: group, points: series.points.map((point) => [point.batchesCompleted, point.value]) };
}

function Logs({ id }: { id: string }) {
  const [lines, setLines] = useState<StoredLog[]>([]);
  const [error, setError] = useState<ApiError | null>(null);
  const [level, setLevel] = useState("");
  const [searched, setSearched] = useState("");
  const [isFollowing, setFollowing] = useState(true);
  const frame = useRef<HTMLDivElement>(null);
  useEffect(() => {
    setLines([]);
    setError(null);
    const query = { follow: true, tail: LINES_KEPT, level, searchText: searched };
    // Lines come one by one; the view shows them together, at most once for each frame of the screen.
    let waiting: StoredLog[] = [];
    let frameId = 0;
    const show = () => {
      frameId = 0;
      const added = waiting;
      waiting = [];
      setLines((former) => [...former, ...added].slice(-LINES_KEPT));
    };
    const follower = follow(
      addressOf("/api/v1/trials/{trial_id}/logs", { trial_id: id }, query),
      (event) => {
        if (event.name !== "log") return;
        waiting.push(JSON.parse(event.data) as StoredLog);
        if (frameId === 0) frameId = requestAnimationFrame(show);
      },
      setError,
    );
    return () => {
      cancelAnimationFrame(frameId);
      follower.stop();
    };
  }, [id, level, searched]);
  useEffect(() => {
    if (isFollowing && lines.length > 0) frame.current?.scrollTo(0, frame.current.scrollHeight);
  }, [lines, isFollowing]);
  return (
    <>
      <div class="row">
        <label>
          Level{" "}
          <select value={level} onChange={(event) => setLevel(event.currentTarget.value)}>
            {LEVELS.map((each) => (
              <option key={each} value={each}>
                {each === "" ? "all" : `${each} and above`}
              </option>
            ))}
          </select>
        </label>
        <label>
          Text <input type="search" onChange={(event) => setSearched(event.currentTarget.value)} />
        </label>
        <label>
          <input
            type="checkbox"
            checked={isFollowing}
            onChange={(event) => setFollowing(event.currentTarget.checked)}
          />{" "}
          follow
        </label>
        <Command text={`gangline trial logs -f ${id}`} />
      </div>
      <Problem error={error} />
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it is scrolled by keyboard */}
      <div ref={frame} class="logs" role="log" aria-label="Lines of the log" aria-live="off" tabIndex={0}>
        {lines.map(({ id: row, line, time }) => (
          <div key={row} class={line.level.toLowerCase()} title={time ? formatUtc(time) : ""}>
            {line.rank === null ? "" : `[${line.rank}] `}
            {line.text}
          </div>
        ))}
      </div>
      {lines.length === 0 ? <Empty>No line matches so far.</Empty> : null}
    </>
  );
}

function Overview({ view }: { view: TrialView }) {
  const { trial } = view;
  const failure = trial.lastFailure;
  return (
    <>
      <dl>
        <dt>Started</dt>
        <dd>
          <Time at={trial.startTime} />
        </dd>
        <dt>Ended</dt>
        <dd>
          <Time at={trial.endTime} />
        </dd>
        <dt>Attempts</dt>
        <dd>{trial.attempts}</dd>
        <dt>Best validation</dt>
        <dd>{formatNumber(trial.searcherMetricValue)}</dd>
        <dt>Why</dt>
        <dd>{trial.reason || view.reason?.message || "–"}</dd>
        {Object.entries((trial.hparams ?? {}) as Record<string, unknown>).map(([name, value]) => (
          <Entry key={name} name={name} value={value} />
        ))}
      </dl>
      {failure ? (
        <section aria-labelledby="failure">
          <h2 id="failure">Last failure</h2>
          <p class="problem">
            {failure.rank === null ? "" : `Rank ${failure.rank}: `}
            {failure.message}
          </p>
          {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it is scrolled by keyboard */}
          <pre tabIndex={0}>{failure.lastLines.join("\n")}</pre>
        </section>
      ) : null}
    </>
  );
}

function Entry({ name, value }: { name: string; value: unknown }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{formatValue(value)}</dd>
    </>
  );
}
