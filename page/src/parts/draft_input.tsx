/** An input whose text counts once it is complete. What is typed stays while the view around it is drawn again. */

import { useEffect, useState } from "preact/hooks";

interface Props {
  type: "search" | "text" | "number";
  value: string;
  /** Gets the text with the Enter key, and when the input is left. */
  onCommit: (text: string) => void;
  isShort?: boolean;
  placeholder?: string;
}

export function DraftInput({ type, value, onCommit, isShort = false, placeholder = "" }: Props) {
  const [draft, setDraft] = useState(value);
  useEffect(() => setDraft(value), [value]);
  return (
    <input
      type={type}
      class={isShort ? "short" : ""}
      placeholder={placeholder}
      value={draft}
      onInput={(event) => setDraft(event.currentTarget.value)}
      onChange={(event) => onCommit(event.currentTarget.value)}
    />
  );
}
