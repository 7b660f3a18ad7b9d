import { expect, test } from "vitest";
import type { Schemas } from "../src/api/client";
import { mergeAgents } from "../src/lib/changes";
import { compareIds, describeSlot, listPools, listSlots, matchesSlot } from "../src/lib/slots";

const NOW = Date.parse("2026-01-01T12:00:00Z");
const SLOT: Schemas["Slot"] = {
  availability: "ENABLED",
  draining: false,
  enabled: true,
  id: "a1/0",
  isHealthy: true,
  kind: "GPU",
  memoryBytes: 0,
  model: "H100",
  problem: "",
  uuid: "",
};
const AGENT: Schemas["Agent"] = {
  absentSlots: [],
  availability: "ENABLED",
  draining: false,
  enabled: true,
  exposure: "",
  hostname: "host",
  id: "a1",
  interfaces: [],
  labels: {},
  lostTime: null,
  pool: "default",
  problem: "",
  quarantineReason: "three failures",
  quarantinedUntil: null,
  registeredTime: null,
  slots: [SLOT],
  state: "ALIVE",
  version: "1",
};
const HOLDER: Schemas["SlotHolder"] = {
  experimentId: 7,
  experimentName: "digits",
  owner: "ann",
  state: "RUNNING",
  trialId: "7.1",
};

function only(agent: Partial<Schemas["Agent"]>, slot: Partial<Schemas["Slot"]> = {}, isHeld = false) {
  const whole = { ...AGENT, slots: [{ ...SLOT, ...slot }], ...agent };
  const view = { agent: whole, allocationIdBySlotId: isHeld ? { "a1/0": "7.1.1" } : {} };
  return listSlots({ agents: [view], holders: { "7.1.1": HOLDER } }, NOW);
}

test("a square says the worst that is known of its slot", () => {
  const statusOf = (...given: Parameters<typeof only>) => only(...given)[0]?.status;
  expect(statusOf({})).toBe("free");
  expect(statusOf({}, {}, true)).toBe("held");
  expect(statusOf({ availability: "DRAINING" }, {}, true)).toBe("draining");
  expect(statusOf({ availability: "DRAINING" }, { availability: "DISABLED" })).toBe("disabled");
  expect(statusOf({}, { isHealthy: false, problem: "Xid 79" }, true)).toBe("faulty");
  expect(statusOf({ state: "LOST" }, { isHealthy: false })).toBe("lost");
  expect(statusOf({ quarantinedUntil: "2026-01-01T12:00:01Z" })).toBe("quarantined");
  expect(statusOf({ quarantinedUntil: "2026-01-01T11:59:59Z" })).toBe("free");
  expect(statusOf({ slots: [], absentSlots: [SLOT] })).toBe("absent");
});

test("a square's text names who holds it, and what is wrong", () => {
  const [slot] = only({}, { isHealthy: false, problem: "Xid 79" }, true);
  expect(slot && describeSlot(slot)).toBe("a1/0: faulty, trial 7.1 of ann: digits, Xid 79, H100");
  expect(slot && ["ANN", "digits", "7.1", "a1/", "h100"].every((text) => matchesSlot(slot, text))).toBe(true);
  expect(slot && matchesSlot(slot, "bob")).toBe(false);
});

test("slots are in the order of their agents' numbers", () => {
  const views = ["a10", "a9"].map((id) => ({
    agent: { ...AGENT, id, slots: [{ ...SLOT, id: `${id}/0` }] },
    allocationIdBySlotId: {},
  }));
  expect(listSlots({ agents: views, holders: {} }, NOW).map((slot) => [slot.id, slot.name])).toEqual([
    ["a9/0", "0"],
    ["a10/0", "0"],
  ]);
  expect(compareIds("agent-2", "agent-10")).toBeLessThan(0);
});

test("a pool counts its slots, and what waits for it", () => {
  const job = { resourcePool: "default", queuePlace: 1 } as Schemas["Job"];
  const paused = { ...job, queuePlace: 0 };
  const elsewhere = { ...job, resourcePool: "big" };
  const pools = listPools([...only({}, {}, true), ...only({})], [job, paused, elsewhere]);
  expect(pools).toEqual([
    { name: "big", agents: 0, slots: 0, held: 0, free: 0, waiting: 1 },
    { name: "default", agents: 1, slots: 2, held: 1, free: 1, waiting: 1 },
  ]);
});

test("holders that hold no slot any more are dropped after a change", () => {
  const view = (allocationId: string) => ({ agent: AGENT, allocationIdBySlotId: { "a1/0": allocationId } });
  const before = { agents: [view("7.1.1")], holders: { "7.1.1": HOLDER } };
  const next = mergeAgents(before, { rows: [view("8.1.1")], gone: [], holders: { "8.1.1": HOLDER } });
  expect(next).toEqual({ agents: [view("8.1.1")], holders: { "8.1.1": HOLDER } });
  expect(mergeAgents(next, { rows: [], gone: ["a1"], holders: {} })).toEqual({ agents: [], holders: {} });
});
