/**
 * A grid of thousands of rows, of which only the visible ones are in the document.
 *
 * Its roles are those of a grid, so a screen reader counts rows and columns. The arrow keys move the focus from cell to
 * cell, to what can be used in it; Home and End to the first and last column, with Ctrl to the first and last row.
 */

import { elementScroll, observeElementOffset, observeElementRect, Virtualizer } from "@tanstack/virtual-core";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { MIN_WIDTH } from "../lib/columns";
import { followDrag } from "./drag";

export interface Column<R> {
  id: string;
  title: string;
  /** In pixels. */
  width: number;
  isNumber?: boolean;
  /** What the head shows in place of the title. */
  head?: ComponentChildren;
  /** How the rows are sorted by this column. */
  sorted?: "ascending" | "descending";
  /** Whether the reader may change its width. */
  isResizable?: boolean;
  cell: (row: R) => ComponentChildren;
}

interface Props<R> {
  label: string;
  columns: Column<R>[];
  /** How many columns stay at the left edge. */
  numPinned: number;
  total: number;
  /** Returns the row of this index; undefined while it is not there. */
  rowAt: (index: number) => R | undefined;
  keyOf: (row: R) => string | number;
  /** Marks a row with a class. */
  kindOf?: (row: R) => string;
  /** Called with the indices of the rows that are shown, or soon will be. */
  onRange: (first: number, last: number) => void;
  onResize?: (id: string, width: number) => void;
}

const ROW_HEIGHT = 36;
const PAGE_STEP = 15;
const AHEAD = 30;
const NUM_UNSEEN = 8;

export function VirtualTable<R>(props: Props<R>) {
  const { label, columns, numPinned, total, rowAt, keyOf, kindOf, onRange, onResize } = props;
  const frame = useRef<HTMLDivElement>(null);
  const wanted = useRef<Place | null>(null);
  const held = useRef<Place | null>(null);
  const [, setRound] = useState(0);
  const [dragged, setDragged] = useState<{ id: string; width: number } | null>(null);
  const [virtualizer] = useState(
    () =>
      new Virtualizer<HTMLDivElement, HTMLDivElement>({
        count: 0,
        getScrollElement: () => frame.current,
        estimateSize: () => ROW_HEIGHT,
        overscan: NUM_UNSEEN,
        scrollToFn: elementScroll,
        observeElementRect,
        observeElementOffset,
        onChange: () => setRound((round) => round + 1),
      }),
  );
  virtualizer.setOptions({ ...virtualizer.options, count: total });
  useLayoutEffect(() => virtualizer._didMount(), [virtualizer]);
  useLayoutEffect(() => virtualizer._willUpdate());
  const items = virtualizer.getVirtualItems();
  const first = items[0]?.index ?? 0;
  const last = Math.min(total - 1, (items.at(-1)?.index ?? 0) + AHEAD);
  useEffect(() => onRange(first, last), [first, last, onRange]);
  // Before anything else happens: a key that comes while nothing has the focus would be lost.
  useLayoutEffect(() => {
    if (wanted.current !== null && focusCell(frame.current, wanted.current)) wanted.current = null;
    // The row that had the focus was replaced, as by its values, or has come back into the document.
    else if (held.current !== null && document.activeElement === document.body) {
      focusCell(frame.current, held.current, false);
    }
  });
  useEffect(() => {
    const forget = (event: Event) => {
      if (!frame.current?.contains(event.target as Element)) held.current = null;
    };
    document.addEventListener("focusin", forget);
    document.addEventListener("pointerdown", forget);
    return () => {
      document.removeEventListener("focusin", forget);
      document.removeEventListener("pointerdown", forget);
    };
  }, []);

  const onKeyDown = (event: KeyboardEvent) => {
    // A key that comes before the goal of the last one is in the document goes on from that goal.
    const from = wanted.current ?? placeOf(event.target as Element);
    const goal = from && goalOf(event, from, total, columns.length);
    if (!goal) return;
    event.preventDefault();
    if (goal.row >= 0) virtualizer.scrollToIndex(goal.row);
    wanted.current = focusCell(frame.current, goal) ? null : goal;
    // What had the focus may leave the document meanwhile.
    if (wanted.current !== null) frame.current?.focus({ preventScroll: true });
  };

  const shown = columns.map((column) => (column.id === dragged?.id ? { ...column, width: dragged.width } : column));
  const template = shown.map((column) => `${column.width}px`).join(" ");
  const width = shown.reduce((sum, column) => sum + column.width, 0);
  return (
    <div
      ref={frame}
      class="grid"
      role="grid"
      tabIndex={-1}
      aria-label={label}
      aria-rowcount={total + 1}
      aria-colcount={shown.length}
      onKeyDown={onKeyDown}
      onFocusIn={(event) => {
        held.current = placeOf(event.target as Element);
      }}
    >
      <div role="rowgroup" class="grid-head" style={{ width: `${width}px` }}>
        <div class="grid-row" role="row" data-row={-1} aria-rowindex={1} style={{ gridTemplateColumns: template }}>
          {shown.map((column, index) => (
            <Cell key={column.id} columns={shown} index={index} numPinned={numPinned} role="columnheader">
              {column.head ?? column.title}
              {column.isResizable && onResize ? (
                <Edge
                  width={column.width}
                  onMove={(to) => setDragged({ id: column.id, width: to })}
                  onEnd={(to) => {
                    setDragged(null);
                    if (to !== null) onResize(column.id, to);
                  }}
                />
              ) : null}
            </Cell>
          ))}
        </div>
      </div>
      <div role="rowgroup" class="grid-body" style={{ height: `${virtualizer.getTotalSize()}px`, width: `${width}px` }}>
        {items.map((item) => {
          const row = rowAt(item.index);
          return (
            <div
              key={row === undefined ? `place ${item.index}` : keyOf(row)}
              class={`grid-row ${row === undefined ? "" : (kindOf?.(row) ?? "")}`}
              role="row"
              data-row={item.index}
              aria-rowindex={item.index + 2}
              style={{ gridTemplateColumns: template, width: `${width}px`, transform: `translateY(${item.start}px)` }}
            >
              {shown.map((column, index) => (
                <Cell key={column.id} columns={shown} index={index} numPinned={numPinned} role="gridcell">
                  {row === undefined ? <span class="quiet">…</span> : column.cell(row)}
                </Cell>
              ))}
            </div>
          );
        })}
      </div>
    </div>
  );
}

interface CellProps<R> {
  columns: Column<R>[];
  index: number;
  numPinned: number;
  role: "gridcell" | "columnheader";
  children: ComponentChildren;
}

function Cell<R>({ columns, index, numPinned, role, children }: CellProps<R>) {
  const isPinned = index < numPinned;
  const left = columns.slice(0, index).reduce((sum, column) => sum + column.width, 0);
  const kind = `grid-cell${columns[index]?.isNumber ? " number" : ""}${isPinned ? " pinned" : ""}`;
  const sorted = role === "columnheader" ? columns[index]?.sorted : undefined;
  return (
    <div
      role={role}
      class={kind}
      tabIndex={-1}
      data-column={index}
      aria-colindex={index + 1}
      aria-sort={sorted}
      style={isPinned ? { left: `${left}px` } : {}}
    >
      {children}
    </div>
  );
}

interface EdgeProps {
  width: number;
  onMove: (to: number) => void;
  /** to: null if the drag was cancelled. */
  onEnd: (to: number | null) => void;
}

/** The right edge of a head, which is drawn to the wanted width. The dialog of the columns does the same by keyboard. */
function Edge({ width, onMove, onEnd }: EdgeProps) {
  const widthAt = (by: number) => Math.max(MIN_WIDTH, width + by);
  const drag = {
    move: (by: number) => onMove(widthAt(by)),
    end: (by: number) => onEnd(by === 0 ? null : widthAt(by)),
    cancel: () => onEnd(null),
  };
  return <span class="edge" aria-hidden="true" onPointerDown={(event) => followDrag(event, drag)} />;
}

/** A cell. Row -1 is the head. */
interface Place {
  row: number;
  column: number;
}

function placeOf(target: Element): Place | null {
  const row = target.closest("[data-row]");
  const column = target.closest("[data-column]");
  if (!(row instanceof HTMLElement && column instanceof HTMLElement)) return null;
  return { row: Number(row.dataset.row), column: Number(column.dataset.column) };
}

/** Returns the cell that a key leads to; null for a key without a meaning here. */
function goalOf(event: KeyboardEvent, { row, column }: Place, numRows: number, numColumns: number): Place | null {
  const goals: Record<string, Place> = {
    ArrowDown: { row: row + 1, column },
    ArrowUp: { row: row - 1, column },
    ArrowRight: { row, column: column + 1 },
    ArrowLeft: { row, column: column - 1 },
    PageDown: { row: row + PAGE_STEP, column },
    PageUp: { row: Math.max(0, row - PAGE_STEP), column },
    Home: event.ctrlKey ? { row: 0, column: 0 } : { row, column: 0 },
    End: event.ctrlKey ? { row: numRows - 1, column: numColumns - 1 } : { row, column: numColumns - 1 },
  };
  const goal = goals[event.key];
  if (goal === undefined) return null;
  return {
    row: Math.max(-1, Math.min(numRows - 1, goal.row)),
    column: Math.max(0, Math.min(numColumns - 1, goal.column)),
  };
}

function focusCell(frame: HTMLElement | null, place: Place, isScrolling = true): boolean {
  const cell = frame?.querySelector(`[data-row="${place.row}"] [data-column="${place.column}"]`);
  if (!(cell instanceof HTMLElement)) return false;
  const usable = cell.querySelector("a, button, input");
  (usable instanceof HTMLElement ? usable : cell).focus({ preventScroll: true });
  if (isScrolling) cell.scrollIntoView({ block: "nearest", inline: "nearest" });
  return true;
}
