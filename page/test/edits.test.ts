import { expect, it } from "vitest";
import { labelChange, readLabels, textChange } from "../src/lib/edits";

it("reads labels each once, sorted and without spaces", () => {
  expect(readLabels(" b, a,,b , a")).toEqual(["a", "b"]);
  expect(readLabels(" ")).toEqual([]);
});

it("sends the labels that a user has changed, not those that others have", () => {
  expect(labelChange(["a", "b"], ["b", "c"])).toEqual({ addLabels: ["c"], removeLabels: ["a"] });
  expect(labelChange(["a"], ["a", "b"])).toEqual({ addLabels: ["b"] });
  expect(labelChange(["a"], [])).toEqual({ removeLabels: ["a"] });
  expect(labelChange(["a"], ["a"])).toEqual({});
});

it("sends the texts that differ alone", () => {
  const shown = { name: "mnist", notes: "n" };
  expect(textChange(shown, { name: "mnist", notes: "" })).toEqual({ notes: "" });
  expect(textChange(shown, { ...shown })).toEqual({});
});
