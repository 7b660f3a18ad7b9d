/** PURE: the text of a filter as a tree of conditions, which the builder shows, and back. docs/http.md has the grammar. */

export const OPERATORS = ["=", "!=", "<", "<=", ">", ">=", "~", "!~", "in", "not in"] as const;
export type Operator = (typeof OPERATORS)[number];

export interface Value {
  text: string;
  /** A quoted value is a text, whatever it looks like. */
  isQuoted: boolean;
}

export interface Condition {
  kind: "condition";
  field: string;
  operator: Operator;
  values: Value[];
}

export interface Group {
  kind: "group";
  joint: "and" | "or";
  isNegated: boolean;
  items: Item[];
}

export type Item = Condition | Group;

/** What is wrong with a text that is no filter. */
export class FilterMistake extends Error {}

interface Token {
  kind: "mark" | "string" | "word" | "end";
  text: string;
  start: number;
  end: number;
}

const TOKEN = /\s*(?:(?<mark>!=|<=|>=|!~|[=<>~(),])|(?<string>"(?:[^"\\]|\\[\s\S])*")|(?<word>[^\s=<>~!(),"]+))/y;
const WORDS = new Set(["and", "or", "not", "in"]);
const MAX_DEPTH = 20;
// Control characters count as spaces in some languages, so they are always quoted.
const PLAIN_WORD = /^[^\s\p{C}=<>~!(),"]+$/u;

export function emptyGroup(): Group {
  return { kind: "group", joint: "and", isNegated: false, items: [] };
}

/** Reads a filter. Throws FilterMistake. */
export function parseFilter(text: string): Group {
  const parser = new Parser(split(text));
  const found = parser.parse();
  return found.kind === "group" && !found.isNegated ? found : { ...emptyGroup(), items: [found] };
}

/** Writes a tree as a filter. Conditions without a field or a value, and groups without conditions, are left out. */
export function writeFilter(group: Group): string {
  const text = writeGroup(group);
  return text ?? "";
}

function writeItem(item: Item): string | null {
  if (item.kind === "condition") return writeCondition(item);
  const text = writeGroup(item);
  return text === null || text.startsWith("not (") ? text : `(${text})`;
}

function writeGroup(group: Group): string | null {
  const written = group.items.map(writeItem).filter((text) => text !== null);
  if (written.length === 0) return null;
  // A single group inside needs no second pair of parentheses.
  const only = group.items.find((item) => writeItem(item) !== null);
  const isDouble = written.length === 1 && only?.kind === "group" && !only.isNegated;
  const text = isDouble ? (written[0] ?? "").slice(1, -1) : written.join(` ${group.joint} `);
  return group.isNegated ? `not (${text})` : text;
}

function writeCondition({ field, operator, values }: Condition): string | null {
  if (field.trim() === "" || values.length === 0) return null;
  const isList = operator === "in" || operator === "not in";
  const written = values.map(writeValue);
  return `${writeField(field)} ${operator} ${isList ? `(${written.join(", ")})` : written[0]}`;
}

export function writeValue({ text, isQuoted }: Value): string {
  return !isQuoted && isWord(text) ? text : JSON.stringify(text);
}

export function writeField(name: string): string {
  if (isWord(name)) return name;
  const dot = name.indexOf(".");
  // The first part of a name is never quoted, and no field without a part behind it needs it.
  return dot < 0 ? name : `${name.slice(0, dot + 1)}${JSON.stringify(name.slice(dot + 1))}`;
}

function isWord(text: string): boolean {
  return PLAIN_WORD.test(text) && !WORDS.has(text);
}

/** Joins filters of which all must hold. */
export function allOf(filters: string[]): string {
  const given = filters.filter((filter) => filter.trim() !== "");
  return given.length < 2 ? (given[0] ?? "") : given.map((filter) => `(${filter})`).join(" and ");
}

/** Returns the names of the fields that a filter compares; none for a text that is no filter. */
export function fieldsOf(text: string): Set<string> {
  const names = new Set<string>();
  const visit = (item: Item) => (item.kind === "condition" ? names.add(item.field) : item.items.forEach(visit));
  try {
    visit(parseFilter(text));
  } catch (failure) {
    if (!(failure instanceof FilterMistake)) throw failure;
  }
  return names;
}

function split(text: string): Token[] {
  const tokens: Token[] = [];
  let end = 0;
  while (text.slice(end).trim() !== "") {
    TOKEN.lastIndex = end;
    const match = TOKEN.exec(text);
    if (match === null) throw mistake(end, "this is no part of a filter; texts stand in double quotes");
    const [kind, found] = Object.entries(match.groups ?? {}).find(([, value]) => value !== undefined) ?? ["end", ""];
    end = TOKEN.lastIndex;
    tokens.push({ kind: kind as Token["kind"], text: found, start: end - found.length, end });
  }
  tokens.push({ kind: "end", text: "", start: text.length, end: text.length });
  return tokens;
}

class Parser {
  private place = 0;
  private depth = 0;

  constructor(private readonly tokens: Token[]) {}

  parse(): Item {
    if (this.tokens.length === 1) return emptyGroup();
    const found = this.joined("or");
    if (this.next.kind !== "end") this.fail("expected and, or, or the end");
    return found;
  }

  private get next(): Token {
    return this.tokens[this.place] as Token;
  }

  private take(): Token {
    const token = this.next;
    if (token.kind !== "end") this.place++;
    return token;
  }

  private skip(text: string): boolean {
    const isThere = ["mark", "word"].includes(this.next.kind) && this.next.text === text;
    if (isThere) this.place++;
    return isThere;
  }

  private joined(joint: "and" | "or"): Item {
    const read = () => (joint === "or" ? this.joined("and") : this.item());
    const first = read();
    const items = [first];
    while (this.skip(joint)) items.push(read());
    return items.length === 1 ? first : { kind: "group", joint, isNegated: false, items };
  }

  private item(): Item {
    if (++this.depth > MAX_DEPTH) throw mistake(this.next.start, `the filter is nested more than ${MAX_DEPTH} deep`);
    try {
      if (this.skip("not")) return negated(this.item());
      if (!this.skip("(")) return this.condition();
      const inner = this.joined("or");
      this.expect(")");
      return inner;
    } finally {
      this.depth--;
    }
  }

  private condition(): Condition {
    const field = this.field();
    const isNegated = this.skip("not");
    if (this.skip("in")) {
      return { kind: "condition", field, operator: isNegated ? "not in" : "in", values: this.values() };
    }
    const operator = OPERATORS.find((each) => this.next.kind === "mark" && each === this.next.text);
    if (isNegated || operator === undefined) this.fail(`expected one of ${OPERATORS.join(" ")} after ${field}`);
    this.take();
    return { kind: "condition", field, operator: operator as Operator, values: [this.value()] };
  }

  private field(): string {
    const first = this.next;
    if (first.kind !== "word" || WORDS.has(first.text)) this.fail("expected the name of a field");
    let name = "";
    let end = first.start;
    while (this.next.start === end && (this.next.kind === "word" || this.next.kind === "string")) {
      const token = this.take();
      name += token.kind === "word" ? token.text : unquoted(token);
      end = token.end;
    }
    return name;
  }

  private values(): Value[] {
    this.expect("(");
    const values = [this.value()];
    while (this.skip(",")) values.push(this.value());
    this.expect(")");
    return values;
  }

  private value(): Value {
    if (this.next.kind === "string") return { text: unquoted(this.take()), isQuoted: true };
    if (this.next.kind !== "word" || WORDS.has(this.next.text)) {
      this.fail("expected a value; texts with spaces or marks stand in double quotes");
    }
    return { text: this.take().text, isQuoted: false };
  }

  private expect(mark: string): void {
    if (!this.skip(mark)) this.fail(`expected ${mark}`);
  }

  private fail(text: string): never {
    throw mistake(this.next.start, `${text}, found ${this.next.text.slice(0, 20) || "the end"}`);
  }
}

function negated(item: Item): Group {
  const group: Group = item.kind === "group" ? item : { ...emptyGroup(), items: [item] };
  return group.isNegated ? { ...emptyGroup(), items: [group], isNegated: true } : { ...group, isNegated: true };
}

function unquoted(token: Token): string {
  try {
    // A line break or another control character inside is allowed there, and not in JSON.
    const escaped = token.text.replace(
      /\p{Cc}/gu,
      (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`,
    );
    return JSON.parse(escaped) as string;
  } catch {
    throw mistake(token.start, "this text has an escape that JSON does not know");
  }
}

function mistake(start: number, text: string): FilterMistake {
  return new FilterMistake(`filter, character ${start + 1}: ${text}`);
}
