import { describe, expect, it } from "vitest";
import { match } from "../src/router";

describe("a pattern of a view", () => {
  it("gives the parts of a path in their order", () => {
    expect(match("/experiments/:id", "/experiments/12")).toEqual(["12"]);
    expect(match("/trials/:id", "/trials/1.2/")).toEqual(["1.2"]);
    expect(match("/", "/")).toEqual([]);
  });
  it("fits no other path", () => {
    expect(match("/experiments", "/")).toBeNull();
    expect(match("/", "/experiments")).toBeNull();
    expect(match("/experiments/:id", "/experiments")).toBeNull();
    expect(match("/experiments/:id", "/trials/1")).toBeNull();
  });
  it("reads what a browser has encoded, and keeps what is no encoding", () => {
    expect(match("/trials/:id", "/trials/a%2Fb")).toEqual(["a/b"]);
    expect(match("/trials/:id", "/trials/%E0")).toEqual(["%E0"]);
  });
});
