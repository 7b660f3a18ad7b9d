import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { later, Retry, startWaking, wake } from "../src/api/again";
import { isConnected } from "../src/api/client";

vi.mock("../src/router", () => ({ basePath: () => "/" }));

beforeEach(() => {
  vi.useFakeTimers();
  vi.spyOn(Math, "random").mockReturnValue(1);
});
afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
});

it("tries again later with each failure, at least every 30 seconds, and begins anew after a success", () => {
  const retry = new Retry();
  const pauses: number[] = [];
  for (let number = 0; number < 9; number++) {
    const began = Date.now();
    retry.soon(() => pauses.push(Date.now() - began));
    vi.advanceTimersByTime(60_000);
  }
  expect(pauses).toEqual([500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
  retry.succeed();
  const call = vi.fn();
  retry.soon(call, 2000);
  vi.advanceTimersByTime(1999);
  expect(call).not.toHaveBeenCalled();
  vi.advanceTimersByTime(1);
  expect(call).toHaveBeenCalledTimes(1);
});

it("has one pause at a time, and none after its end", () => {
  const [first, second] = [vi.fn(), vi.fn()];
  const retry = new Retry();
  retry.soon(first);
  retry.soon(second);
  vi.advanceTimersByTime(60_000);
  expect([first.mock.calls.length, second.mock.calls.length]).toEqual([0, 1]);
  retry.soon(first);
  retry.end();
  vi.advanceTimersByTime(60_000);
  wake();
  expect(first).not.toHaveBeenCalled();
});

it("is woken once by a window that becomes visible, by the network, and by a call that reaches the gateway", () => {
  const shown = Object.assign(new EventTarget(), { hidden: true });
  const network = new EventTarget();
  vi.stubGlobal("document", shown);
  vi.stubGlobal("addEventListener", network.addEventListener.bind(network));
  isConnected.value = false;
  startWaking();
  const wakings: (() => void)[] = [
    () => {
      shown.hidden = false;
      shown.dispatchEvent(new Event("visibilitychange"));
    },
    () => network.dispatchEvent(new Event("online")),
    () => {
      isConnected.value = true;
    },
  ];
  const call = vi.fn();
  later(20_000, call);
  shown.dispatchEvent(new Event("visibilitychange"));
  expect(call).not.toHaveBeenCalled();
  for (const [index, waken] of wakings.entries()) {
    waken();
    expect(call).toHaveBeenCalledTimes(index + 1);
    later(20_000, call);
  }
  vi.advanceTimersByTime(20_000);
  expect(call).toHaveBeenCalledTimes(4);
});
