/** Notes in Markdown as they are shown. The renderer is loaded with the first of them. */

import { type ComponentChildren, h } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Markup } from "../lib/markdown";
import { partOf } from "../reload";
import { complain } from "../toast";

type Render = typeof import("../lib/markdown").renderMarkdown;

export function Markdown({ text }: { text: string }) {
  const [render, setRender] = useState<{ call: Render } | null>(null);
  useEffect(() => {
    partOf(() => import("../lib/markdown")).then(({ renderMarkdown }) => setRender({ call: renderMarkdown }), complain);
  }, []);
  return (
    <article class="notes" aria-label="The notes as they are shown">
      {render === null ? null : elementsOf(render.call(text))}
    </article>
  );
}

function elementsOf(markup: Markup): ComponentChildren {
  if (markup === null || typeof markup === "string") return markup;
  if (Array.isArray(markup)) return markup.map(elementsOf);
  return h(markup.name, markup.properties, markup.children.map(elementsOf));
}
