/**
 * PURE: a list that is read page by page from one snapshot, and kept up to date by deltas.
 *
 * Rows of the snapshot keep their places, so nothing moves under the reader's hand. A row that a delta brings and that is
 * certainly new comes before them. One that no longer belongs stays where it is, and is marked.
 */

export interface Row {
  id: number;
  [field: string]: unknown;
}

export interface RowPage {
  rows: Row[];
  total: number;
  offset: number;
  snapshot: string;
}

export interface TableChanges {
  rows: Row[];
  gone: number[];
}

export interface RowList {
  snapshot: string;
  /** Number of rows in the snapshot. */
  numPlaces: number;
  /** Rows by their place in the snapshot; undefined where they have not been read, or were deleted before. */
  places: readonly (Row | undefined)[];
  /** Numbers of the pages that have been read. */
  pages: ReadonlySet<number>;
  placeOf: ReadonlyMap<number, number>;
  /** Rows that came after the snapshot, the newest first. */
  fresh: readonly Row[];
  /** Ids of rows that were deleted, or match no longer. */
  gone: ReadonlySet<number>;
  /** Ids of changed rows that may belong to the list and whose place is not known. */
  unplaced: ReadonlySet<number>;
  /**
   * Changes of rows whose page has not been read, or is being read: what is read may be older. null for one that is gone.
   * A page that is newer than such a change is followed by a further change.
   */
  early: ReadonlyMap<number, Row | null>;
}

export interface Order {
  /** Whether the newest rows come first. */
  isNewestFirst: boolean;
  /** Whether a filter selects rows. */
  isFiltered: boolean;
}

export const PAGE_ROWS = 100;

/** Puts a page into the list; null for no list yet. A page of another snapshot begins a new list. */
export function withPage(former: RowList | null, page: RowPage): RowList {
  const isSame = former !== null && former.snapshot === page.snapshot;
  const places: (Row | undefined)[] = isSame ? [...former.places] : new Array(page.total).fill(undefined);
  const placeOf = new Map(isSame ? former.placeOf : []);
  const gone = new Set(isSame ? former.gone : []);
  const unplaced = new Set(isSame ? former.unplaced : []);
  const early = new Map(isSame ? former.early : []);
  for (const [index, row] of page.rows.entries()) {
    const changed = early.get(row.id);
    places[page.offset + index] = changed ?? row;
    placeOf.set(row.id, page.offset + index);
    if (changed === null) gone.add(row.id);
    unplaced.delete(row.id);
    early.delete(row.id);
  }
  const pages = new Set(isSame ? former.pages : []).add(Math.floor(page.offset / PAGE_ROWS));
  const fresh = isSame ? former.fresh : [];
  return { snapshot: page.snapshot, numPlaces: page.total, places, pages, placeOf, fresh, gone, unplaced, early };
}

export function withChanges(list: RowList, changes: TableChanges, order: Order): RowList {
  const places = [...list.places];
  let fresh = list.fresh;
  const gone = new Set(list.gone);
  const unplaced = new Set(list.unplaced);
  const early = new Map(list.early);
  const newest = places[0]?.id ?? 0;
  const isWhole = list.pages.size * PAGE_ROWS >= list.numPlaces;
  for (const row of changes.rows) {
    gone.delete(row.id);
    const place = list.placeOf.get(row.id);
    if (place !== undefined) places[place] = row;
    else if (fresh.some((each) => each.id === row.id)) fresh = fresh.map((each) => (each.id === row.id ? row : each));
    else if (isWhole || (order.isNewestFirst && row.id > newest)) fresh = placed(fresh, row);
    else {
      early.set(row.id, row);
      if (order.isFiltered || !order.isNewestFirst) unplaced.add(row.id);
    }
  }
  for (const id of changes.gone) {
    unplaced.delete(id);
    if (fresh.some((each) => each.id === id)) fresh = fresh.filter((each) => each.id !== id);
    else if (list.placeOf.has(id)) gone.add(id);
    else if (!isWhole) early.set(id, null);
  }
  return { ...list, places, fresh, gone, unplaced, early };
}

function placed(rows: readonly Row[], row: Row): Row[] {
  return [...rows, row].sort((a, b) => b.id - a.id);
}

/** Returns how many rows are shown. */
export function lengthOf(list: RowList): number {
  return list.fresh.length + list.numPlaces;
}

/** Returns how many rows match, as far as is known. */
export function totalOf(list: RowList): number {
  return lengthOf(list) - list.gone.size;
}

export function rowAt(list: RowList, index: number): Row | undefined {
  return index < list.fresh.length ? list.fresh[index] : list.places[index - list.fresh.length];
}

/** Returns the numbers of the pages that the rows from `first` to `last` are on and that have not been read. */
export function missingPages(list: RowList, first: number, last: number): number[] {
  const pages: number[] = [];
  const end = Math.min(last - list.fresh.length, list.numPlaces - 1);
  const begin = Math.max(0, first - list.fresh.length);
  for (let page = Math.floor(begin / PAGE_ROWS); page * PAGE_ROWS <= end; page++) {
    if (!list.pages.has(page)) pages.push(page);
  }
  return pages;
}
