import { expect, test } from "vitest";
import { chosenIn, EVERYTHING, NOTHING, toggledIn } from "../src/pages/experiment_list/selection";

const ROWS = [{ id: 9 }, { id: 4 }, { id: 7 }];

test("the selected ones come in the order of the list, and those that have left it last", () => {
  const selection = { isAll: false, ids: new Set([2, 7, 9]) };
  expect(chosenIn(selection, ROWS, 3)).toEqual([9, 7, 2]);
  expect(chosenIn(NOTHING, ROWS, 3)).toEqual([]);
});

test("all but some are known only where all rows are", () => {
  const selection = toggledIn(EVERYTHING, 4);
  expect(chosenIn(selection, ROWS, 3)).toEqual([9, 7]);
  expect(chosenIn(selection, ROWS, 4)).toBeNull();
});
