/** Curves over batches or time, drawn by uPlot, with a table of the same points behind them. Loaded with the first chart. */

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { type Axis, type Curve, joinCurves } from "../lib/curves";
import { lookOf } from "../lib/look";
import { formatNumber } from "../lib/text";
import { type Drag, followDrag, partBetween } from "./drag";
import { type Lifted, lift } from "./lifted";
import "uplot/dist/uPlot.min.css";

const HEIGHT = 280;
const TABLE_ROWS = 200;
const LEAST_PIXELS = 5;

interface Props {
  title: string;
  curves: Curve[];
  isLog: boolean;
  axis?: Axis;
  /** Gets a part of the axis that was chosen with the mouse. */
  onZoom?: (low: number, high: number) => void;
  /**
   * Gets the part of the drawn width by which a drag with the Shift key has moved the curves; above 0 to later ones.
   * Returns whether other batches are drawn from then on.
   */
  onPan?: (share: number) => boolean;
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
    const made = new uPlot(options, latest.current.data, target);
    plot.current = made;
    const onPress = (event: PointerEvent) => {
      const { onPan, onZoom } = latest.current.props;
      const drag = event.shiftKey ? onPan && panned(made, onPan) : onZoom && chosen(made, event.clientX, onZoom);
      if (drag) followDrag(event, drag, ending.signal);
    };
    made.over.addEventListener("pointerdown", onPress);
    const onDouble = () => latest.current.props.onReset?.();
    made.over.addEventListener("dblclick", onDouble);
    const watching = new ResizeObserver(() => made.setSize({ width: target.clientWidth, height: HEIGHT }));
    watching.observe(target);
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

/** Moves the curves with the pointer. Where no other batches are drawn then, they go back. */
function panned(plot: uPlot, onPan: (share: number) => boolean): Drag | null {
  const { min, max } = plot.scales.x ?? {};
  const width = plot.over.clientWidth;
  if (min == null || max == null || width === 0) return null;
  let lifted: Lifted | null = null;
  const drop = (moved: number) => {
    lifted?.drop();
    lifted = null;
    if (moved !== 0) plot.setScale("x", { min: min + moved, max: max + moved });
  };
  return {
    move: (by) => {
      lifted ??= lift(plot);
      lifted?.move(by);
    },
    end: (by) => drop(by !== 0 && onPan(-by / width) ? (-by / width) * (max - min) : 0),
    cancel: () => drop(0),
  };
}

/** Chooses a part of the axis with the pointer. A part of fewer pixels is a press. */
function chosen(plot: uPlot, pressedAt: number, onZoom: (low: number, high: number) => void): Drag {
  const { left, width: whole, height } = plot.over.getBoundingClientRect();
  const partOf = (by: number) => partBetween(pressedAt - left, by, whole);
  const hide = () => plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  return {
    move: (by) => plot.setSelect({ ...partOf(by), top: 0, height }, false),
    end: (by) => {
      hide();
      const part = partOf(by);
      if (part.width >= LEAST_PIXELS) onZoom(plot.posToVal(part.left, "x"), plot.posToVal(part.left + part.width, "x"));
    },
    cancel: hide,
  };
}

function optionsOf(target: HTMLElement, { curves, isLog, axis, looks, hasLegend = true }: Props): uPlot.Options {
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
    // Drags are followed by `followDrag`.
    cursor: {
      drag: { x: false, y: false, setScale: false },
      bind: { mousedown: () => () => null },
      // One element for each curve follows the mouse. With many of them a movement would take longer than a frame.
      points: { show: hasLegend },
    },
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
