import { expect, it } from "vitest";
import {
  lengthOf,
  missingPages,
  type Order,
  type Row,
  type RowList,
  rowAt,
  totalOf,
  withChanges,
  withPage,
} from "../src/lib/row_list";

const NEWEST: Order = { isNewestFirst: true, isFiltered: false };
const SORTED: Order = { isNewestFirst: false, isFiltered: false };
const rows = (from: number, to: number): Row[] =>
  Array.from({ length: from - to + 1 }, (_, index) => ({ id: from - index, name: `n${from - index}` }));
/** The first page of 250 rows, the newest first. */
const first = () => withPage(null, { rows: rows(250, 151), total: 250, offset: 0, snapshot: "s" });
const idsOf = (list: RowList, to: number) => Array.from({ length: to }, (_, index) => rowAt(list, index)?.id);

it("reads further pages where they are wanted, and each once", () => {
  let list = first();
  expect(missingPages(list, 0, 99)).toEqual([]);
  expect(missingPages(list, 60, 249)).toEqual([1, 2]);
  expect(missingPages(list, 200, 9999)).toEqual([2]);
  list = withPage(list, { rows: rows(50, 1), total: 250, offset: 200, snapshot: "s" });
  expect(rowAt(list, 249)?.id).toBe(1);
  expect(rowAt(list, 150)).toBeUndefined();
  expect(missingPages(list, 60, 249)).toEqual([1]);
});

it("begins anew with a page of another snapshot", () => {
  const changed = withChanges(first(), { rows: [{ id: 251 }], gone: [250] }, NEWEST);
  const list = withPage(changed, { rows: rows(30, 11), total: 30, offset: 0, snapshot: "t" });
  expect([lengthOf(list), list.fresh.length, list.gone.size, rowAt(list, 0)?.id]).toEqual([30, 0, 0, 30]);
});

it("puts a changed row where it was, and a new one before all", () => {
  const list = withChanges(
    first(),
    { rows: [{ id: 249, name: "renamed" }, { id: 252 }, { id: 251 }], gone: [] },
    NEWEST,
  );
  expect(idsOf(list, 4)).toEqual([252, 251, 250, 249]);
  expect(rowAt(list, 3)?.name).toBe("renamed");
  expect([lengthOf(list), totalOf(list)]).toEqual([252, 252]);
  // The page that is not read yet has the same rows as before.
  expect(missingPages(list, 102, 110)).toEqual([1]);
  const again = withChanges(list, { rows: [{ id: 252, name: "x" }], gone: [] }, NEWEST);
  expect([rowAt(again, 0)?.name, lengthOf(again)]).toEqual(["x", 252]);
});

it("marks a row that goes, and takes the mark away when it returns", () => {
  const list = withChanges(first(), { rows: [], gone: [240, 9999] }, NEWEST);
  expect([lengthOf(list), totalOf(list), [...list.gone]]).toEqual([250, 249, [240]]);
  expect(totalOf(withChanges(list, { rows: [{ id: 240 }], gone: [] }, NEWEST))).toBe(250);
});

it("drops a new row that goes", () => {
  const list = withChanges(first(), { rows: [{ id: 251 }], gone: [] }, NEWEST);
  expect(lengthOf(withChanges(list, { rows: [], gone: [251] }, NEWEST))).toBe(250);
});

it("counts changed rows whose place it cannot know", () => {
  // Of the whole list, the newest first, an older row is on a page that has not been read.
  expect(withChanges(first(), { rows: [{ id: 5 }], gone: [] }, NEWEST).unplaced.size).toBe(0);
  // With a filter it may have begun to match.
  const filtered = withChanges(first(), { rows: [{ id: 5 }], gone: [] }, { ...NEWEST, isFiltered: true });
  expect([...filtered.unplaced]).toEqual([5]);
  const sorted = withChanges(first(), { rows: [{ id: 999 }, { id: 999 }], gone: [] }, SORTED);
  expect([lengthOf(sorted), [...sorted.unplaced]]).toEqual([250, [999]]);
  expect(withChanges(sorted, { rows: [], gone: [999] }, SORTED).unplaced.size).toBe(0);
});

it("takes each unknown row of a list that is read whole as new", () => {
  const short = withPage(null, { rows: rows(3, 1), total: 3, offset: 0, snapshot: "s" });
  expect(idsOf(withChanges(short, { rows: [{ id: 9 }], gone: [] }, SORTED), 2)).toEqual([9, 3]);
  const empty = withPage(null, { rows: [], total: 0, offset: 0, snapshot: "s" });
  expect(lengthOf(withChanges(empty, { rows: [{ id: 1 }], gone: [] }, NEWEST))).toBe(1);
});

it("keeps a change of a row whose page is being read, which may be older", () => {
  const changed = withChanges(first(), { rows: [{ id: 50, name: "renamed" }], gone: [40] }, NEWEST);
  const late = { rows: rows(50, 1), total: 250, offset: 200, snapshot: "s" };
  const list = withPage(changed, late);
  expect([rowAt(list, 200)?.name, rowAt(list, 201)?.name]).toEqual(["renamed", "n49"]);
  expect([[...list.gone], totalOf(list), list.early.size]).toEqual([[40], 249, 0]);
  // A row that has come back is there, and the newest of several changes counts.
  const again = withChanges(
    changed,
    {
      rows: [
        { id: 40, name: "back" },
        { id: 50, name: "x" },
      ],
      gone: [],
    },
    NEWEST,
  );
  const back = withPage(again, late);
  expect([rowAt(back, 210)?.name, rowAt(back, 200)?.name, back.gone.size]).toEqual(["back", "x", 0]);
});

it("counts no row as unplaced once its page is read", () => {
  const sorted = withChanges(first(), { rows: [{ id: 30, name: "x" }], gone: [] }, SORTED);
  expect(sorted.unplaced.size).toBe(1);
  const list = withPage(sorted, { rows: rows(50, 1), total: 250, offset: 200, snapshot: "s" });
  expect([list.unplaced.size, rowAt(list, 220)?.name]).toEqual([0, "x"]);
});

it("keeps no change for the pages of another snapshot", () => {
  const changed = withChanges(first(), { rows: [{ id: 20, name: "old" }], gone: [] }, NEWEST);
  const list = withPage(changed, { rows: rows(30, 11), total: 30, offset: 0, snapshot: "t" });
  expect([rowAt(list, 10)?.name, list.early.size]).toEqual(["n20", 0]);
});
