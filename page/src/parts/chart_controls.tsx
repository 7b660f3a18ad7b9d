/** How charts are drawn, for all charts of a view: the axis, a logarithmic scale, smoothing, and a range of batches. */

import { useState } from "preact/hooks";
import { type Axis, batchesBetween, type Curve, movedBy, type Range } from "../lib/curves";
import { DraftInput } from "./draft_input";

export interface ChartSettings {
  axis: Axis;
  isLog: boolean;
  /** Of the past, from 0 to under 1. */
  weight: number;
  /** Batches that are drawn; null for all. */
  range: Range | null;
  set: (changes: Partial<Omit<ChartSettings, "set">>) => void;
}

export function useChartSettings(): ChartSettings {
  const [settings, setSettings] = useState<Omit<ChartSettings, "set">>({
    axis: "batch",
    isLog: false,
    weight: 0,
    range: null,
  });
  return { ...settings, set: (changes) => setSettings((former) => ({ ...former, ...changes })) };
}

/** Returns what a chart does with a part that was chosen by mouse: the settings get the range of its batches. */
export function zoomOf(settings: ChartSettings, curves: Curve[]): (low: number, high: number) => void {
  return (low, high) => {
    const range = batchesBetween(curves, settings.axis, low, high);
    if (range !== null) settings.set({ range });
  };
}

/** Returns what a chart does after a drag: the settings get the batches that it has moved to, where these are others. */
export function panOf(settings: ChartSettings, curves: Curve[]): (share: number) => boolean {
  return (share) => {
    const range = movedBy(share, settings.range, curves);
    const isOther = range !== null && (range.from !== settings.range?.from || range.to !== settings.range.to);
    if (isOther) settings.set({ range });
    return isOther;
  };
}

export function ChartControls({ settings }: { settings: ChartSettings }) {
  const { axis, isLog, weight, range, set } = settings;
  const change = (end: keyof Range, text: string) => {
    const whole = range ?? { from: 0, to: Number.MAX_SAFE_INTEGER };
    const standard = end === "from" ? 0 : Number.MAX_SAFE_INTEGER;
    const batch = Math.round(Number(text));
    const next = { ...whole, [end]: text === "" || !(batch >= 0) ? standard : batch };
    set({ range: next.from === 0 && next.to === Number.MAX_SAFE_INTEGER ? null : next });
  };
  return (
    <div class="row">
      <label>
        Axis{" "}
        <select value={axis} onChange={(event) => set({ axis: event.currentTarget.value as Axis })}>
          <option value="batch">batches</option>
          <option value="time">time</option>
        </select>
      </label>
      <label>
        Smoothing{" "}
        <input
          type="range"
          min="0"
          max="0.95"
          step="0.05"
          value={weight}
          onInput={(event) => set({ weight: Number(event.currentTarget.value) })}
        />
      </label>
      <label>
        <input type="checkbox" checked={isLog} onChange={(event) => set({ isLog: event.currentTarget.checked })} />{" "}
        logarithmic
      </label>
      <DraftInput
        label="From batch"
        isNumber
        isShort
        value={range === null || range.from === 0 ? "" : String(range.from)}
        onCommit={(text) => change("from", text)}
      />
      <DraftInput
        label="to batch"
        isNumber
        isShort
        value={range === null || range.to === Number.MAX_SAFE_INTEGER ? "" : String(range.to)}
        onCommit={(text) => change("to", text)}
      />
      <button type="button" disabled={range === null} onClick={() => set({ range: null })}>
        All batches
      </button>
    </div>
  );
}
