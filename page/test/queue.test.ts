import { expect, test } from "vitest";
import type { Schemas } from "../src/api/client";
import { commandOf, describeStanding, moveByOne, moveTo, runningJobs, waitingJobs } from "../src/lib/queue";

function job(trialId: string, queuePlace: number, others: Partial<Schemas["Job"]> = {}): Schemas["Job"] {
  return {
    allocatedSlots: 0,
    etaTime: null,
    jobId: trialId.split(".")[0] ?? "",
    name: "digits",
    priority: 50,
    queuePlace,
    reason: null,
    requestedSlots: 1,
    resourcePool: "default",
    submissionTime: null,
    summary: { jobsAhead: 0, state: "QUEUED" },
    trialId,
    username: "ann",
    weight: 1,
    ...others,
  };
}

const QUEUE = [job("3.1", 1), job("3.2", 2), job("5.1", 3), job("4.1", 4)];

test("the queue of a pool is in its order, and paused jobs come last", () => {
  const held = job("1.1", 0, { allocatedSlots: 2 });
  const jobs = [job("9.1", 0), ...[...QUEUE].reverse(), held, job("8.1", 1, { resourcePool: "big" })];
  expect(waitingJobs(jobs, "default").map((each) => each.trialId)).toEqual(["3.1", "3.2", "5.1", "4.1", "9.1"]);
  expect(runningJobs(jobs, "default")).toEqual([held]);
});

test("a move passes the next other experiment, not the next trial", () => {
  expect(moveByOne(QUEUE, "3.1", 1)).toEqual({ jobId: 3, behindOf: 5 });
  expect(moveByOne(QUEUE, "5.1", -1)).toEqual({ jobId: 5, aheadOf: 3 });
  expect(moveByOne(QUEUE, "3.2", -1)).toBeNull();
  expect(moveByOne(QUEUE, "4.1", 1)).toBeNull();
  expect(moveByOne(QUEUE, "6.1", 1)).toBeNull();
});

test("a row that is dropped on another takes its place", () => {
  expect(moveTo(QUEUE, "4.1", "3.1")).toEqual({ jobId: 4, aheadOf: 3 });
  expect(moveTo(QUEUE, "3.1", "4.1")).toEqual({ jobId: 3, behindOf: 4 });
  expect(moveTo(QUEUE, "3.1", "3.2")).toBeNull();
  expect(moveTo(QUEUE, "", "3.2")).toBeNull();
});

test("a change has its command", () => {
  expect(commandOf({ jobId: 3, priority: 5 })).toBe("gangline job update 3 --priority 5");
  expect(commandOf({ jobId: 3, weight: 0.5 })).toBe("gangline job update 3 --weight 0.5");
  expect(commandOf({ jobId: 3, aheadOf: 4 })).toBe("gangline job update 3 --ahead-of 4");
  expect(commandOf({ jobId: 3, behindOf: 4 })).toBe("gangline job update 3 --behind-of 4");
});

test("a plan's decision is one line", () => {
  const nothing = { etaAt: null, isStarting: false, isStopping: false, message: "", queuePlace: 0 };
  expect(describeStanding({ ...nothing, isStarting: true })).toBe("starts now");
  expect(describeStanding({ ...nothing, queuePlace: 2, message: "needs 2" })).toBe("waits at place 2; needs 2");
  expect(describeStanding({ ...nothing, isStopping: true })).toBe("gives its slots back");
  expect(describeStanding(nothing)).toBe("unchanged");
});
