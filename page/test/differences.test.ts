import { describe, expect, it } from "vitest";
import { compare, flatten } from "../src/lib/differences";

describe("compare", () => {
  it("marks rows whose values differ, also where one trial has none", () => {
    const rows = compare([
      { lr: 0.1, layers: [1, 2], optimizer: { name: "sgd" } },
      { lr: 0.1, layers: [1, 3], optimizer: { name: "sgd" }, dropout: null },
    ]);
    expect(rows.map(({ name, isDifferent }) => [name, isDifferent])).toEqual([
      ["dropout", true],
      ["layers", true],
      ["lr", false],
      ["optimizer.name", false],
    ]);
  });
  it("tells a number from a text, and knows no inherited names", () => {
    expect(compare([{ a: 1 }, { a: "1" }])[0]?.isDifferent).toBe(true);
    expect(compare([{ toString: 1 }, {}])[0]?.values).toEqual([1, undefined]);
  });
});

it("keeps lists and empty mappings whole", () => {
  expect(flatten({ a: { b: [1], c: {} } })).toEqual({ "a.b": [1], "a.c": {} });
});
