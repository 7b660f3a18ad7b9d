/** Follows a pointer from its press to its release, wherever it goes. Charts and tables use it for what is dragged. */

/** What follows the pointer. by: pixels to the right of the press. One of `end` and `cancel` is called, once. */
export interface Drag {
  move: (by: number) => void;
  end: (by: number) => void;
  cancel: () => void;
}

/**
 * Begins a drag with the first button, or with one finger. It ends with the release, also outside of the window, or
 * where the release came to another window. The Escape key and the browser, which may take a finger for scrolling,
 * cancel it; other buttons do not count. signal: ends it without a call, because what was dragged is no more.
 */
export function followDrag(press: PointerEvent, drag: Drag, signal?: AbortSignal): void {
  if (press.button !== 0 || !press.isPrimary) return;
  const target = press.currentTarget as Element;
  target.setPointerCapture(press.pointerId);
  const ending = new AbortController();
  const until = { signal: ending.signal };
  let by = 0;
  const finish = (isDone: boolean) => {
    ending.abort();
    if (target.hasPointerCapture(press.pointerId)) target.releasePointerCapture(press.pointerId);
    if (isDone) drag.end(by);
    else drag.cancel();
  };
  const listen = (name: string, onEvent: (event: PointerEvent) => void) => {
    const ofPointer = (event: Event) => {
      if ((event as PointerEvent).pointerId === press.pointerId) onEvent(event as PointerEvent);
    };
    target.addEventListener(name, ofPointer, until);
  };
  listen("pointermove", (event) => {
    if ((event.buttons & 1) === 0) return finish(true);
    by = event.clientX - press.clientX;
    drag.move(by);
  });
  listen("pointerup", (event) => {
    by = event.clientX - press.clientX;
    finish(true);
  });
  listen("pointercancel", () => finish(false));
  listen("lostpointercapture", () => finish(false));
  const onKey = (event: KeyboardEvent) => {
    if (event.key !== "Escape") return;
    // The same key would close a dialog around it.
    event.preventDefault();
    event.stopPropagation();
    finish(false);
  };
  document.addEventListener("keydown", onKey, { ...until, capture: true });
  signal?.addEventListener("abort", () => ending.abort(), until);
}

/** Returns the part of a width that lies between a press and the pointer. */
export function partBetween(start: number, by: number, width: number): { left: number; width: number } {
  const [a, b] = [start, start + by].map((place) => Math.min(width, Math.max(0, place))) as [number, number];
  return { left: Math.min(a, b), width: Math.abs(a - b) };
}
