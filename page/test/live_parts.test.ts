import { expect, it } from "vitest";
import { grouped, joined, parametersOf } from "../src/api/live_parts";

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
