/** PURE: values of several trials beside one another. */

/** How many trials or experiments are compared. */
export const MOST_COMPARED = 20;

export interface Comparison {
  name: string;
  /** One for each trial; undefined where it has none. */
  values: unknown[];
  isDifferent: boolean;
}

/** Returns a mapping of mappings as one, by names with dots. Lists stay whole. */
export function flatten(values: object, prefix = ""): Record<string, unknown> {
  const flat: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(values)) {
    const isMapping = typeof value === "object" && value !== null && !Array.isArray(value);
    if (isMapping && Object.keys(value).length > 0) Object.assign(flat, flatten(value, `${prefix}${name}.`));
    else flat[prefix + name] = value;
  }
  return flat;
}

/** Returns a row for each name that one of the trials has, in the order of the names. */
export function compare(trials: object[]): Comparison[] {
  const columns = trials.map((trial) => flatten(trial));
  const names = [...new Set(columns.flatMap((column) => Object.keys(column)))].sort();
  return names.map((name) => {
    const values = columns.map((column) => (Object.hasOwn(column, name) ? column[name] : undefined));
    const texts = new Set(values.map((value) => (value === undefined ? "" : JSON.stringify(value))));
    return { name, values, isDifferent: texts.size > 1 };
  });
}
