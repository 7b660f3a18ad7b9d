/** Curves over batches, drawn by uPlot, with a table of the same points behind them. Loaded with the first chart. */

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { type Curve, joinCurves } from "../lib/curves";
import { formatNumber } from "../lib/text";
import "uplot/dist/uPlot.min.css";

// Each is told from its neighbours in both themes; dashes tell more curves apart.
const COLOURS = ["#2f6fc4", "#c2571a", "#14803c", "#8a4bd0", "#b3201a", "#0d8390", "#8a6d00", "#c03b88"];
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
const HEIGHT = 280;
const TABLE_ROWS = 200;

export function Chart({ title, curves, isLog }: { title: string; curves: Curve[]; isLog: boolean }) {
  const frame = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const names = curves.map((curve) => curve.name).join("\n");
  const data = joinCurves(curves);
  const latest = useRef(data);
  latest.current = data;
  useEffect(() => {
    const target = frame.current;
    if (target === null) return;
    const style = getComputedStyle(target);
    const axis = {
      stroke: style.color,
      grid: { stroke: style.borderColor, width: 1 },
      ticks: { stroke: style.borderColor },
    };
    const series = names.split("\n").map((label, index) => ({
      label,
      stroke: COLOURS[index % COLOURS.length] ?? "",
      dash: DASHES[Math.floor(index / COLOURS.length) % DASHES.length] ?? [],
      width: 1.5,
      spanGaps: true,
    }));
    const options: uPlot.Options = {
      width: target.clientWidth,
      height: HEIGHT,
      series: [{ label: "Batches" }, ...series],
      axes: [axis, { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => formatNumber(tick)) }],
      scales: { x: { time: false }, y: isLog ? { distr: 3 } : {} },
    };
    const made = new uPlot(options, latest.current as uPlot.AlignedData, target);
    plot.current = made;
    const watching = new ResizeObserver(() => made.setSize({ width: target.clientWidth, height: HEIGHT }));
    watching.observe(target);
    return () => {
      watching.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [names, isLog]);
  useEffect(() => {
    plot.current?.setData(data as uPlot.AlignedData, false);
    plot.current?.redraw();
    if (plot.current !== null) plot.current.setData(data as uPlot.AlignedData);
  });
  return (
    <figure>
      <figcaption>{title}</figcaption>
      <div ref={frame} class="chart" aria-hidden="true" />
      <details>
        <summary>Table of {title}</summary>
        {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a table wider than the screen is scrolled by keyboard */}
        <section class="scroll tall" aria-label={`Values of ${title}`} tabIndex={0}>
          <PointTable curves={curves} />
        </section>
      </details>
    </figure>
  );
}

function PointTable({ curves }: { curves: Curve[] }) {
  const [batches, ...columns] = joinCurves(curves);
  const rows = (batches ?? []).slice(-TABLE_ROWS);
  const first = (batches ?? []).length - rows.length;
  return (
    <table>
      <thead>
        <tr>
          <th scope="col">Batches</th>
          {curves.map((curve) => (
            <th key={curve.name} scope="col">
              {curve.name}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.map((batch, index) => (
          <tr key={batch}>
            <th scope="row" class="number">
              {batch}
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
