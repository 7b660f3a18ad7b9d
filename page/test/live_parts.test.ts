import { expect, it } from "vitest";
import { type Changes, grouped, joined, parametersOf, type Report, selected, startOf } from "../src/api/live_parts";

const RUNNING = { filter: "state = RUNNING", fields: "name" };

it("joins what different views follow", () => {
  const parts = joined(
    { experiments: RUNNING, metrics: ["2.1", "1.1"] },
    { queue: true, models: true, metrics: ["1.1"] },
  );
  expect(parts).toEqual({ experiments: RUNNING, queue: true, models: true, metrics: ["2.1", "1.1"] });
  expect(joined({ experiments: RUNNING }, { experiments: { ...RUNNING } })).not.toBeNull();
  expect(joined({ agents: true }, {})).toEqual({ agents: true });
});

it("needs a second stream for the same table with another filter alone", () => {
  const members = [
    { parts: { experiments: RUNNING } },
    { parts: { experiments: { ...RUNNING, filter: "" } } },
    { parts: { queue: true } },
    { parts: { trials: { ...RUNNING, experimentId: 7 } } },
  ];
  const groups = grouped(members);
  expect(groups.map((group) => group.members.length)).toEqual([3, 1]);
  expect(grouped([])).toEqual([]);
});

it("writes the parameters of the stream", () => {
  expect(parametersOf({ trials: { ...RUNNING, experimentId: 7 }, agents: true, metrics: ["2.1", "1.1"] })).toEqual({
    trials: true,
    trialFilter: "state = RUNNING",
    trialFields: "name",
    experimentId: 7,
    agents: true,
    metrics: ["1.1", "2.1"],
  });
  expect(parametersOf({ experiments: RUNNING })).toEqual({
    experiments: true,
    experimentFilter: "state = RUNNING",
    experimentFields: "name",
  });
});

it("follows workspaces beside a list of experiments in one stream", () => {
  const parts = joined({ homes: true }, { experiments: RUNNING });
  expect(parts).not.toBeNull();
  expect(parametersOf(parts ?? {})).toEqual(parametersOf({ experiments: RUNNING }));
  expect(parametersOf({ homes: true })).toEqual({
    experiments: true,
    experimentFilter: "id = 0",
    experimentFields: "id",
  });
});

it("begins where no subscriber misses a change", () => {
  const [list, reports, queue] = [{ experiments: RUNNING }, { metrics: ["1.1"] }, { queue: true }];
  expect(startOf([{ parts: list, cursor: "" }])).toBe("");
  expect(startOf([{ parts: list, cursor: "95" }])).toBe("95");
  // One that has read nothing yet begins with the others. It reads when the stream is open.
  expect(
    startOf([
      { parts: queue, cursor: "" },
      { parts: list, cursor: "95" },
    ]),
  ).toBe("95");
  // The page was read before the last event of the others, and has no place among the reports.
  expect(
    startOf([
      { parts: list, cursor: "95" },
      { parts: reports, cursor: "100.5000" },
      { parts: { metrics: ["2.1"] }, cursor: "99.4999" },
    ]),
  ).toBe("95.4999");
  // Numbers, not texts; and ids of reports that this subscriber does not follow do not count.
  expect(
    startOf([
      { parts: reports, cursor: "1000.20" },
      { parts: list, cursor: "999.3" },
    ]),
  ).toBe("999.20");
  expect(startOf([{ parts: queue, cursor: "7..ab-3" }])).toBe("7..ab-3");
  // The second one has no queue yet, so it needs all of it.
  expect(
    startOf([
      { parts: queue, cursor: "7..ab-3" },
      { parts: queue, cursor: "" },
    ]),
  ).toBe("7");
  expect(
    startOf([
      { parts: queue, cursor: "7..ab-3" },
      { parts: queue, cursor: "7..ab-4" },
    ]),
  ).toBe("7");
});

it("passes each subscriber its own parts alone", () => {
  const report = (trialId: string) => ({ trialId }) as Report;
  const changes: Changes = {
    queue: { rows: [], gone: ["3.1"], isWhole: false },
    metrics: [report("1.1"), report("2.1")],
  };
  expect(selected(changes, { trials: RUNNING })).toBeNull();
  expect(selected(changes, { homes: true })).toBeNull();
  expect(selected(changes, { metrics: ["2.1"] })).toEqual({ metrics: [report("2.1")] });
  expect(selected(changes, { queue: true, metrics: ["9.1"] })).toEqual({ queue: changes.queue });
});
