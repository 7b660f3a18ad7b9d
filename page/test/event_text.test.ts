import { expect, it } from "vitest";
import { backoff, readEvents } from "../src/api/event_text";

it("reads complete events and keeps the rest", () => {
  const text = 'event: log\nid: 7\ndata: {"a":1}\n\n: a comment\n\ndata: first\ndata: second\n\nevent: lo';
  expect(readEvents(text)).toEqual({
    events: [
      { name: "log", id: "7", data: '{"a":1}' },
      { name: "message", id: "", data: "first\nsecond" },
    ],
    rest: "event: lo",
  });
});

it("reads the same however a text is divided", () => {
  const text = "event: log\r\nid: 1\r\ndata: x\r\n\r\nevent: end\r\ndata: {}\r\n\r\n";
  const whole = readEvents(text).events;
  expect(whole.map((event) => event.name)).toEqual(["log", "end"]);
  for (let cut = 0; cut < text.length; cut++) {
    const first = readEvents(text.slice(0, cut));
    const second = readEvents(first.rest + text.slice(cut));
    expect([...first.events, ...second.events], `cut at ${cut}`).toEqual(whole);
  }
});

it("waits longer with each try, up to a limit, and never the same for all", () => {
  expect(backoff(0, 0)).toBe(250);
  expect(backoff(0, 1)).toBe(500);
  expect(backoff(30, 1)).toBe(30_000);
});
