/** The rows of a list of experiments: pages of one snapshot as the reader comes near them, and deltas of the stream. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { Retry } from "../../api/again";
import { ApiError, api } from "../../api/client";
import { subscribe } from "../../api/live_store";
import { missingPages, PAGE_ROWS, type RowList, type RowPage, withChanges, withPage } from "../../lib/row_list";
import { complain } from "../../toast";

export interface Wanted {
  filter: string;
  sort: string;
  /** Names of fields, separated by commas. */
  fields: string;
  /** Whether the reader has narrowed the list. */
  isFiltered: boolean;
}

export interface Rows {
  /** null until the first page is there. */
  list: RowList | null;
  error: ApiError | null;
  /** Whether a first page is awaited; the rows of the former list are shown meanwhile. */
  isLoading: boolean;
  needRange: (first: number, last: number) => void;
  reload: () => void;
}

const MAX_PENDING = 4;

interface State {
  key: string;
  list: RowList | null;
  error: ApiError | null;
}

export function useRows(wanted: Wanted): Rows {
  const { filter, sort, fields, isFiltered } = wanted;
  const [round, setRound] = useState(0);
  const key = JSON.stringify([filter, sort, fields, round]);
  const [state, setState] = useState<State>({ key: "", list: null, error: null });
  const pending = useRef(new Set<string>());
  const reload = useCallback(() => setRound((former) => former + 1), []);

  useEffect(() => {
    const ending = new AbortController();
    let unsubscribe = () => {};
    const retry = new Retry();
    const order = { isNewestFirst: sort === "", isFiltered };
    const begin = async () => {
      try {
        const page = await readPage({ filter, sort, fields }, 0, "", ending.signal);
        setState({ key, list: withPage(null, page), error: null });
        unsubscribe = subscribe({
          parts: { experiments: { filter, fields } },
          cursor: page.cursor,
          onChanges: ({ experiments: changes }) => {
            if (changes === undefined) return;
            setState((former) =>
              former.key === key && former.list !== null
                ? { ...former, list: withChanges(former.list, changes, order) }
                : former,
            );
          },
          onReset: reload,
        });
      } catch (failure) {
        if (ending.signal.aborted) return;
        if (!(failure instanceof ApiError)) throw failure;
        setState((former) => ({ ...former, key, error: failure }));
        if (failure.isTemporary) retry.soon(begin);
      }
    };
    void begin();
    return () => {
      ending.abort();
      retry.end();
      unsubscribe();
    };
  }, [filter, sort, fields, isFiltered, key, reload]);

  const { list } = state;
  const isLoading = state.key !== key;
  const needRange = useCallback(
    (first: number, last: number) => {
      if (list === null || isLoading) return;
      for (const number of missingPages(list, first, last)) {
        const name = `${list.snapshot} ${number}`;
        if (pending.current.has(name) || pending.current.size >= MAX_PENDING) continue;
        pending.current.add(name);
        readPage({ filter, sort, fields }, number * PAGE_ROWS, list.snapshot)
          .then(
            (page) =>
              setState((former) => (former.key === key ? { ...former, list: withPage(former.list, page) } : former)),
            complain,
          )
          .finally(() => pending.current.delete(name));
      }
    },
    [list, isLoading, filter, sort, fields, key],
  );
  return { list, error: isLoading ? null : state.error, isLoading, needRange, reload };
}

type Selection = Pick<Wanted, "filter" | "sort" | "fields">;

async function readPage(
  selection: Selection,
  offset: number,
  snapshot: string,
  signal?: AbortSignal,
): Promise<RowPage & { cursor: string }> {
  const query = { ...selection, offset, snapshot, limit: PAGE_ROWS };
  const page = await api.get("/api/v1/tables/{table}", {
    parts: { table: "experiments" },
    query,
    ...(signal ? { signal } : {}),
  });
  return page as typeof page & RowPage;
}
