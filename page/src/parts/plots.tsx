/** Plots of the trials of a search: hyperparameters beside one another, and against the metric. Drawn in SVG. Each says
 * in words what it shows; the table of the trials has the same values. */

import { useState } from "preact/hooks";
import { lookOf } from "../lib/look";
import { binned, type Scale, scaleOf } from "../lib/scale";
import { formatNumber, formatValue } from "../lib/text";
import { go } from "../router";

export interface Sample {
  id: string;
  /** null for a trial without a value of the metric. */
  metric: number | null;
  hparams: Record<string, unknown>;
}

const WIDTH = 900;
const HEIGHT = 360;
const PAD = { left: 70, right: 20, top: 24, bottom: 40 };

/** Returns a place from 0, the best, to 1, the worst; null without a value. */
function qualityOf(samples: Sample[], isSmallerBetter: boolean): (sample: Sample) => number | null {
  const scale = scaleOf(
    samples.map((sample) => sample.metric),
    formatValue,
  );
  return (sample) => {
    const at = scale.place(sample.metric);
    return at === null || isSmallerBetter ? at : 1 - at;
  };
}

interface Props {
  samples: Sample[];
  metric: string;
  isSmallerBetter: boolean;
}

/** Draws an axis for each name, and a line for each trial. The best fifth is drawn thicker, and last. */
export function ParallelCoordinates({ samples, metric, isSmallerBetter, names }: Props & { names: string[] }) {
  const [hovered, setHovered] = useState("");
  const axes = [...names, ""];
  const readValue = (sample: Sample, name: string) => (name === "" ? sample.metric : sample.hparams[name]);
  const scales = axes.map((name) =>
    scaleOf(
      samples.map((sample) => readValue(sample, name)),
      formatValue,
    ),
  );
  const quality = qualityOf(samples, isSmallerBetter);
  const width = Math.max(WIDTH, axes.length * 110);
  const x = (index: number) => PAD.left + (index * (width - PAD.left - 110)) / Math.max(1, axes.length - 1);
  const y = (at: number) => PAD.top + (1 - at) * (HEIGHT - PAD.top - PAD.bottom);
  const rated = samples.filter((sample) => sample.metric !== null);
  const ordered = [...rated].sort((a, b) => (quality(b) ?? 1) - (quality(a) ?? 1));
  const numBest = Math.ceil(ordered.length / 5);
  return (
    <Figure
      title="Parallel coordinates"
      text={`${rated.length} trials, an axis for each hyperparameter and for ${metric}. The best ${numBest} have solid, thick lines.`}
      width={width}
      height={HEIGHT}
    >
      {ordered.map((sample, index) => {
        const isBest = index >= ordered.length - numBest;
        const places = axes.map((name, axis) => scales[axis]?.place(readValue(sample, name)) ?? null);
        const line = places.map((at, axis) => (at === null ? "" : `${x(axis)},${y(at)}`)).filter((part) => part !== "");
        const kind = `${isBest ? "best" : "other"}${hovered === sample.id ? " chosen" : ""}`;
        return (
          // biome-ignore lint/a11y/noStaticElementInteractions: the table of trials has the same links for the keyboard
          <polyline
            key={sample.id}
            class={`path ${kind}`}
            points={line.join(" ")}
            onMouseEnter={() => setHovered(sample.id)}
            onClick={() => go(`/trials/${sample.id}`)}
          >
            <title>{`Trial ${sample.id}: ${metric} ${formatNumber(sample.metric)}`}</title>
          </polyline>
        );
      })}
      {axes.map((name, index) => (
        <g key={name} transform={`translate(${x(index)} 0)`}>
          <line y1={y(0)} y2={y(1)} class="axis" />
          <text y={HEIGHT - 12} text-anchor="middle">
            <title>{name || metric}</title>
            {short(name || metric)}
          </text>
          {scales[index]?.ticks.map((tick) => (
            <text key={tick.text} x={4} y={y(tick.at) + 4} class="tick">
              {short(tick.text, 12)}
            </text>
          ))}
        </g>
      ))}
    </Figure>
  );
}

/** Draws a dot for each trial: a hyperparameter against the metric. */
export function Scatter({ samples, metric, name }: { samples: Sample[]; metric: string; name: string }) {
  const rated = samples.filter((sample) => sample.metric !== null);
  const across = scaleOf(
    rated.map((sample) => sample.hparams[name]),
    formatValue,
  );
  const up = scaleOf(
    rated.map((sample) => sample.metric),
    formatValue,
  );
  return (
    <Figure
      title={`${metric} by ${name}`}
      text={`A dot for each of ${rated.length} trials.`}
      width={WIDTH}
      height={HEIGHT}
    >
      <Axes across={across} up={up} acrossName={name} upName={metric} />
      {rated.map((sample) => {
        const left = across.place(sample.hparams[name]);
        const top = up.place(sample.metric);
        if (left === null || top === null) return null;
        return (
          // biome-ignore lint/a11y/noStaticElementInteractions: the table of trials has the same links for the keyboard
          <circle
            key={sample.id}
            class="dot"
            cx={alongX(left)}
            cy={alongY(top)}
            r={5}
            fill={lookOf(0).colour}
            onClick={() => go(`/trials/${sample.id}`)}
          >
            <title>{`Trial ${sample.id}: ${formatValue(sample.hparams[name])}, ${formatNumber(sample.metric)}`}</title>
          </circle>
        );
      })}
    </Figure>
  );
}

const BINS = 8;

/** Draws the mean of the metric in bins of two hyperparameters. Each bin has its number, so no colour stands alone. */
export function HeatMap({ samples, metric, isSmallerBetter, names }: Props & { names: [string, string] }) {
  const rated = samples.filter((sample) => sample.metric !== null);
  const [across, up] = names.map((name) =>
    scaleOf(
      rated.map((sample) => sample.hparams[name]),
      formatValue,
    ),
  ) as [Scale, Scale];
  const bins = binned(
    rated.map((sample) => ({
      x: across.place(sample.hparams[names[0]]),
      y: up.place(sample.hparams[names[1]]),
      value: sample.metric,
    })),
    BINS,
  );
  const means = scaleOf(
    bins.map((bin) => bin.mean),
    formatValue,
  );
  const width = (WIDTH - PAD.left - PAD.right) / BINS;
  const height = (HEIGHT - PAD.top - PAD.bottom) / BINS;
  return (
    <Figure
      title={`Mean of ${metric} by ${names[0]} and ${names[1]}`}
      text={`${rated.length} trials in ${bins.length} bins; a stronger colour is better.`}
      width={WIDTH}
      height={HEIGHT}
    >
      <Axes across={across} up={up} acrossName={names[0]} upName={names[1]} />
      {bins.map((bin) => {
        const at = means.place(bin.mean) ?? 0.5;
        const strength = isSmallerBetter ? 1 - at : at;
        const left = PAD.left + bin.column * width;
        const top = HEIGHT - PAD.bottom - (bin.row + 1) * height;
        return (
          <g key={`${bin.column} ${bin.row}`}>
            <rect x={left} y={top} width={width} height={height} class="bin" fill-opacity={0.05 + 0.4 * strength}>
              <title>{`mean ${formatNumber(bin.mean)} of ${bin.count} trials`}</title>
            </rect>
            <text x={left + width / 2} y={top + height / 2 + 5} text-anchor="middle">
              {formatNumber(Number(bin.mean.toPrecision(3)))}
            </text>
          </g>
        );
      })}
    </Figure>
  );
}

function alongX(at: number): number {
  return PAD.left + at * (WIDTH - PAD.left - PAD.right);
}

function alongY(at: number): number {
  return HEIGHT - PAD.bottom - at * (HEIGHT - PAD.top - PAD.bottom);
}

function Axes({ across, up, acrossName, upName }: { across: Scale; up: Scale; acrossName: string; upName: string }) {
  return (
    <>
      <line x1={alongX(0)} x2={alongX(1)} y1={alongY(0)} y2={alongY(0)} class="axis" />
      <line x1={alongX(0)} x2={alongX(0)} y1={alongY(0)} y2={alongY(1)} class="axis" />
      {across.ticks.map((tick) => (
        <text key={tick.text} x={alongX(tick.at)} y={HEIGHT - 24} text-anchor="middle" class="tick">
          {short(tick.text, 12)}
        </text>
      ))}
      {up.ticks.map((tick) => (
        <text key={tick.text} x={PAD.left - 6} y={alongY(tick.at) + 4} text-anchor="end" class="tick">
          {short(tick.text, 8)}
        </text>
      ))}
      <text x={alongX(0.5)} y={HEIGHT - 6} text-anchor="middle">
        {short(acrossName, 60)}
      </text>
      <text x={PAD.left} y={14}>
        {short(upName, 60)}
      </text>
    </>
  );
}

interface FigureProps {
  title: string;
  text: string;
  width: number;
  height: number;
  children: preact.ComponentChildren;
}

function Figure({ title, text, width, height, children }: FigureProps) {
  return (
    <figure>
      <figcaption>{title}</figcaption>
      <p class="quiet">{text}</p>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a plot wider than the screen is scrolled by keyboard */}
      <section class="scroll" aria-label={title} tabIndex={0}>
        <svg class="plot" role="img" aria-label={`${title}: ${text}`} width={width} height={height}>
          {children}
        </svg>
      </section>
    </figure>
  );
}

/** Returns a name of at most so many characters, with its end. */
function short(name: string, most = 16): string {
  const characters = Array.from(name);
  if (characters.length <= most) return name;
  const tail = Math.floor(most / 3);
  return `${characters.slice(0, most - tail - 1).join("")}…${characters.slice(-tail).join("")}`;
}
