import { afterEach, expect, it, vi } from "vitest";
import type { Changes, Parts } from "../src/api/live_parts";
import { streamProblem, subscribe } from "../src/api/live_store";

vi.mock("../src/router", () => ({ basePath: () => "/" }));

/** A gateway's side of one stream. */
interface Opened {
  query: URLSearchParams;
  resume: string | undefined;
  isOpen: boolean;
  send: (name: string, id: string, data?: unknown) => void;
  end: () => void;
}

// Resets are spread by it.
vi.spyOn(Math, "random").mockReturnValue(0);
const failures: unknown[] = [];
vi.stubGlobal("reportError", (failure: unknown) => failures.push(failure));

const opened: Opened[] = [];
let refusal: Response | null = null;
const endings: (() => void)[] = [];

vi.stubGlobal("fetch", async (address: string, init: RequestInit) => {
  if (refusal !== null) return refusal.clone();
  const stream = new TransformStream<Uint8Array, Uint8Array>(undefined, { highWaterMark: 1000 });
  const writer = stream.writable.getWriter();
  const entry: Opened = {
    query: new URL(address, "http://gateway").searchParams,
    resume: (init.headers as Record<string, string>)["Last-Event-ID"],
    isOpen: true,
    send: (name, id, data = {}) => {
      const text = `event: ${name}\nid: ${id}\ndata: ${JSON.stringify(data)}\n\n`;
      void writer.write(new TextEncoder().encode(text)).catch(() => {});
    },
    end: () => void writer.close(),
  };
  init.signal?.addEventListener("abort", () => {
    entry.isOpen = false;
    void writer.abort().catch(() => {});
  });
  opened.push(entry);
  return new Response(stream.readable);
});

function follow(parts: Parts, cursor = "") {
  const seen = { changes: [] as Changes[], numResets: 0, end: () => {} };
  seen.end = subscribe({
    parts,
    cursor,
    onChanges: (changes) => seen.changes.push(changes),
    onReset: () => {
      seen.numResets++;
    },
  });
  endings.push(seen.end);
  return seen;
}

const open = () => opened.filter((each) => each.isOpen);
/** Waits for the one stream that is open, when it is the `number`th of this test. */
const stream = async (number: number) => {
  await vi.waitFor(() => expect([opened.length, open().length]).toEqual([number, 1]));
  return open()[0] as Opened;
};

afterEach(async () => {
  refusal = null;
  for (const end of endings.splice(0)) end();
  await vi.waitFor(() => expect(open()).toEqual([]));
  opened.splice(0);
});

it("serves all views by one connection, which goes on without a gap when they change", async () => {
  const list = follow({ experiments: { filter: "", fields: "name" } }, "90");
  const first = await stream(1);
  expect(first.query.get("cursor")).toBe("90");
  first.send("open", "90");
  first.send("changes", "95", { experiments: { rows: [{ id: 1 }], gone: [] } });
  await vi.waitFor(() => expect(list.changes.length).toBe(1));
  expect(list.numResets).toBe(0);

  const reports = follow({ metrics: ["1.1"] });
  const second = await stream(2);
  expect([second.query.get("cursor"), second.query.get("metrics"), second.query.get("experiments")]).toEqual([
    "95",
    "1.1",
    "true",
  ]);
  expect(reports.numResets).toBe(0);
  second.send("open", "95.10");
  await vi.waitFor(() => expect(reports.numResets).toBe(1));
  second.send("changes", "97.12", { metrics: [{ trialId: "1.1" }] });
  await vi.waitFor(() => expect(reports.changes.length).toBe(1));
  expect([list.changes.length, list.numResets]).toEqual([1, 0]);

  // A page that was read before that event takes the rows back, and not the reports.
  const trials = follow({ trials: { filter: "", fields: "state" } }, "96");
  const third = await stream(3);
  expect(third.query.get("cursor")).toBe("96.12");
  list.end();
  reports.end();
  const fourth = await stream(4);
  expect([fourth.query.has("metrics"), fourth.query.has("experiments")]).toEqual([false, false]);
  fourth.send("reset", "99");
  await vi.waitFor(() => expect(trials.numResets).toBe(1));
});

/** Opens the first stream, and sends a view of the agents its first reading and a change. */
async function firstChangeOf(agents: ReturnType<typeof follow>) {
  const first = await stream(1);
  first.send("open", "5");
  await vi.waitFor(() => expect(agents.numResets).toBe(1));
  first.send("changes", "7", { agents: { rows: [], gone: ["a"], holders: {} } });
  await vi.waitFor(() => expect(agents.changes.length).toBe(1));
  return first;
}

it("resumes a lost connection after the last event, and reads no second time", async () => {
  const agents = follow({ agents: true });
  const first = await firstChangeOf(agents);
  first.end();
  first.isOpen = false;
  const second = await stream(2);
  expect(second.resume).toBe("7");
  second.send("open", "7");
  second.send("changes", "8", { agents: { rows: [], gone: ["b"], holders: {} } });
  await vi.waitFor(() => expect(agents.changes.length).toBe(2));
  expect(agents.numResets).toBe(1);
});

it("keeps a connection that one of its views leaves", async () => {
  const [agents, other] = [follow({ agents: true }), follow({ agents: true })];
  const first = await stream(1);
  first.send("open", "5");
  await vi.waitFor(() => expect(agents.numResets).toBe(1));
  other.end();
  // The store arranges its connections in a timer that was set before this one.
  await new Promise((resolve) => setTimeout(resolve));
  first.send("changes", "7", { agents: { rows: [], gone: ["a"], holders: {} } });
  await vi.waitFor(() => expect(agents.changes.length).toBe(1));
  expect([opened.length, other.changes.length]).toEqual([1, 0]);
});

it("shows why it is refused, lets the view read all the same, and tries again", async () => {
  const problem = { code: "stream.too_many", detail: "ann has 100 streams; close some" };
  refusal = new Response(JSON.stringify(problem), { status: 503 });
  const agents = follow({ agents: true });
  await vi.waitFor(() => expect(streamProblem.value).toBe(problem.detail));
  expect(agents.numResets).toBe(1);
  refusal = null;
  const first = await stream(1);
  await vi.waitFor(() => expect(streamProblem.value).toBe(""));
  first.send("changes", "7", { agents: { rows: [], gone: ["a"], holders: {} } });
  await vi.waitFor(() => expect(agents.changes.length).toBe(1));
});

it("lets a view join a stream that is open, as one does that is made anew with each letter of a search", async () => {
  let models = follow({ models: true });
  const other = follow({ models: true });
  const first = await stream(1);
  first.send("open", "5");
  await vi.waitFor(() => expect(models.numResets).toBe(1));
  for (let letter = 0; letter < 3; letter++) {
    models.end();
    models = follow({ models: true });
    await vi.waitFor(() => expect(models.numResets).toBe(1));
  }
  expect([opened.length, first.isOpen, other.numResets]).toEqual([1, true, 1]);
  first.send("changes", "8", { models: { rows: [{ id: 1 }], gone: [] } });
  await vi.waitFor(() => expect([models.changes.length, other.changes.length]).toEqual([1, 1]));
  // Where the stream has to be another one, it goes on where the view has joined, not later.
  models.end();
  models = follow({ models: true });
  await vi.waitFor(() => expect(models.numResets).toBe(1));
  other.end();
  follow({ agents: true });
  expect((await stream(2)).query.get("cursor")).toBe("8");
});

it("reads with the stream where a view joins before it is open", async () => {
  follow({ models: true });
  const first = await stream(1);
  const models = follow({ models: true });
  await new Promise((resolve) => setTimeout(resolve));
  expect(models.numResets).toBe(0);
  first.send("open", "5");
  await vi.waitFor(() => expect(models.numResets).toBe(1));
  expect(opened.length).toBe(1);
});

it("opens a stream anew for a view of the queue, which only a new one brings whole", async () => {
  const queue = follow({ queue: true });
  const first = await stream(1);
  first.send("open", "5");
  first.send("changes", "5..a-1", { queue: { rows: [], gone: [], isWhole: true } });
  await vi.waitFor(() => expect(queue.changes.length).toBe(1));
  follow({ queue: true });
  expect((await stream(2)).query.get("cursor")).toBe("5");
});

it("passes an event to the other views where one of them throws", async () => {
  const broken = subscribe({
    parts: { agents: true },
    cursor: "",
    onChanges: () => {
      throw new Error("a defect");
    },
    onReset: () => {
      throw new Error("another defect");
    },
  });
  endings.push(broken);
  const agents = follow({ agents: true });
  await firstChangeOf(agents);
  expect(failures.splice(0).map(String)).toEqual(["Error: another defect", "Error: a defect"]);
  expect(opened.length).toBe(1);
});

it("spreads the reading after a reset, once for several, and not for a view that has ended", async () => {
  const [agents, ended] = [follow({ agents: true }), follow({ agents: true })];
  const first = await stream(1);
  first.send("open", "5");
  await vi.waitFor(() => expect([agents.numResets, ended.numResets]).toEqual([1, 1]));
  vi.mocked(Math.random).mockReturnValueOnce(0.25).mockReturnValueOnce(0.25);
  const began = performance.now();
  first.send("reset", "7");
  first.send("reset", "8");
  first.send("changes", "9", { agents: { rows: [], gone: ["a"], holders: {} } });
  await vi.waitFor(() => expect(agents.changes.length).toBe(1));
  expect(agents.numResets).toBe(1);
  ended.end();
  await vi.waitFor(() => expect(agents.numResets).toBe(2));
  // Timers count whole milliseconds.
  expect(performance.now() - began).toBeGreaterThanOrEqual(199);
  expect([agents.numResets, ended.numResets]).toEqual([2, 1]);
});
