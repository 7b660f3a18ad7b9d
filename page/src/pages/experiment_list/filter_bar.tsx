/** What narrows the list: a quick search, the text of a filter with its builder, and whose experiments. */

import { useEffect, useState } from "preact/hooks";
import type { ListQuery } from "../../lib/list_query";
import { setQuery } from "../../router";
import { FilterBuilder } from "./filter_builder";

const QUIET_MS = 200;
const EXAMPLE = "state = RUNNING and (hp.lr < 0.1 or labels = best)";

export function FilterBar({ query }: { query: ListQuery }) {
  const [isBuilding, setBuilding] = useState(false);
  const [text, setText] = useState(query.filter);
  useEffect(() => setText(query.filter), [query.filter]);
  const apply = (filter: string) => setQuery({ filter: filter.trim() });
  return (
    <search class="row">
      <Search value={query.q} />
      <form
        class="row grow"
        onSubmit={(event) => {
          event.preventDefault();
          apply(text);
        }}
      >
        <label class="grow">
          Filter{" "}
          <input
            class="grow"
            value={text}
            placeholder={EXAMPLE}
            spellcheck={false}
            autocomplete="off"
            onInput={(event) => setText(event.currentTarget.value)}
            onChange={(event) => apply(event.currentTarget.value)}
          />
        </label>
        <button type="button" onClick={() => setBuilding(true)}>
          Build
        </button>
      </form>
      <label>
        <input
          type="checkbox"
          checked={query.of === "mine"}
          onChange={(event) => setQuery({ of: event.currentTarget.checked ? "mine" : "" })}
        />{" "}
        only mine
      </label>
      <label>
        <input
          type="checkbox"
          checked={query.archived === "yes"}
          onChange={(event) => setQuery({ archived: event.currentTarget.checked ? "yes" : "" })}
        />{" "}
        archived too
      </label>
      {isBuilding ? <FilterBuilder text={text} onApply={apply} onClose={() => setBuilding(false)} /> : null}
    </search>
  );
}

/** Applied when the reader pauses. */
function Search({ value }: { value: string }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    if (text === value) return;
    const timer = setTimeout(() => setQuery({ q: text }), QUIET_MS);
    return () => clearTimeout(timer);
  }, [text, value]);
  return (
    <label>
      Search{" "}
      <input
        type="search"
        value={text}
        placeholder="name, owner, label, id"
        onInput={(event) => setText(event.currentTarget.value)}
      />
    </label>
  );
}
