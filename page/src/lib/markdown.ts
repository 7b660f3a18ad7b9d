/**
 * PURE: shows Markdown as elements, never as HTML: markup in the text stays text, and links lead to http, https and
 * mailto alone. A picture is a link, because the page loads nothing from elsewhere.
 */

import { lexer, type Token, type Tokens } from "marked";

/** An element with what is in it, or text. The view makes the elements; a list of them is one, too. */
export type Markup = string | null | Markup[] | Element;

interface Element {
  name: string;
  properties: Record<string, string | number | boolean>;
  children: Markup[];
}

function make(name: string, properties: Element["properties"] | null, ...children: Markup[]): Element {
  return { name, properties: properties ?? {}, children };
}

/** Lists and quotations within one another; a text with more is shown as it is written. */
const MOST_LEVELS = 60;

/** Returns the elements of a text. Headings begin at the third level, below those of the page. */
export function renderMarkdown(text: string): Markup {
  let tokens: Token[];
  try {
    tokens = lexer(text, { gfm: true });
  } catch {
    // The reader of Markdown calls itself for each level, and a hostile text has thousands.
    return make("p", null, text);
  }
  return isDeeper(tokens, MOST_LEVELS) ? make("p", null, text) : blocks(tokens);
}

function isDeeper(tokens: Token[], levels: number): boolean {
  if (levels === 0) return tokens.length > 0;
  return tokens.some((token) => {
    const inner = token.type === "list" ? (token as Tokens.List).items : ((token as Tokens.Generic).tokens ?? []);
    return isDeeper(inner, levels - 1);
  });
}

/** Returns an address that a reader may follow; null for any other, such as one with a script. */
export function safeAddress(address: string): string | null {
  const lower = address.trim().toLowerCase();
  return /^(https?:\/\/|mailto:)[^\s]/.test(lower) ? address.trim() : null;
}

function blocks(tokens: Token[] | undefined): Markup[] {
  return (tokens ?? []).map(block);
}

function block(token: Token): Markup {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      return make(`h${Math.min(6, (token as Tokens.Heading).depth + 2)}`, null, blocks(token.tokens));
    case "paragraph":
      return make("p", null, blocks(token.tokens));
    case "blockquote":
      return make("blockquote", null, blocks(token.tokens));
    case "code":
      return make("pre", { tabIndex: 0 }, make("code", null, (token as Tokens.Code).text));
    case "hr":
      return make("hr", null);
    case "list":
      return list(token as Tokens.List);
    case "table":
      return table(token as Tokens.Table);
    default:
      return inline(token);
  }
}

function inline(token: Token): Markup {
  switch (token.type) {
    case "strong":
    case "em":
    case "del":
      return make(token.type, null, blocks(token.tokens));
    case "codespan":
      return make("code", null, (token as Tokens.Codespan).text);
    case "br":
      return make("br", null);
    case "link":
      return link((token as Tokens.Link).href, blocks(token.tokens));
    case "image":
      return link((token as Tokens.Image).href, [(token as Tokens.Image).text || (token as Tokens.Image).href]);
    case "checkbox":
      return null;
    case "escape":
      return (token as Tokens.Escape).text;
    case "text":
      return token.tokens === undefined ? (token as Tokens.Text).text : blocks(token.tokens);
    default:
      // HTML among others: the reader sees what was written.
      return token.raw;
  }
}

function link(address: string, content: Markup[]): Markup {
  const safe = safeAddress(address);
  return safe === null
    ? content
    : make("a", { href: safe, rel: "noopener noreferrer nofollow", target: "_blank" }, content);
}

function list(token: Tokens.List): Markup {
  const items = token.items.map((item) =>
    make(
      "li",
      null,
      item.task ? make("input", { type: "checkbox", disabled: true, checked: item.checked === true }) : null,
      blocks(item.tokens),
    ),
  );
  return token.ordered ? make("ol", { start: token.start === "" ? 1 : token.start }, items) : make("ul", null, items);
}

function table(token: Tokens.Table): Markup {
  const head = token.header.map((cell) => make("th", { scope: "col" }, blocks(cell.tokens)));
  const body = token.rows.map((row) =>
    make(
      "tr",
      null,
      row.map((cell) => make("td", null, blocks(cell.tokens))),
    ),
  );
  return make(
    "section",
    { class: "scroll", tabIndex: 0, "aria-label": "Table" },
    make("table", null, make("thead", null, make("tr", null, head)), make("tbody", null, body)),
  );
}
