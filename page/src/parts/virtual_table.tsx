/**
 * A table of thousands of rows, of which only the visible ones are in the document.
 *
 * Its roles are those of a table, so a screen reader counts rows and columns. The arrow keys, Home, End and the page
 * keys move the focus from row to row, to the first link of each.
 */

import { elementScroll, observeElementOffset, observeElementRect, Virtualizer } from "@tanstack/virtual-core";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

export interface Column<R> {
  id: string;
  title: string;
  /** In pixels. */
  width: number;
  isNumber?: boolean;
  cell: (row: R) => ComponentChildren;
}

interface Props<R> {
  label: string;
  columns: Column<R>[];
  /** How many columns stay at the left edge. */
  numPinned: number;
  /** The rows that are there; further ones are asked for by onEnd. */
  rows: R[];
  total: number;
  keyOf: (row: R) => string | number;
  onEnd: () => void;
}

const ROW_HEIGHT = 36;
const STEPS: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15 };

export function VirtualTable<R>({ label, columns, numPinned, rows, total, keyOf, onEnd }: Props<R>) {
  const frame = useRef<HTMLDivElement>(null);
  const wanted = useRef<number | null>(null);
  const [, setRound] = useState(0);
  const [virtualizer] = useState(
    () =>
      new Virtualizer<HTMLDivElement, HTMLDivElement>({
        count: 0,
        getScrollElement: () => frame.current,
        estimateSize: () => ROW_HEIGHT,
        overscan: 8,
        scrollToFn: elementScroll,
        observeElementRect,
        observeElementOffset,
        onChange: () => setRound((round) => round + 1),
      }),
  );
  virtualizer.setOptions({ ...virtualizer.options, count: rows.length });
  useLayoutEffect(() => virtualizer._didMount(), [virtualizer]);
  useLayoutEffect(() => virtualizer._willUpdate());
  const items = virtualizer.getVirtualItems();
  const last = items.at(-1)?.index ?? 0;
  const isEndNear = rows.length < total && last >= rows.length - 20;
  useEffect(() => {
    if (isEndNear) onEnd();
  }, [isEndNear, onEnd]);
  useEffect(() => {
    if (wanted.current !== null && focusRow(frame.current, wanted.current)) wanted.current = null;
  });

  const onKeyDown = (event: KeyboardEvent) => {
    const row = (event.target as Element).closest("[data-index]");
    const index = row instanceof HTMLElement ? Number(row.dataset.index) : -1;
    const step = STEPS[event.key];
    const goal = event.key === "Home" ? 0 : event.key === "End" ? rows.length - 1 : step && index + step;
    if (goal === undefined || index < 0) return;
    event.preventDefault();
    const target = Math.max(0, Math.min(rows.length - 1, goal));
    virtualizer.scrollToIndex(target);
    if (!focusRow(frame.current, target)) wanted.current = target;
  };

  const template = columns.map((column) => `${column.width}px`).join(" ");
  const width = columns.reduce((sum, column) => sum + column.width, 0);
  return (
    <div
      ref={frame}
      class="grid"
      role="table"
      aria-label={label}
      aria-rowcount={total + 1}
      aria-colcount={columns.length}
      onKeyDown={onKeyDown}
    >
      <div
        class="grid-row grid-head"
        role="row"
        aria-rowindex={1}
        style={{ gridTemplateColumns: template, width: `${width}px` }}
      >
        {columns.map((column, index) => (
          <Cell key={column.id} columns={columns} index={index} numPinned={numPinned} role="columnheader">
            {column.title}
          </Cell>
        ))}
      </div>
      <div role="rowgroup" class="grid-body" style={{ height: `${virtualizer.getTotalSize()}px`, width: `${width}px` }}>
        {items.map((item) => {
          const row = rows[item.index];
          return row === undefined ? null : (
            <div
              key={keyOf(row)}
              class="grid-row"
              role="row"
              data-index={item.index}
              aria-rowindex={item.index + 2}
              style={{ gridTemplateColumns: template, width: `${width}px`, transform: `translateY(${item.start}px)` }}
            >
              {columns.map((column, index) => (
                <Cell key={column.id} columns={columns} index={index} numPinned={numPinned} role="cell">
                  {column.cell(row)}
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
  role: "cell" | "columnheader";
  children: ComponentChildren;
}

function Cell<R>({ columns, index, numPinned, role, children }: CellProps<R>) {
  const isPinned = index < numPinned;
  const left = columns.slice(0, index).reduce((sum, column) => sum + column.width, 0);
  const kind = `grid-cell${columns[index]?.isNumber ? " number" : ""}${isPinned ? " pinned" : ""}`;
  return (
    <div role={role} class={kind} aria-colindex={index + 1} style={isPinned ? { left: `${left}px` } : {}}>
      {children}
    </div>
  );
}

function focusRow(frame: HTMLElement | null, index: number): boolean {
  const link = frame?.querySelector(`[data-index="${index}"] a`);
  if (!(link instanceof HTMLElement)) return false;
  link.focus({ preventScroll: true });
  return true;
}
