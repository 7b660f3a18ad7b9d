/** A list of experiments: filters, saved views, actions on those that are selected, and the table. The address holds what
 * it shows. */

import { useCallback, useMemo, useState } from "preact/hooks";
import { type Layout, readLayout, resized, writeLayout } from "../../lib/columns";
import { MOST_COMPARED } from "../../lib/differences";
import { isNarrowed, readListQuery, wholeFilter } from "../../lib/list_query";
import { lengthOf, type Row, type RowList, rowAt, totalOf } from "../../lib/row_list";
import { clickedSort, joinNames, readSort, type SortKey, writeSort } from "../../lib/sorting";
import { count, formatNumber } from "../../lib/text";
import { keyOf, TRAINING, type TrainingValues } from "../../lib/training_values";
import { Command, Empty, Problem } from "../../parts/basic";
import { type Column, VirtualTable } from "../../parts/virtual_table";
import { go, place, setQuery } from "../../router";
import { user } from "../../session";
import { BulkActions } from "./bulk";
import { ColumnChoice } from "./column_choice";
import { cellOf, fieldOf, fieldsFor, isField, isSortable, isTraining, STANDARD } from "./fields";
import { FilterBar } from "./filter_bar";
import { SavedViews } from "./saved_views";
import { chosenIn, EVERYTHING, isSelected, NOTHING, namedBy, type Selection, sizeOf, toggledIn } from "./selection";
import { useTrainingValues } from "./training";
import { useRows } from "./use_rows";
import "./list.css";

/** within: a filter that all of its experiments meet. hasViews: whether views may be saved here. */
export function ExperimentList({ within = "", hasViews = true }: { within?: string; hasViews?: boolean }) {
  const query = readListQuery(place.value.query);
  const layout = readLayout(query.columns, isField, STANDARD);
  const filter = wholeFilter(query, user.value?.username ?? "", within);
  const fields = joinNames(fieldsFor(layout.ids));
  const isFiltered = isNarrowed(query);
  const rows = useRows({ filter, sort: query.sort, fields, isFiltered });
  const [held, setHeld] = useState<{ filter: string; selection: Selection }>({ filter, selection: NOTHING });
  const [isChoosing, setChoosing] = useState(false);
  // A selection belongs to the filter under which it was made.
  const selection = held.filter === filter ? held.selection : NOTHING;
  const select = (next: Selection) => setHeld({ filter, selection: next });
  const setLayout = (next: Layout) => setQuery({ columns: writeLayout(next) });
  const { list } = rows;
  const total = list === null ? 0 : totalOf(list);
  const numSelected = sizeOf(selection, total);
  const chosen =
    list !== null && numSelected <= MOST_COMPARED && numSelected >= 2
      ? chosenIn(selection, knownRows(list), total)
      : null;
  const [range, setRange] = useState({ first: 0, last: 0 });
  const { needRange } = rows;
  const onRange = useCallback(
    (first: number, last: number) => {
      needRange(first, last);
      setRange({ first, last });
    },
    [needRange],
  );
  const training = useTrainingValues(
    list === null ? [] : knownRows(list, range.first, range.last + 1),
    layout.ids.filter(isTraining).map((id) => id.slice(TRAINING.length)),
  );
  const columns = useColumns(layout, query.sort, selection, select, total, training);
  const at = useMemo(() => (index: number) => (list === null ? undefined : rowAt(list, index)), [list]);
  return (
    <>
      <FilterBar query={query} />
      <div class="row">
        {hasViews ? <SavedViews query={query} /> : null}
        <button type="button" onClick={() => setChoosing(true)}>
          Columns
        </button>
        <span role="status">
          {list === null ? "Loading…" : count(total, "experiment")}
          {numSelected > 0 ? `, ${numSelected} selected` : ""}
        </span>
        {list !== null && list.unplaced.size + list.gone.size > 0 ? (
          <button type="button" onClick={rows.reload}>
            Update the list ({list.unplaced.size + list.gone.size} changed)
          </button>
        ) : null}
      </div>
      <div class="row">
        {selection.isAll || total === 0 ? null : (
          <button type="button" onClick={() => select(EVERYTHING)}>
            Select all {total} that match
          </button>
        )}
        {numSelected === 0 ? null : (
          <button type="button" onClick={() => select(NOTHING)}>
            Select none
          </button>
        )}
        <CompareButton chosen={chosen} numSelected={numSelected} />
        <BulkActions
          named={namedBy(selection, filter)}
          numSelected={numSelected}
          onDone={() => {
            select(NOTHING);
          }}
        />
      </div>
      <Problem error={rows.error} />
      {list !== null && lengthOf(list) === 0 ? (
        <Empty>
          {isFiltered ? (
            <>
              No experiment matches. A filter is written like <code>owner = ann and best &gt; 0.9</code>; archived ones
              are hidden unless you ask for them.
            </>
          ) : (
            <>
              There is no experiment here yet. Start one:{" "}
              <Command text="gangline experiment create CONFIG.yaml FOLDER" />
            </>
          )}
        </Empty>
      ) : (
        <VirtualTable
          label="Experiments"
          columns={columns}
          numPinned={layout.numPinned + 1}
          total={list === null ? 0 : lengthOf(list)}
          rowAt={at}
          keyOf={(row) => row.id}
          kindOf={(row) => (list?.gone.has(row.id) ? "gone" : "")}
          onRange={onRange}
          onResize={(id, width) => setLayout(resized(layout, id, width))}
        />
      )}
      {isChoosing ? (
        <ColumnChoice
          layout={layout}
          onChange={setLayout}
          onStandard={() => setQuery({ columns: "" })}
          onClose={() => setChoosing(false)}
        />
      ) : null}
    </>
  );
}

/** Returns the rows between two places that have been read and still match. */
function knownRows(list: RowList, first = 0, end = lengthOf(list)): Row[] {
  const rows: Row[] = [];
  for (let index = first; index < end; index++) {
    const row = rowAt(list, index);
    if (row !== undefined && !list.gone.has(row.id)) rows.push(row);
  }
  return rows;
}

/** chosen: the experiments to compare; null if they are too many, or not all known here. */
function CompareButton({ chosen, numSelected }: { chosen: number[] | null; numSelected: number }) {
  const isPossible = chosen !== null;
  return (
    <button
      type="button"
      disabled={!isPossible}
      title={isPossible ? "" : `select 2 to ${MOST_COMPARED} experiments, which their best trials stand for`}
      onClick={() => go(`/compare?experiment=${chosen?.join("&experiment=")}`)}
    >
      Compare {numSelected} of at most {MOST_COMPARED}
    </button>
  );
}

function useColumns(
  layout: Layout,
  sort: string,
  selection: Selection,
  select: (next: Selection) => void,
  total: number,
  training: TrainingValues,
): Column<Row>[] {
  const keys = readSort(sort);
  const chosen = layout.ids.map((id): Column<Row> => {
    const { title, width, kind } = fieldOf(id);
    const key = keys.find((each) => each.name === id);
    return {
      id,
      title,
      width: layout.widths[id] ?? width,
      isNumber: isTraining(id) || kind === "number" || kind === "share" || kind === "seconds",
      isResizable: true,
      ...(key ? { sorted: key.isDescending ? "descending" : "ascending" } : {}),
      head: isSortable(id) ? <SortHead id={id} title={title} keys={keys} /> : title,
      cell: (row) =>
        isTraining(id) ? formatNumber(training.get(keyOf(row.bestTrial, id.slice(TRAINING.length)))) : cellOf(id, row),
    };
  });
  const selectColumn: Column<Row> = {
    id: "select",
    title: "Select",
    width: 56,
    head: (
      <input
        type="checkbox"
        aria-label={`Select all ${total} that match`}
        checked={selection.isAll}
        onChange={() => select(selection.isAll ? NOTHING : EVERYTHING)}
      />
    ),
    cell: (row) => (
      <input
        type="checkbox"
        aria-label={`Select experiment ${row.id}`}
        checked={isSelected(selection, row.id)}
        onChange={() => select(toggledIn(selection, row.id))}
      />
    ),
  };
  return [selectColumn, ...chosen];
}

function SortHead({ id, title, keys }: { id: string; title: string; keys: SortKey[] }) {
  const index = keys.findIndex((key) => key.name === id);
  const mark = index < 0 ? "" : keys[index]?.isDescending ? "▼" : "▲";
  return (
    <button
      type="button"
      class="sort"
      title={`${title}: sort by it; with Shift as a further key`}
      onClick={(event) => setQuery({ sort: writeSort(clickedSort(keys, id, event.shiftKey)) })}
    >
      <span class="sort-title">{title}</span>
      <span aria-hidden="true">
        {mark}
        {index >= 0 && keys.length > 1 ? index + 1 : ""}
      </span>
    </button>
  );
}
