import { describe, expect, it } from "vitest";
import { readRanks, shownText, withLater, withOlder } from "../src/lib/log_lines";

const lines = (...ids: number[]) => ids.map((id) => ({ id }));

describe("the window of lines", () => {
  it("takes each line once, and lets the far end go", () => {
    expect(withLater(lines(1, 2, 3), lines(3, 4), 3)).toEqual(lines(2, 3, 4));
    expect(withOlder(lines(4, 5), lines(2, 3, 4), 3)).toEqual(lines(2, 3, 4));
    expect(withOlder([], lines(1), 3)).toEqual(lines(1));
  });
});

describe("shownText", () => {
  it("takes colours and titles of terminals out", () => {
    expect(shownText("\u001b[31;1mred\u001b[0m \u001b]0;title\u0007end")).toBe("red end");
  });
  it("shows other control characters, and keeps tabs and markup", () => {
    expect(shownText("a\u0000b\rc\td<b>")).toBe("a\u2400b\u240dc\td<b>");
  });
});

it.each([
  ["", []],
  ["0, 2 5", [0, 2, 5]],
  ["1.5", null],
  ["-1", null],
])("reads the ranks %j", (text, ranks) => {
  expect(readRanks(text)).toEqual(ranks);
});
