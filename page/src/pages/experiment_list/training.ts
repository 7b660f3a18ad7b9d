/** Newest values of training metrics, as columns of the list. The tables of the gateway have none, so they are read as
 * series of their fewest points, for the rows that are seen. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, api } from "../../api/client";
import type { Row } from "../../lib/row_list";
import { newestOf, type TrainingValues, wantedTrials } from "../../lib/training_values";
import { complain } from "../../toast";

/** Points of a series; the last one is the newest value. */
const FEWEST_POINTS = 4;
/** A row that changes with each report is read again after so long. */
const PAUSE_MS = 2000;
/** Metrics of one request; the gateway reads 400 series at once. */
const MOST_METRICS = 5;

/** rows: those that are seen. metrics: their names, without a group. */
export function useTrainingValues(rows: Row[], metrics: string[]): TrainingValues {
  const [values, setValues] = useState<TrainingValues>(new Map());
  const readAt = useRef(0);
  const trials = wantedTrials(rows);
  // Rows may change faster than a reading takes, so that the end of the view alone ends one.
  const ending = useMemo(() => new AbortController(), []);
  useEffect(() => () => ending.abort(), [ending]);
  const key = metrics.length === 0 ? "" : JSON.stringify([metrics, [...trials]]);
  useEffect(() => {
    if (key === "" || trials.size === 0) return;
    const load = async () => {
      readAt.current = Date.now();
      try {
        const query = {
          trialIds: [...trials.keys()],
          metrics: metrics.slice(0, MOST_METRICS).map((name) => `training/${name}`),
          maxDatapoints: FEWEST_POINTS,
        };
        const { series } = await api.get("/api/v1/metrics/series", { query, signal: ending.signal });
        setValues((former) => new Map([...former, ...newestOf(series)]));
      } catch (failure) {
        if (ending.signal.aborted) return;
        if (!(failure instanceof ApiError)) throw failure;
        complain(failure);
      }
    };
    const timer = setTimeout(load, Math.max(0, readAt.current + PAUSE_MS - Date.now()));
    return () => clearTimeout(timer);
  }, [key]);
  return values;
}
