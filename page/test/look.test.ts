import { expect, it } from "vitest";
import { lookOf } from "../src/lib/look";

it("gives 100 curves different looks", () => {
  const looks = Array.from({ length: 100 }, (_, index) => JSON.stringify(lookOf(index)));
  expect(new Set(looks).size).toBe(100);
});

it("tells neighbours apart without colour", () => {
  for (let index = 0; index < 99; index++) {
    expect(lookOf(index).dash).not.toEqual(lookOf(index + 1).dash);
    expect(lookOf(index).colour).not.toBe(lookOf(index + 1).colour);
  }
});
