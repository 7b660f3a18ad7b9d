import { describe, expect, it } from "vitest";
import { allOf, FilterMistake, fieldsOf, type Group, parseFilter, type Value, writeFilter } from "../src/lib/filter";

const bare = (text: string): Value => ({ text, isQuoted: false });
const condition = (field: string, operator: "=" | "<" | "~", ...values: Value[]) => ({
  kind: "condition" as const,
  field,
  operator,
  values,
});

describe("the text of a filter", () => {
  it("is read as a tree, in which `and` goes before `or`", () => {
    expect(parseFilter("a = 1 or b = 2 and c < 3")).toEqual({
      kind: "group",
      joint: "or",
      isNegated: false,
      items: [
        condition("a", "=", bare("1")),
        {
          kind: "group",
          joint: "and",
          isNegated: false,
          items: [condition("b", "=", bare("2")), condition("c", "<", bare("3"))],
        },
      ],
    });
  });

  it("is the same after it was read and written, where nothing is superfluous", () => {
    const texts = [
      "",
      "state = RUNNING",
      "state = RUNNING and (hp.lr < 0.1 or labels = best)",
      'name ~ "^digits \\"x\\"" and owner in (ann, bob)',
      "owner not in (ann) and not (a = 1 or b = 2)",
      'hp."my rate" >= 1e-3',
      'x = "5" and x = 5 and x != null and name = "null"',
      "not (not (a = 1))",
      'name = "and" and name = ""',
    ];
    for (const text of texts) expect(writeFilter(parseFilter(text))).toBe(text);
  });

  it("loses superfluous parentheses alone", () => {
    expect(writeFilter(parseFilter("((a=1)) and (b=2 and (c=3))"))).toBe("a = 1 and (b = 2 and c = 3)");
    expect(writeFilter(parseFilter("not a = 1"))).toBe("not (a = 1)");
  });

  it("is refused with the place of the mistake", () => {
    for (const text of ["a", "a =", "a = 1 and", "(a = 1", "a in 1", "a = b c", '"a" = 1', "a not = 1", 'a = "\\q"']) {
      expect(() => parseFilter(text), text).toThrow(FilterMistake);
    }
    expect(() => parseFilter("a = 1 and !")).toThrow("character 10");
    expect(() => parseFilter(`${"(".repeat(30)}a = 1${")".repeat(30)}`)).toThrow("nested");
  });
});

describe("conditions of the builder", () => {
  const root = (...items: Group["items"]): Group => ({ kind: "group", joint: "and", isNegated: false, items });
  it("are quoted where a text has spaces or marks, and read back as they were", () => {
    const hostile = [
      "<b>x</b>",
      'a "quote"',
      "\u202eright",
      "tab\there",
      "\u0000",
      "in",
      "x".repeat(5000),
      "back\\slash",
    ];
    for (const text of hostile) {
      const written = writeFilter(root(condition("name", "=", bare(text))));
      const [read] = parseFilter(written).items;
      expect(read?.kind === "condition" && read.values[0]?.text).toBe(text);
    }
    expect(writeFilter(root(condition("hp.my rate", "=", bare("1"))))).toBe('hp."my rate" = 1');
  });
  it("are left out until they have a field and a value", () => {
    const half = condition("", "=", bare("1"));
    const nothing = condition("a", "=");
    expect(writeFilter(root(half, nothing, root()))).toBe("");
    expect(writeFilter(root(half, condition("a", "=", bare("1"))))).toBe("a = 1");
  });
});

it("joins filters of which all hold", () => {
  expect(allOf(["", "a = 1 or b = 2", " ", "c = 3"])).toBe("(a = 1 or b = 2) and (c = 3)");
  expect(allOf(["a = 1"])).toBe("a = 1");
  expect(allOf([])).toBe("");
});

it("names the fields that are compared", () => {
  expect([...fieldsOf('archived = true or not hp."a b" = 1')]).toEqual(["archived", "hp.a b"]);
  expect([...fieldsOf("archived =")]).toEqual([]);
});
