import { expect, it } from "vitest";
import { moved, readLayout, toggled, writeLayout } from "../src/lib/columns";

const KNOWN = ["id", "name", "state", "owner"];
const STANDARD = { ids: ["id", "name", "state"], numPinned: 2 };

it("reads from an address what was written into it", () => {
  for (const layout of [STANDARD, { ids: ["owner"], numPinned: 0 }, { ids: ["name", "id"], numPinned: 1 }]) {
    expect(readLayout(writeLayout(layout), KNOWN, STANDARD)).toEqual(layout);
  }
});

it("leaves out what is no column, and repetitions", () => {
  expect(readLayout("id,<b>|name,name,id", KNOWN, STANDARD)).toEqual({ ids: ["id", "name"], numPinned: 1 });
  expect(readLayout("nothing", KNOWN, STANDARD)).toEqual(STANDARD);
});

it("moves a column, and not beyond the ends", () => {
  expect(moved(STANDARD, "name", -1).ids).toEqual(["name", "id", "state"]);
  expect(moved(STANDARD, "name", 1).ids).toEqual(["id", "state", "name"]);
  expect(moved(STANDARD, "id", -1)).toEqual(STANDARD);
});

it("hides and shows a column, and never the last one", () => {
  expect(toggled(STANDARD, "id")).toEqual({ ids: ["name", "state"], numPinned: 1 });
  expect(toggled(STANDARD, "owner").ids).toEqual(["id", "name", "state", "owner"]);
  expect(toggled({ ids: ["id"], numPinned: 1 }, "id").ids).toEqual(["id"]);
});
