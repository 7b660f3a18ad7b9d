import { afterEach, expect, test, vi } from "vitest";
import { changeLine, commandOf, listChanges, localMinute, NO_FILTER, readFilter, utcOf } from "../src/lib/audit";

afterEach(() => vi.unstubAllEnvs());

test("an address names a filter, and times that are none are left out", () => {
  const query = new URLSearchParams("user=ann&object=experiment/7&since=2026-01-31T14:00Z&until=soon&other=x");
  expect(readFilter(query)).toEqual({
    ...NO_FILTER,
    user: "ann",
    object: "experiment/7",
    since: "2026-01-31T14:00:00.000Z",
  });
});

test("the command has an option for each condition, and quotes what a shell would read", () => {
  expect(commandOf(NO_FILTER)).toBe("gangline audit");
  expect(commandOf({ ...NO_FILTER, user: "ann; rm", action: "experiment.kill" })).toBe(
    "gangline audit --user 'ann; rm' --action experiment.kill",
  );
});

test("a change has its old and its new value", () => {
  const changes = listChanges({
    priority: { old: 30, new: 10 },
    labels: { old: [], new: ["best"] },
    password: { new: "set" },
    owner: { old: "dave" },
    max_slots: { old: 4, new: null },
    odd: "a text",
    none: null,
  });
  expect(changes.map(changeLine)).toEqual([
    "priority: 30 → 10",
    'labels: [] → ["best"]',
    "password: set",
    "owner: dave → removed",
    "max_slots: 4 → none",
    "odd: a text",
    "none: none",
  ]);
});

test("an input for times is in the reader's zone, and the filter in UTC", () => {
  vi.stubEnv("TZ", "Europe/Zurich");
  expect(localMinute("2026-01-31T14:05:09.000Z")).toBe("2026-01-31T15:05");
  expect(utcOf("2026-07-31T15:05")).toBe("2026-07-31T13:05:00.000Z");
  expect(localMinute("")).toBe("");
  expect(utcOf("")).toBe("");
});
