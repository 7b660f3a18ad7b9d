/** The fields that filters and columns may name, as the API lists them. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, api, type Schemas } from "../../api/client";
import { complain } from "../../toast";

export type TableField = Schemas["TableField"];
const LIMIT = 200;
const QUIET_MS = 150;

/** Returns the fields whose names contain the text, and how many there are in all. */
export function useFields(search: string): { fields: TableField[]; total: number } {
  const [found, setFound] = useState<{ fields: TableField[]; total: number }>({ fields: [], total: 0 });
  useEffect(() => {
    const ending = new AbortController();
    const load = async () => {
      try {
        const query = { search, limit: LIMIT };
        const parts = { table: "experiments" } as const;
        setFound(await api.get("/api/v1/tables/{table}/fields", { parts, query, signal: ending.signal }));
      } catch (failure) {
        if (ending.signal.aborted) return;
        if (!(failure instanceof ApiError)) throw failure;
        complain(failure);
      }
    };
    const timer = setTimeout(load, search === "" ? 0 : QUIET_MS);
    return () => {
      clearTimeout(timer);
      ending.abort();
    };
  }, [search]);
  return found;
}
