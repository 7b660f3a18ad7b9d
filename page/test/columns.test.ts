import { expect, it } from "vitest";
import { type Layout, moved, readLayout, resized, toggled, writeLayout } from "../src/lib/columns";

const isKnown = (id: string) => ["id", "name", "state", "owner"].includes(id) || id.startsWith("hp.");
const layout = (ids: string[], numPinned: number, widths: Record<string, number> = {}): Layout => ({
  ids,
  numPinned,
  widths,
});
const STANDARD = layout(["id", "name", "state"], 2);

it("reads from an address what was written into it", () => {
  const layouts = [
    STANDARD,
    layout(["owner"], 0),
    layout(["name", "id"], 1, { id: 90 }),
    layout(["hp.a,b|c:d%2c", "id"], 1, { "hp.a,b|c:d%2c": 200 }),
    layout(["id", "name"], 2),
  ];
  for (const each of layouts) {
    const query = new URLSearchParams({ columns: writeLayout(each) });
    const text = new URLSearchParams(query.toString()).get("columns") ?? "";
    expect(readLayout(text, isKnown, STANDARD)).toEqual(each);
  }
});

it("leaves out what is no column, repetitions, and impossible widths", () => {
  expect(readLayout("id,<b>|name,name,id", isKnown, STANDARD)).toEqual(layout(["id", "name"], 1));
  expect(readLayout("nothing", isKnown, STANDARD)).toEqual(STANDARD);
  expect(readLayout("|id:-5,name:1e9,state:x", isKnown, STANDARD).widths).toEqual({});
});

it("moves a column, and not beyond the ends", () => {
  expect(moved(STANDARD, "name", -1).ids).toEqual(["name", "id", "state"]);
  expect(moved(STANDARD, "name", 1).ids).toEqual(["id", "state", "name"]);
  expect(moved(STANDARD, "id", -1)).toEqual(STANDARD);
});

it("hides and shows a column, and never the last one", () => {
  expect(toggled(STANDARD, "id")).toEqual(layout(["name", "state"], 1));
  expect(toggled(STANDARD, "owner").ids).toEqual(["id", "name", "state", "owner"]);
  expect(toggled(layout(["id"], 1), "id").ids).toEqual(["id"]);
});

it("keeps a width within its bounds", () => {
  expect(resized(STANDARD, "id", 123.4).widths).toEqual({ id: 123 });
  expect(resized(STANDARD, "id", -3).widths).toEqual({ id: 40 });
});
