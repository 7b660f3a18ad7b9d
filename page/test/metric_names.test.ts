import { expect, it } from "vitest";
import { chartsOf } from "../src/lib/metric_names";

it("draws training and validation together, and other groups last", () => {
  const charts = chartsOf([
    { group: "profiling", name: "gpu" },
    { group: "training", name: "loss" },
    { group: "training", name: "a/b" },
    { group: "validation", name: "loss" },
  ]);
  expect(charts.map(({ title, metrics }) => [title, metrics.map((metric) => metric.group)])).toEqual([
    ["a/b", ["training"]],
    ["loss", ["training", "validation"]],
    ["profiling/gpu", ["profiling"]],
  ]);
});
