import { describe, expect, it } from "vitest";
import { type Markup, renderMarkdown, safeAddress } from "../src/lib/markdown";

interface Found {
  name: string;
  props: Record<string, unknown>;
}

function elements(markup: Markup): Found[] {
  if (Array.isArray(markup)) return markup.flatMap(elements);
  if (markup === null || typeof markup === "string") return [];
  return [{ name: markup.name, props: markup.properties }, ...elements(markup.children)];
}

function words(markup: Markup): string {
  if (Array.isArray(markup)) return markup.map(words).join("");
  if (markup === null || typeof markup === "string") return markup ?? "";
  return words(markup.children);
}

describe("renderMarkdown", () => {
  it("makes elements of what is common", () => {
    const text = "# Title\n\na **good** `run`\n\n- [x] done\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n1. one\n";
    const names = elements(renderMarkdown(text)).map((element) => element.name);
    for (const name of ["h3", "p", "strong", "code", "ul", "li", "input", "table", "th", "td", "ol"]) {
      expect(names).toContain(name);
    }
  });

  it.each([
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a <b onclick=alert(1)>bold</b>",
    "<svg><style>*{}</style></svg>",
    "<iframe src=//evil.example></iframe>",
    "![x](https://evil.example/pixel.png)",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](data:text/html,<script>1</script>)",
    "[x](&#106;avascript:alert(1))",
    "[x]: javascript:alert(1)\n\n[x]",
    "<javascript:alert(1)>",
    '[x](https://a.example "onmouseover=alert(1)")',
    "`<script>`\n```html\n<script>alert(1)</script>\n```",
  ])("makes nothing of %j that runs or loads", (text) => {
    for (const { name, props } of elements(renderMarkdown(text))) {
      expect(["p", "a", "code", "pre"]).toContain(name);
      for (const property of Object.keys(props)) expect(["href", "rel", "target", "tabIndex"]).toContain(property);
      if (name === "a") expect(props.href).toMatch(/^https:/);
    }
  });

  it("shows markup as it was written", () => {
    expect(words(renderMarkdown("<script>alert(1)</script>"))).toBe("<script>alert(1)</script>");
    expect(words(renderMarkdown("a < b &amp; c"))).toContain("a < b");
  });

  it.each([100, 5000])("shows %d quotations within one another as they were written", (levels) => {
    const text = `${">".repeat(levels)}deep`;
    expect(elements(renderMarkdown(text)).map((element) => element.name)).toEqual(["p"]);
    expect(words(renderMarkdown(text))).toBe(text);
  });
});

it.each(["http://a.example", "HTTPS://a.example/b", "mailto:ann@a.example"])("follows %s", (address) => {
  expect(safeAddress(address)).toBe(address);
});
it.each(["javascript:alert(1)", "java\nscript:x", "//a.example", "vbscript:x", "file:///etc", " "])(
  "does not follow %j",
  (address) => {
    expect(safeAddress(address)).toBeNull();
  },
);
