/** Curves over batches or time, drawn by uPlot, with a table of the same points behind them. Loaded with the first chart. */

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { type Axis, type Curve, joinCurves } from "../lib/curves";
import { lookOf } from "../lib/look";
import { formatNumber } from "../lib/text";
import "uplot/dist/uPlot.min.css";

const HEIGHT = 280;
const TABLE_ROWS = 200;

interface Props {
  title: string;
  curves: Curve[];
  isLog: boolean;
  axis?: Axis;
  /** Gets a part of the axis that was chosen with the mouse. */
  onZoom?: (low: number, high: number) => void;
  /** Gets the part of the drawn width by which a drag with the Shift key has moved the curves; above 0 to later ones. */
  onPan?: (share: number) => void;
  /** Gets a double click, which asks for the whole axis again. */
  onReset?: () => void;
  /** Numbers of the curves' looks, where the curves are a part of more; else they are counted. */
  looks?: number[];
  /** Where many curves are drawn, a list beside the chart takes the place of its legend. */
  hasLegend?: boolean;
}

export function Chart(props: Props) {
  const { title, curves, isLog, axis = "batch", looks, hasLegend = true } = props;
  const frame = useRef<HTMLDivElement>(null);
  // A closed table of many curves costs nothing with each new point.
  const [isOpen, setOpen] = useState(false);
  const plot = useRef<uPlot | null>(null);
  const data = joinCurves(curves, axis) as uPlot.AlignedData;
  const latest = useRef({ data, props });
  latest.current = { data, props };
  const key = JSON.stringify([curves.map((curve) => curve.name), looks, isLog, axis, hasLegend]);
  useEffect(() => {
    const target = frame.current;
    if (target === null) return;
    const options = optionsOf(target, latest.current.props);
    const ending = new AbortController();
    const onPan = (share: number) => latest.current.props.onPan?.(share);
    const mousedown: uPlot.Cursor.MouseListenerFactory = (self, _, select) => (event) => {
      if (event.shiftKey && event.button === 0) pan(self, event, onPan, ending.signal);
      else select(event);
      return null;
    };
    options.cursor = { ...options.cursor, bind: { mousedown } };
    const made = new uPlot(options, latest.current.data, target);
    plot.current = made;
    const onDouble = () => latest.current.props.onReset?.();
    made.over.addEventListener("dblclick", onDouble);
    const watching = new ResizeObserver(() => made.setSize({ width: target.clientWidth, height: HEIGHT }));
    watching.observe(target);
    const made_hook = (self: uPlot) => {
      const { left, width } = self.select;
      if (width > 4) latest.current.props.onZoom?.(self.posToVal(left, "x"), self.posToVal(left + width, "x"));
      if (width > 0) self.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    };
    made.hooks.setSelect = [made_hook];
    return () => {
      watching.disconnect();
      ending.abort();
      made.destroy();
      plot.current = null;
    };
  }, [key]);
  const drawn = useRef<unknown>(null);
  useEffect(() => {
    if (drawn.current === curves) return;
    drawn.current = curves;
    plot.current?.setData(data);
  });
  return (
    <figure>
      <figcaption title={title}>{title}</figcaption>
      <div ref={frame} class="chart" aria-hidden="true" />
      <details open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>Table of {title}</summary>
        {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a table wider than the screen is scrolled by keyboard */}
        <section class="scroll tall" aria-label={`Values of ${title}`} tabIndex={0}>
          {isOpen ? <PointTable curves={curves} axis={axis} /> : null}
        </section>
      </details>
    </figure>
  );
}

/** Moves the curves with the mouse until its button is released. */
function pan(plot: uPlot, start: MouseEvent, onPan: (share: number) => void, signal: AbortSignal) {
  const { min, max } = plot.scales.x ?? {};
  if (min == null || max == null) return;
  const ending = new AbortController();
  signal.addEventListener("abort", () => ending.abort());
  const shareOf = (event: MouseEvent) => (start.clientX - event.clientX) / plot.over.clientWidth;
  const move = (event: MouseEvent) => {
    const moved = shareOf(event) * (max - min);
    plot.setScale("x", { min: min + moved, max: max + moved });
  };
  const end = (event: MouseEvent) => {
    ending.abort();
    if (event.clientX !== start.clientX) onPan(shareOf(event));
  };
  document.addEventListener("mousemove", move, { signal: ending.signal });
  document.addEventListener("mouseup", end, { signal: ending.signal });
}

function optionsOf(
  target: HTMLElement,
  { curves, isLog, axis, looks, hasLegend = true, onZoom }: Props,
): uPlot.Options {
  const style = getComputedStyle(target);
  const line = {
    stroke: style.color,
    grid: { stroke: style.borderColor, width: 1 },
    ticks: { stroke: style.borderColor },
  };
  const series = curves.map((curve, index) => {
    const { colour, dash } = lookOf(looks?.[index] ?? index);
    return { label: curve.name, stroke: colour, dash, width: 1.5, spanGaps: true };
  });
  return {
    width: target.clientWidth,
    height: HEIGHT,
    legend: { show: hasLegend },
    cursor: { drag: { x: onZoom !== undefined, y: false, setScale: false } },
    series: [{ label: axis === "time" ? "Time" : "Batches" }, ...series],
    axes: [line, { ...line, size: 64, values: (_, ticks) => ticks.map((tick) => formatNumber(tick)) }],
    scales: { x: { time: axis === "time" }, y: isLog ? { distr: 3 } : {} },
  };
}

function PointTable({ curves, axis }: { curves: Curve[]; axis: Axis }) {
  const [places, ...columns] = joinCurves(curves, axis);
  const rows = (places ?? []).slice(-TABLE_ROWS);
  const first = (places ?? []).length - rows.length;
  return (
    <table>
      <thead>
        <tr>
          <th scope="col">{axis === "time" ? "Time" : "Batches"}</th>
          {curves.map((curve) => (
            <th key={curve.name} scope="col">
              {curve.name}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.map((place, index) => (
          <tr key={place}>
            <th scope="row" class="number">
              {axis === "time" ? new Date(place * 1000).toLocaleString() : place}
            </th>
            {columns.map((values, column) => (
              <td key={curves[column]?.name} class="number">
                {formatNumber(values[first + index])}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
