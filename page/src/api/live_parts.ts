/** PURE: the parts of the cluster that subscribers of the stream follow, joined into as few connections as possible. */

import type { TableChanges } from "../lib/row_list";

export interface TablePart {
  filter: string;
  /** Names of fields, separated by commas. */
  fields: string;
}

export interface Parts {
  experiments?: TablePart;
  trials?: TablePart & { experimentId?: number };
  agents?: boolean;
  models?: boolean;
  queue?: boolean;
  /** Ids of trials whose new reports are sent. */
  metrics?: string[];
}

/** The data of an event `changes`. docs/http.md describes each part. */
export interface Changes {
  experiments?: TableChanges;
  trials?: { rows: Record<string, unknown>[]; gone: string[] };
  agents?: { rows: Record<string, unknown>[]; gone: string[] };
  models?: { rows: { id: number }[]; gone: number[] };
  queue?: { rows: Record<string, unknown>[]; gone: string[]; isWhole: boolean };
  metrics?: Record<string, unknown>[];
}

/** Returns the parts of both; null where both follow the same table in different ways, which one stream cannot. */
export function joined(one: Parts, other: Parts): Parts | null {
  for (const table of ["experiments", "trials"] as const) {
    const [a, b] = [one[table], other[table]];
    if (a !== undefined && b !== undefined && JSON.stringify(a) !== JSON.stringify(b)) return null;
  }
  const parts: Parts = { ...one, ...other };
  if (one.agents || other.agents) parts.agents = true;
  if (one.models || other.models) parts.models = true;
  if (one.queue || other.queue) parts.queue = true;
  const metrics = [...new Set([...(one.metrics ?? []), ...(other.metrics ?? [])])];
  if (metrics.length > 0) parts.metrics = metrics;
  return parts;
}

/** Divides subscribers into groups of which each needs one stream. */
export function grouped<S extends { parts: Parts }>(subscribers: Iterable<S>): { parts: Parts; members: S[] }[] {
  const groups: { parts: Parts; members: S[] }[] = [];
  for (const subscriber of subscribers) {
    let isPlaced = false;
    for (const group of groups) {
      const parts = joined(group.parts, subscriber.parts);
      if (parts === null) continue;
      group.parts = parts;
      group.members.push(subscriber);
      isPlaced = true;
      break;
    }
    if (!isPlaced) groups.push({ parts: subscriber.parts, members: [subscriber] });
  }
  return groups;
}

/** Returns the parameters of the stream. */
export function parametersOf(parts: Parts): Record<string, string | number | boolean | string[]> {
  const { experiments, trials } = parts;
  return {
    ...(experiments
      ? { experiments: true, experimentFilter: experiments.filter, experimentFields: experiments.fields }
      : {}),
    ...(trials ? { trials: true, trialFilter: trials.filter, trialFields: trials.fields } : {}),
    ...(trials?.experimentId ? { experimentId: trials.experimentId } : {}),
    ...(parts.agents ? { agents: true } : {}),
    ...(parts.models ? { models: true } : {}),
    ...(parts.queue ? { queue: true } : {}),
    ...(parts.metrics?.length ? { metrics: [...parts.metrics].sort() } : {}),
  };
}
