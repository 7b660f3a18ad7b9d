/** What changes on the gateway while a view shows it: one stream of deltas. */

import { useEffect, useRef } from "preact/hooks";
import type { Schemas } from "./client";
import { addressOf } from "./client";
import { follow } from "./stream";

export type Row = Record<string, unknown> & { id: string | number };

interface TableChanges {
  rows: Row[];
  gone: (string | number)[];
}

/** What the event `changes` of /api/v1/stream has of what was asked for. */
export interface Changes {
  experiments?: TableChanges;
  trials?: TableChanges;
  metrics?: Schemas["StoredMetrics"][];
}

/**
 * Calls `onChange` with each change. query: that of /api/v1/stream; null follows nothing. onReset: so much has changed
 * that the view has to read all anew.
 */
export function useChanges(query: object | null, onChange: (changes: Changes) => void, onReset: () => void): void {
  const latest = useRef({ onChange, onReset });
  latest.current = { onChange, onReset };
  const address = query === null ? "" : addressOf("/api/v1/stream", {}, query);
  useEffect(() => {
    if (address === "") return;
    const follower = follow(address, (event) => {
      if (event.name === "changes") latest.current.onChange(JSON.parse(event.data) as Changes);
      else if (event.name === "reset") latest.current.onReset();
    });
    return follower.stop;
  }, [address]);
}
