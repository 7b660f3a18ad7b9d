/** The learning curves of up to 100 trials, which grow while the trials report. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { useChanges } from "../../api/changes";
import { api, type Schemas } from "../../api/client";
import { useReadAgain } from "../../api/live";
import { ReportFeed, useSeries } from "../../api/series";
import { smooth } from "../../lib/curves";
import { lookOf } from "../../lib/look";
import { formatNumber } from "../../lib/text";
import { Command, Empty, Loading, Name, Problem } from "../../parts/basic";
import { Chart } from "../../parts/chart";
import { ChartControls, panOf, useChartSettings, zoomOf } from "../../parts/chart_controls";
import { href, place, setQuery } from "../../router";
import type { StudyRow, TrialRow } from "./study";

const CURVES = 100;
const POINTS = 300;

export function Curves({ row }: { row: StudyRow }) {
  const { value, error } = useReadAgain(String(row.numTrials), (signal) => {
    const query = {
      experimentId: row.id,
      fields: "state,outcome,best",
      sort: row.smallerIsBetter === false ? "-best" : "best",
      limit: CURVES,
    };
    return api.get("/api/v1/tables/{table}", { parts: { table: "trials" }, query, signal });
  });
  if (value === null) return error === null ? <Loading /> : <Problem error={error} />;
  const trials = value.rows as unknown as TrialRow[];
  if (trials.length === 0)
    return (
      <Empty>
        The scheduler has made no trial yet; why: <Command text={`gangline job explain ${row.id}`} />
      </Empty>
    );
  return (
    <>
      <Problem error={error} />
      <CurvesOf
        trialIds={trials.map((trial) => trial.id)}
        nameOf={(id) => id}
        bestOf={(id) => trials.find((trial) => trial.id === id)?.best as number | null}
        metric={row.metric ?? ""}
        isLive={row.outcome === null}
      />
      {row.numTrials > CURVES ? (
        <p>
          The best {CURVES} trials of {row.numTrials} are drawn.
        </p>
      ) : null}
    </>
  );
}

interface Props {
  trialIds: string[];
  nameOf: (trialId: string) => string;
  bestOf: (trialId: string) => number | null;
  /** The metric that is shown first. */
  metric: string;
  isLive: boolean;
}

/** Draws one metric of several trials over one another. */
export function CurvesOf({ trialIds, nameOf, bestOf, metric, isLive }: Props) {
  const settings = useChartSettings();
  const feed = useMemo(() => new ReportFeed(!isLive), [isLive]);
  const [hidden, setHidden] = useState<Set<string>>(new Set());
  const asked = place.value.query.get("metric");
  const chosen = asked ?? `validation/${metric}`;
  const slash = chosen.indexOf("/");
  const shown = { group: chosen.slice(0, slash), name: chosen.slice(slash + 1) };
  const { curves, error } = useSeries({
    trialIds,
    metrics: [shown],
    range: settings.range,
    points: POINTS,
    nameOf: ({ trialId }) => trialId,
    feed,
  });
  useChanges(
    isLive ? { metrics: trialIds } : null,
    "",
    (changes) => changes.metrics && feed.pass(changes.metrics),
    () => feed.pass(null),
  );
  const filled = (curves ?? []).filter((curve) => curve.points.length > 0);
  const drawn = useMemo(
    () =>
      filled
        .filter((curve) => !hidden.has(curve.name))
        .map((curve) => smooth({ ...curve, name: nameOf(curve.name) }, settings.weight)),
    [curves, hidden, settings.weight],
  );
  const looks = filled.map((_, index) => index).filter((index) => !hidden.has(filled[index]?.name ?? ""));
  const toggle = (id: string) => {
    const next = new Set(hidden);
    if (!next.delete(id)) next.add(id);
    setHidden(next);
  };
  return (
    <>
      <div class="row">
        <MetricChoice trialIds={trialIds} chosen={chosen} isWanted={curves !== null || error !== null} />
      </div>
      <ChartControls settings={settings} />
      <Problem error={error} />
      {curves === null ? (
        <Loading />
      ) : filled.length === 0 ? (
        <Empty>No trial has reported {shown.name || "a metric"} in this range yet.</Empty>
      ) : (
        <div class="beside">
          <Chart
            title={shown.name}
            curves={drawn}
            isLog={settings.isLog}
            axis={settings.axis}
            looks={looks}
            hasLegend={false}
            onZoom={zoomOf(settings, drawn)}
            onPan={panOf(settings, drawn)}
            onReset={() => settings.set({ range: null })}
          />
          <Legend
            entries={filled.map((curve) => ({ id: curve.name, name: nameOf(curve.name), best: bestOf(curve.name) }))}
            hidden={hidden}
            onToggle={toggle}
            onShowOnly={(ids) => setHidden(new Set(filled.map((curve) => curve.name).filter((id) => !ids.has(id))))}
          />
        </div>
      )}
    </>
  );
}

interface ChoiceProps {
  trialIds: string[];
  chosen: string;
  /** Whether the names are read by now: not before the curves, which the reader waits for. */
  isWanted: boolean;
}

/** The metrics that these trials have reported, of which the reader types a part. */
function MetricChoice({ trialIds, chosen, isWanted }: ChoiceProps) {
  const [search, setSearch] = useState("");
  const [names, setNames] = useState<Schemas["MetricName"][]>([]);
  useEffect(() => {
    if (!isWanted) return;
    const ending = new AbortController();
    const query = { trialIds, search, limit: 50 };
    api.get("/api/v1/metrics/names", { query, signal: ending.signal }).then(
      (answer) => setNames(answer.metrics),
      () => {},
    );
    return () => ending.abort();
  }, [trialIds.join(), search, isWanted]);
  const options = [...new Set([chosen, ...names.map(({ group, name }) => `${group}/${name}`)])];
  return (
    <>
      <label>
        Metric{" "}
        <select value={chosen} onChange={(event) => setQuery({ metric: event.currentTarget.value })}>
          {options.map((option) => (
            <option key={option} value={option}>
              {option}
            </option>
          ))}
        </select>
      </label>
      <label>
        of those with <input type="search" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
      </label>
    </>
  );
}

interface LegendProps {
  entries: { id: string; name: string; best: number | null }[];
  hidden: Set<string>;
  onToggle: (id: string) => void;
  onShowOnly: (ids: Set<string>) => void;
}

function Legend({ entries, hidden, onToggle, onShowOnly }: LegendProps) {
  const [search, setSearch] = useState("");
  const found = entries.filter((entry) => entry.name.toLowerCase().includes(search.toLowerCase()));
  return (
    <fieldset class="legend">
      <legend class="hidden">Curves</legend>
      <label>
        Trial contains{" "}
        <input type="search" class="short" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
      </label>
      <div class="row">
        <button type="button" onClick={() => onShowOnly(new Set(found.map((entry) => entry.id)))}>
          Only these {found.length}
        </button>
        <button type="button" onClick={() => onShowOnly(new Set(entries.map((entry) => entry.id)))}>
          All
        </button>
      </div>
      <ul class="plain">
        {found.map((entry) => (
          <li key={entry.id}>
            <label>
              <input type="checkbox" checked={!hidden.has(entry.id)} onChange={() => onToggle(entry.id)} />{" "}
              <Swatch index={entries.indexOf(entry)} /> <Name text={entry.name} />
            </label>{" "}
            <a href={href(`/trials/${entry.id}`)}>
              <span class="hidden">Trial {entry.id}: </span>
              {formatNumber(entry.best)}
            </a>
          </li>
        ))}
      </ul>
    </fieldset>
  );
}

/** The line of a curve as the chart draws it. */
export function Swatch({ index }: { index: number }) {
  const { colour, dash } = lookOf(index);
  return (
    <svg width="44" height="10" aria-hidden="true">
      <line x1="0" x2="44" y1="5" y2="5" stroke={colour} stroke-width="2" stroke-dasharray={dash.join(" ")} />
    </svg>
  );
}
