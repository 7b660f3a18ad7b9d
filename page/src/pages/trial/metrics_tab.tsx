/** The metrics of a trial, live. Of thousands, the charts near the visible part of the page are made. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useChanges } from "../../api/changes";
import { type ApiError, api, type Schemas } from "../../api/client";
import { Readings } from "../../api/live";
import { ReportFeed, useSeries } from "../../api/series";
import { smooth } from "../../lib/curves";
import { type ChartEntry, chartsOf } from "../../lib/metric_names";
import { Command, Empty, Loading, Problem } from "../../parts/basic";
import { Chart } from "../../parts/chart";
import { ChartControls, type ChartSettings, panOf, useChartSettings, zoomOf } from "../../parts/chart_controls";
import { WhileVisible } from "../../parts/visible";
import { place, setQuery } from "../../router";
import { complain } from "../../toast";

const POINTS = 800;
const NAMES = 200;
const CHARTS = 24;
const CHART_HEIGHT = 380;
/** The group of a step's times and of the load of the machine. */
const SYSTEM = "profiling";

export function Metrics({ id, isOver }: { id: string; isOver: boolean }) {
  const search = place.value.query.get("search") ?? "";
  const group = place.value.query.get("group") ?? "";
  const settings = useChartSettings();
  const feed = useMemo(() => new ReportFeed(isOver), [id, isOver]);
  const [numShown, setShown] = useState(CHARTS);
  const { names, total, error, learn, reload, loadMore } = useNames(id, search, group);
  useChanges(
    isOver ? null : { metrics: [id] },
    "",
    ({ metrics }) => {
      if (metrics === undefined) return;
      feed.pass(metrics);
      learn(metrics);
    },
    () => {
      feed.pass(null);
      reload();
    },
  );
  const charts = useMemo(() => chartsOf(names ?? []), [names]);
  if (names === null) return error === null ? <Loading /> : <Problem error={error} />;
  const shown = charts.slice(0, numShown);
  const showMore = () => {
    setShown(numShown + CHARTS);
    if (numShown + CHARTS > charts.length && names.length < total) loadMore();
  };
  return (
    <>
      <div class="row">
        <label>
          Metric contains{" "}
          <input
            type="search"
            value={search}
            onInput={(event) => {
              setShown(CHARTS);
              setQuery({ search: event.currentTarget.value });
            }}
          />
        </label>
        <label>
          Group{" "}
          <select
            value={group}
            onChange={(event) => {
              setShown(CHARTS);
              setQuery({ group: event.currentTarget.value });
            }}
          >
            <option value="">all</option>
            <option value="training">training</option>
            <option value="validation">validation</option>
            <option value={SYSTEM}>profile and system</option>
          </select>
        </label>
        <span class="quiet" role="status">
          {total} metrics
        </span>
        <Command text={`gangline trial metrics ${id}`} />
      </div>
      <ChartControls settings={settings} />
      {charts.length === 0 ? (
        <Empty>
          {search !== "" ? (
            `No metric contains ${search}.`
          ) : group === SYSTEM ? (
            <>
              The trial reports no times of its steps, and no load of GPU, CPU, memory and network. The configuration{" "}
              <code>{"profiling: {enabled: true}"}</code> turns them on.
            </>
          ) : (
            <>
              The trial has reported no metric yet; programs do so with <code>core.train.report_training_metrics</code>.
            </>
          )}
        </Empty>
      ) : null}
      <div class="charts">
        {shown.map((entry) => (
          <WhileVisible key={entry.title} height={CHART_HEIGHT}>
            {() => <MetricChart id={id} entry={entry} settings={settings} feed={feed} />}
          </WhileVisible>
        ))}
      </div>
      {numShown < charts.length || names.length < total ? (
        <button type="button" onClick={showMore}>
          Show more metrics
        </button>
      ) : null}
    </>
  );
}

interface ChartProps {
  id: string;
  entry: ChartEntry;
  settings: ChartSettings;
  feed: ReportFeed;
}

function MetricChart({ id, entry, settings, feed }: ChartProps) {
  const { curves, error } = useSeries({
    trialIds: [id],
    metrics: entry.metrics,
    range: settings.range,
    points: POINTS,
    nameOf: ({ group }) => group,
    feed,
  });
  const drawn = useMemo(
    () => (curves ?? []).filter((curve) => curve.points.length > 0).map((curve) => smooth(curve, settings.weight)),
    [curves, settings.weight],
  );
  if (curves === null && error === null) return <Loading />;
  return (
    <>
      <Problem error={error} />
      <Chart
        title={entry.title}
        curves={drawn}
        isLog={settings.isLog}
        axis={settings.axis}
        onZoom={zoomOf(settings, drawn)}
        onPan={panOf(settings, drawn)}
        onReset={() => settings.set({ range: null })}
      />
    </>
  );
}

type MetricName = Schemas["MetricName"];
type Found = Schemas["MetricNames"];

/** The metrics that match, a page at a time. Names of new reports are added as they come. */
function useNames(id: string, search: string, group: string) {
  const [state, setState] = useState<{ key: string; names: MetricName[] | null; total: number }>({
    key: "",
    names: null,
    total: 0,
  });
  const [error, setError] = useState<ApiError | null>(null);
  const key = JSON.stringify([id, search, group]);
  const read = (offset: number, signal?: AbortSignal) => {
    const query = { trialIds: [id], search, group, offset, limit: NAMES };
    return api.get("/api/v1/metrics/names", { query, ...(signal === undefined ? {} : { signal }) });
  };
  const joined = (known: MetricName[], { metrics, total }: Found) => ({
    key,
    names: distinct([...known, ...metrics]),
    total,
  });
  const readings = useRef<Readings<Found> | null>(null);
  useEffect(() => {
    const own = new Readings<Found>(
      (signal) => read(0, signal),
      (found) => {
        setError(null);
        setState((former) => joined(former.key === key ? (former.names ?? []) : [], found));
      },
      setError,
    );
    readings.current = own;
    own.again();
    return () => own.end();
  }, [key]);
  const loadMore = () => {
    const add = (found: Found) =>
      setState((former) => (former.key === key ? joined(former.names ?? [], found) : former));
    read(state.names?.length ?? 0).then(add, complain);
  };
  const learn = (reports: Schemas["StoredMetrics"][]) => {
    setState((former) => {
      if (former.names === null || former.names.length < former.total) return former;
      const wanted = search.toLowerCase();
      const reported = reports.flatMap(({ point }) =>
        Object.keys(point.metrics).map((name) => ({ group: point.group, name })),
      );
      const matching = reported.filter(
        (metric) => (group === "" || metric.group === group) && metric.name.toLowerCase().includes(wanted),
      );
      const names = distinct([...former.names, ...matching]);
      return names.length === former.names.length ? former : { ...former, names, total: names.length };
    });
  };
  return {
    names: state.names,
    total: state.total,
    error,
    learn,
    reload: () => readings.current?.again(),
    loadMore,
  };
}

function distinct(names: MetricName[]): MetricName[] {
  return [...new Map(names.map((each) => [`${each.group}/${each.name}`, each])).values()];
}
