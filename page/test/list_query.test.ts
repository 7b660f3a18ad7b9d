import { expect, it } from "vitest";
import { parseFilter } from "../src/lib/filter";
import {
  contentOf,
  isNarrowed,
  isSameQuery,
  readContent,
  readListQuery,
  searchFilter,
  wholeFilter,
} from "../src/lib/list_query";
import { clickedSort, joinNames, readSort, writeSort } from "../src/lib/sorting";

const EMPTY = readListQuery(new URLSearchParams());

it("asks for training that is not archived, unless the reader says otherwise", () => {
  expect(wholeFilter(EMPTY, "ann")).toBe("(kind = TRAINING) and (archived = false)");
  expect(wholeFilter({ ...EMPTY, archived: "yes" }, "ann")).toBe("kind = TRAINING");
  expect(wholeFilter({ ...EMPTY, filter: "archived = true or kind = SHELL" }, "ann")).toBe(
    "archived = true or kind = SHELL",
  );
  const mine = wholeFilter({ ...EMPTY, of: "mine", archived: "yes" }, 'a"b', "projectId = 2");
  expect(mine).toBe('(projectId = 2) and (kind = TRAINING) and (owner = "a\\"b")');
});

it("searches for a text as it is, and for an id", () => {
  expect(searchFilter("  ")).toBe("");
  const [byId] = parseFilter(searchFilter("12")).items;
  expect(byId).toMatchObject({ field: "id", operator: "=" });
  const [byName] = parseFilter(searchFilter('a.b*(c)"d')).items;
  expect(byName).toMatchObject({ field: "name", values: [{ text: '(?i)a\\.b\\*\\(c\\)"d', isQuoted: true }] });
});

it("keeps in a saved view what the address has", () => {
  const query = readListQuery(new URLSearchParams("filter=a+%3D+1&sort=-best&view=7&columns=id%7Cname"));
  expect(contentOf(query)).toEqual({ filter: "a = 1", sort: "-best", columns: "id|name" });
  expect(isSameQuery(readContent(contentOf(query)), query)).toBe(true);
  expect(readContent({ filter: 5, other: "x" })).toEqual(EMPTY);
  expect(readContent(null)).toEqual(EMPTY);
  expect([isNarrowed(query), isNarrowed({ ...EMPTY, sort: "id" })]).toEqual([true, false]);
});

it("sorts upwards, downwards, and as before; with Shift by a further key", () => {
  let keys = clickedSort([], "best", false);
  expect(writeSort(keys)).toBe("best");
  keys = clickedSort(keys, "best", false);
  expect(writeSort(keys)).toBe("-best");
  keys = clickedSort(keys, "name", true);
  expect(writeSort(keys)).toBe("-best,name");
  keys = clickedSort(keys, "best", true);
  expect(writeSort(keys)).toBe("name");
  expect(writeSort(clickedSort(keys, "owner", false))).toBe("owner");
  const many = ["a", "b", "c", "d", "e", "f"].reduce((each, name) => clickedSort(each, name, true), readSort(""));
  expect(many.length).toBe(5);
});

it("writes names with commas as the API reads them", () => {
  expect(joinNames(["a", "hp.x,y"])).toBe("a,hp.x\\,y");
  expect(readSort("-hp.x\\,y,a")).toEqual([
    { name: "hp.x,y", isDescending: true },
    { name: "a", isDescending: false },
  ]);
});
