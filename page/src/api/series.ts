/** Curves of metrics: their history in few points from the gateway, and later points from the stream of changes. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type Curve, endedBy, extended, type Range, toCurve } from "../lib/curves";
import { Retry } from "./again";
import { ApiError, api } from "./client";
import { callAll, type Report } from "./live_parts";

export interface SeriesKey {
  trialId: string;
  group: string;
  metric: string;
}

export interface SeriesResult {
  /** One for each key, in their order. null until the gateway has answered. */
  curves: Curve[] | null;
  error: ApiError | null;
}

type Listener = (reports: Report[] | null) => void;

/** Where a view passes new reports on to its charts. null in place of reports: read the series anew. */
export class ReportFeed {
  private readonly listeners = new Set<Listener>();

  /** isReady: whether series may be read. Where reports will follow, that is from the first `pass` on. */
  constructor(public isReady: boolean) {}

  pass(reports: Report[] | null): void {
    this.isReady = true;
    callAll(this.listeners, (listener) => listener(reports), reportError);
  }

  listen(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}

interface Wanted {
  trialIds: string[];
  metrics: { group: string; name: string }[];
  range: Range | null;
  /** Points of each curve. With twice as many by new reports, the series is read anew. */
  points: number;
  nameOf: (key: SeriesKey) => string;
  feed: ReportFeed;
}

export function useSeries({ trialIds, metrics, range, points, nameOf, feed }: Wanted): SeriesResult {
  const [result, setResult] = useState<SeriesResult & { of: string }>({ of: "", curves: null, error: null });
  const [round, setRound] = useState(0);
  const keys = useRef<SeriesKey[]>([]);
  const current = useRef(result.curves);
  current.current = result.curves;
  const retry = useMemo(() => new Retry(), []);
  // Reports that come while the series is read, which may be without them; null while it is not read.
  const missed = useRef<Report[] | null>(null);
  // Another range of the same curves keeps those that are drawn until it is there.
  const of = JSON.stringify([trialIds, metrics]);
  const key = `${of} ${JSON.stringify(range)}`;
  useEffect(() => {
    const ending = new AbortController();
    missed.current = null;
    const query = {
      trialIds,
      metrics: metrics.map(({ group, name }) => `${group}/${name}`),
      maxDatapoints: points,
      ...(range === null ? {} : { fromBatch: range.from, toBatch: range.to }),
    };
    if (trialIds.length === 0 || metrics.length === 0) {
      setResult({ of, curves: [], error: null });
      return;
    }
    // The stream of reports is open before the series is read, so no report is between the two.
    if (!feed.isReady) return;
    const later: Report[] = [];
    missed.current = later;
    api.get("/api/v1/metrics/series", { query, signal: ending.signal }).then(
      ({ series }) => {
        retry.succeed();
        missed.current = null;
        keys.current = series.map(({ trialId, group, metric }) => ({ trialId, group, metric }));
        const curves = series.map((each) => withReports(toCurve(nameOf(each), each), each, later, range));
        current.current = curves;
        setResult({ of, curves, error: null });
      },
      (failure) => {
        if (ending.signal.aborted) return;
        if (!(failure instanceof ApiError)) throw failure;
        missed.current = null;
        setResult((former) => ({ of, curves: former.of === of ? former.curves : null, error: failure }));
        if (failure.isTemporary) retry.soon(() => setRound((former) => former + 1));
      },
    );
    return () => {
      ending.abort();
      retry.end();
    };
  }, [key, points, round, feed]);
  useEffect(
    () =>
      feed.listen((reports) => {
        if (reports === null) return setRound((former) => former + 1);
        missed.current?.push(...reports);
        const curves = current.current;
        if (curves === null) return;
        const next = curves.map((curve, index) => withReports(curve, keys.current[index], reports, range));
        if (next.every((curve, index) => curve === curves[index])) return;
        current.current = next;
        // Not while it is read: reports that come faster than that would keep it from ending.
        const isLong = next.some((curve) => curve.points.length > 2 * points);
        if (isLong && missed.current === null) setRound((former) => former + 1);
        setResult((former) => ({ ...former, curves: next }));
      }),
    [feed, points, key],
  );
  return result.of === of ? result : { curves: null, error: null };
}

function withReports(curve: Curve, key: SeriesKey | undefined, reports: Report[], range: Range | null): Curve {
  let next = curve;
  for (const { trialId, time, point, attempt } of reports) {
    if (key === undefined || trialId !== key.trialId) continue;
    const place = { batch: point.batchesCompleted, time: time ? Date.parse(time) / 1000 : 0, attempt };
    const value = point.metrics[key.metric];
    if (point.group !== key.group) next = endedBy(next, key.group, point.group, place);
    else if (value !== undefined && (range === null || (place.batch >= range.from && place.batch <= range.to))) {
      next = extended(next, { ...place, value });
    }
  }
  return next;
}
