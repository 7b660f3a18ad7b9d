import { expect, it } from "vitest";
import { formatDuration, formatNumber, formatUtc, formatValue, shellWord, splitName } from "../src/lib/text";

it("keeps the end of a long name", () => {
  const name = `${"a".repeat(40)}-seed-17`;
  const [head, tail] = splitName(name);
  expect(head + tail).toBe(name);
  expect(tail).toBe("-seed-17");
  expect(splitName("short")).toEqual(["short", ""]);
  // A character of two code units is not cut in half.
  expect(splitName("😀".repeat(20))[1]).toBe("😀".repeat(8));
});

it("writes numbers with five digits", () => {
  expect([0, 12, 0.123456789, 1e-9, 1.5e20, null].map(formatNumber)).toEqual([
    "0",
    "12",
    "0.12346",
    "1.000e-9",
    "1.500e+20",
    "–",
  ]);
});

it("writes spans and times", () => {
  expect([5, 65, 3700, 90_000].map(formatDuration)).toEqual(["5 s", "1 min 5 s", "1 h 1 min", "1 d 1 h"]);
  expect(formatUtc("2026-11-28T22:01:38.312980Z")).toBe("2026-11-28 22:01:38 UTC");
  expect(formatValue({ a: [1] })).toBe('{"a":[1]}');
});

it("makes a text one word of a shell", () => {
  expect(shellWord("mnist-2.0")).toBe("mnist-2.0");
  expect(shellWord("my $(rm) 'model'")).toBe("'my $(rm) '\\''model'\\'''");
  expect(shellWord("")).toBe("''");
});
