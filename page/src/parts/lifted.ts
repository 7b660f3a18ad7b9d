/**
 * Moves the drawn curves of a chart without drawing them again: a hundred dashed curves take longer than a frame.
 *
 * The curves with the axis below them are copied into a strip, which the browser moves in a frame over the chart. The
 * frame hides what is drawn meanwhile. Nothing is lost by that: what lies outside of the drawn part is read only once the
 * drag is over.
 */

import type uPlot from "uplot";

export interface Lifted {
  /** by: CSS pixels to the right. */
  move: (by: number) => void;
  /** Ends the strip. The caller draws the chart anew, which has an empty part until then. */
  drop: () => void;
}

/** Returns null where nothing is drawn. */
export function lift(plot: uPlot): Lifted | null {
  const { left, top, width } = plot.bbox;
  const source = plot.ctx.canvas;
  const height = source.height - top;
  const strip = document.createElement("canvas");
  strip.width = width;
  strip.height = height;
  const context = strip.getContext("2d");
  if (context === null || width === 0 || height === 0) return null;
  context.drawImage(source, left, top, width, height, 0, 0, width, height);
  // Drawn pixels in one CSS pixel.
  const ratio = width / plot.over.clientWidth;
  const frame = document.createElement("div");
  frame.className = "lifted";
  Object.assign(frame.style, {
    left: `${left / ratio}px`,
    top: `${top / ratio}px`,
    width: `${width / ratio}px`,
    height: `${height / ratio}px`,
  });
  Object.assign(strip.style, { width: `${width / ratio}px`, height: `${height / ratio}px` });
  frame.append(strip);
  plot.over.before(frame);
  return {
    move: (by) => {
      strip.style.transform = `translateX(${by}px)`;
    },
    drop: () => frame.remove(),
  };
}
