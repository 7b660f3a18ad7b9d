/** An input whose text counts once it is complete. What is typed stays while the view around it is drawn again. */

import { useEffect, useState } from "preact/hooks";

interface Props {
  label: string;
  value: string;
  /** Gets the text with the Enter key, and when the input is left. */
  onCommit: (text: string) => void;
  isNumber?: boolean;
  isShort?: boolean;
  placeholder?: string;
}

export function DraftInput({ label, value, onCommit, isNumber = false, isShort = false, placeholder = "" }: Props) {
  const [draft, setDraft] = useState(value);
  useEffect(() => setDraft(value), [value]);
  return (
    <label>
      {label}{" "}
      <input
        type="search"
        inputMode={isNumber ? "numeric" : "text"}
        class={isShort ? "short" : ""}
        placeholder={placeholder}
        value={draft}
        onInput={(event) => setDraft(event.currentTarget.value)}
        onChange={(event) => onCommit(event.currentTarget.value)}
      />
    </label>
  );
}
