/** PURE: a configuration with other values at dotted keys, as `experiment continue --config KEY=VALUE` has them. */

type Mapping = Record<string, unknown>;

function isMapping(value: unknown): value is Mapping {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Returns a new configuration; the given one stays as it is. */
export function withOverrides(config: Mapping, overrides: Mapping): Mapping {
  let result = config;
  for (const [key, value] of Object.entries(overrides)) result = placed(result, key.split("."), value);
  return result;
}

function placed(config: Mapping, path: string[], value: unknown): Mapping {
  const [first = "", ...rest] = path;
  if (rest.length === 0) return { ...config, [first]: value };
  const inner = config[first];
  return { ...config, [first]: placed(isMapping(inner) ? inner : {}, rest, value) };
}

/** Returns a configuration as a fork begins with it: without the seed, so that it gets one of its own. */
export function forFork(config: Mapping): Mapping {
  const { reproducibility, ...others } = config;
  if (!isMapping(reproducibility)) return config;
  const { experiment_seed: _, ...kept } = reproducibility;
  return Object.keys(kept).length === 0 ? others : { ...others, reproducibility: kept };
}
