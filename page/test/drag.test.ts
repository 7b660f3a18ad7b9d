import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { followDrag, partBetween } from "../src/parts/drag";

let target: EventTarget & { setPointerCapture: () => void; hasPointerCapture: () => boolean };
let screen: EventTarget;
let calls: string[];

beforeEach(() => {
  target = Object.assign(new EventTarget(), { setPointerCapture: () => {}, hasPointerCapture: () => false });
  screen = new EventTarget();
  calls = [];
  vi.stubGlobal("document", screen);
});
afterEach(() => vi.unstubAllGlobals());

function send(name: string, clientX: number, more: object = {}): void {
  const values = { pointerId: 1, clientX, buttons: 1, ...more };
  target.dispatchEvent(Object.assign(new Event(name), values));
}

function press(more: object = {}, signal?: AbortSignal): void {
  const event = { button: 0, isPrimary: true, pointerId: 1, clientX: 100, currentTarget: target, ...more };
  const drag = {
    move: (by: number) => calls.push(`move ${by}`),
    end: (by: number) => calls.push(`end ${by}`),
    cancel: () => calls.push("cancel"),
  };
  followDrag(event as unknown as PointerEvent, drag, signal);
}

function pressEscape(): Event {
  const key = Object.assign(new Event("keydown", { cancelable: true }), { key: "Escape" });
  screen.dispatchEvent(key);
  return key;
}

it("ends with the release, once", () => {
  press();
  send("pointermove", 130);
  send("pointerup", 140, { buttons: 0 });
  for (const name of ["pointermove", "pointerup", "pointercancel", "lostpointercapture"]) send(name, 150);
  pressEscape();
  expect(calls).toEqual(["move 30", "end 40"]);
});

it("begins with no other button and no second finger, and a second one does not end it", () => {
  press({ button: 2 });
  press({ isPrimary: false });
  send("pointermove", 130);
  expect(calls).toEqual([]);
  press();
  send("pointermove", 130, { buttons: 3 });
  send("pointerup", 500, { pointerId: 2 });
  send("pointermove", 120, { buttons: 1 });
  expect(calls).toEqual(["move 30", "move 20"]);
});

it("ends where the pointer was last seen, if the release came to another window", () => {
  press();
  send("pointermove", 130);
  send("pointermove", 900, { buttons: 0 });
  send("pointermove", 910);
  expect(calls).toEqual(["move 30", "end 30"]);
});

it.each(["pointercancel", "lostpointercapture"])("is cancelled by %s", (name) => {
  press();
  send("pointermove", 130);
  send(name, 130);
  send("pointerup", 140);
  expect(calls).toEqual(["move 30", "cancel"]);
});

it("is cancelled by the Escape key, which does nothing else then", () => {
  press();
  send("pointermove", 130);
  expect(pressEscape().defaultPrevented).toBe(true);
  send("pointerup", 140);
  expect(calls).toEqual(["move 30", "cancel"]);
  expect(pressEscape().defaultPrevented).toBe(false);
});

it("calls nothing once what was dragged is no more", () => {
  const ending = new AbortController();
  press({}, ending.signal);
  ending.abort();
  send("pointermove", 130);
  send("pointerup", 140);
  expect(calls).toEqual([]);
});

it("chooses the part between two places, in either direction, and none outside of the width", () => {
  expect(partBetween(10, 30, 100)).toEqual({ left: 10, width: 30 });
  expect(partBetween(40, -30, 100)).toEqual({ left: 10, width: 30 });
  expect(partBetween(40, 900, 100)).toEqual({ left: 40, width: 60 });
  expect(partBetween(40, -900, 100)).toEqual({ left: 0, width: 40 });
  expect(partBetween(40, 0, 100)).toEqual({ left: 40, width: 0 });
});
