/** Parts of pages on which things are changed: dialogs with a form, tables that scroll, and what a command does too. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { ApiError } from "../api/client";
import { Command, Dialog } from "./basic";

/** The command that does the same. */
export function Same({ command }: { command: string }) {
  return (
    <p>
      The same on the command line: <Command text={command} />
    </p>
  );
}

/** A table that is scrolled sideways where it is wider than the screen. */
export function TableFrame({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a table wider than the screen is scrolled by keyboard
    <section class="scroll" aria-label={label} tabIndex={0}>
      <table>{children}</table>
    </section>
  );
}

export function Head({ titles }: { titles: string[] }) {
  return (
    <thead>
      <tr>
        {titles.map((title) => (
          <th key={title} scope="col">
            {title}
          </th>
        ))}
      </tr>
    </thead>
  );
}

interface FormDialogProps {
  title: string;
  action: string;
  /** An ApiError is shown in the dialog, which stays open then. */
  onSubmit: (values: FormData) => Promise<void>;
  onClose: () => void;
  children: ComponentChildren;
}

/** A dialog with a form. */
export function FormDialog({ title, action, onSubmit, onClose, children }: FormDialogProps) {
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    setBusy(true);
    setProblem("");
    try {
      await onSubmit(new FormData(event.currentTarget as HTMLFormElement));
      onClose();
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
      setProblem(failure.message);
    }
    setBusy(false);
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form class="stack" onSubmit={submit}>
        {children}
        {problem === "" ? null : (
          <p class="problem" role="alert">
            Error: {problem}
          </p>
        )}
        <div class="row end">
          <button type="button" onClick={onClose}>
            Back
          </button>
          <button type="submit" class="main" disabled={isBusy}>
            {action}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
