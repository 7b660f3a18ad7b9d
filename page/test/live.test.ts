import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { ApiError } from "../src/api/client";
import { Readings } from "../src/api/live";

vi.mock("../src/router", () => ({ basePath: () => "/" }));

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

/** A value whose readings the test ends. */
function begin() {
  const waiting: { signal: AbortSignal; pass: (value: number) => void; fail: (failure: unknown) => void }[] = [];
  const seen = { values: [] as number[], errors: [] as string[] };
  const readings = new Readings<number>(
    (signal) => new Promise((pass, fail) => waiting.push({ signal, pass, fail })),
    (value) => seen.values.push(value),
    (error) => seen.errors.push(error.message),
  );
  const passing = (milliseconds = 0) => vi.advanceTimersByTimeAsync(milliseconds);
  return { readings, waiting, seen, passing };
}

it("lets a reading end however often it is asked meanwhile, and reads once more", async () => {
  const { readings, waiting, seen, passing } = begin();
  for (let number = 0; number < 5; number++) readings.again();
  expect([waiting.length, waiting[0]?.signal.aborted]).toEqual([1, false]);
  waiting[0]?.pass(1);
  await passing();
  expect([seen.values, waiting.length]).toEqual([[1], 2]);
  waiting[1]?.pass(2);
  await passing();
  expect([seen.values, waiting.length]).toEqual([[1, 2], 2]);
});

it("reads again by itself after a failure that may pass alone", async () => {
  const { readings, waiting, seen, passing } = begin();
  readings.again();
  waiting[0]?.fail(new ApiError(503, "history.away", "the history is away"));
  await passing(2000);
  expect([seen.errors, waiting.length]).toEqual([["the history is away"], 2]);
  waiting[1]?.fail(new ApiError(404, "trial.not_found", "no such trial"));
  await passing(60_000);
  expect([seen.errors.length, waiting.length]).toEqual([2, 2]);
});

it("passes nothing and reads nothing after its end", async () => {
  const { readings, waiting, seen, passing } = begin();
  readings.again();
  readings.again();
  readings.end();
  expect(waiting[0]?.signal.aborted).toBe(true);
  waiting[0]?.pass(1);
  await passing(60_000);
  expect([seen.values, waiting.length]).toEqual([[], 1]);
});
