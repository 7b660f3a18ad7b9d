import { expect, it } from "vitest";
import { writeFields } from "../src/lib/field_list";
import { forFork, withOverrides } from "../src/lib/overrides";

it("sets values at dotted keys, and changes nothing else", () => {
  const config = { searcher: { name: "single", max_length: { batches: 1 } }, name: "a" };
  expect(withOverrides(config, { "searcher.max_length.batches": 2, "resources.priority": 3 })).toEqual({
    searcher: { name: "single", max_length: { batches: 2 } },
    name: "a",
    resources: { priority: 3 },
  });
  expect(config.searcher.max_length.batches).toBe(1);
});

it("begins a fork without the seed of its source", () => {
  expect(forFork({ name: "a", reproducibility: { experiment_seed: 7 } })).toEqual({ name: "a" });
  expect(forFork({ name: "a" })).toEqual({ name: "a" });
});

it("writes commas within the names of fields", () => {
  expect(writeFields(["hp.a,b", "best"])).toBe("hp.a\\,b,best");
});
