/** PURE: what an edit sends: only what its user has changed, so that what others change meanwhile stays. */

export interface LabelChange {
  addLabels?: string[];
  removeLabels?: string[];
}

/** Returns the labels of a text with commas, each once and sorted. */
export function readLabels(text: string): string[] {
  return [...new Set(text.split(",").map((label) => label.trim()))].filter((label) => label !== "").sort();
}

/** shown: the labels that the user has seen. wanted: those that are left. */
export function labelChange(shown: readonly string[], wanted: readonly string[]): LabelChange {
  const addLabels = wanted.filter((label) => !shown.includes(label));
  const removeLabels = shown.filter((label) => !wanted.includes(label));
  return { ...(addLabels.length > 0 ? { addLabels } : {}), ...(removeLabels.length > 0 ? { removeLabels } : {}) };
}

/** Returns the texts that differ from those that were shown. */
export function textChange<T extends Record<string, string>>(shown: T, wanted: T): Partial<T> {
  const changed = Object.entries(wanted).filter(([name, text]) => text !== shown[name]);
  return Object.fromEntries(changed) as Partial<T>;
}
