/** Small parts that all views share. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { ApiError } from "../api/client";
import { formatDuration, formatUtc, splitName } from "../lib/text";
import { complain, say } from "../toast";

/** A name of any length on one line. A long one is cut in its middle; the whole is in the title. */
export function Name({ text }: { text: string }) {
  const [head, tail] = splitName(text);
  return (
    <span class="name" title={text}>
      <bdi class="head">{head}</bdi>
      {tail === "" ? null : <bdi class="tail">{tail}</bdi>}
    </span>
  );
}

/** A time in the reader's zone, with the one in UTC behind it. */
export function Time({ at }: { at: string | null | undefined }) {
  if (!at) return <span>–</span>;
  return (
    <time dateTime={at} title={formatUtc(at)}>
      {new Date(at).toLocaleString(undefined, { dateStyle: "short", timeStyle: "medium" })}
    </time>
  );
}

/** How long ago something was, as "5 min 3 s ago". It is counted anew with each view of its surroundings. */
export function Age({ at }: { at: string | null | undefined }) {
  if (!at) return <span>–</span>;
  return (
    <time dateTime={at} title={`${new Date(at).toLocaleString()} (${formatUtc(at)})`}>
      {formatDuration((Date.now() - Date.parse(at)) / 1000)} ago
    </time>
  );
}

const MARKS: Record<string, string> = {
  RUNNING: "▶",
  STARTING: "▷",
  QUEUED: "…",
  PAUSED: "‖",
  STOPPING: "■",
  COMPLETED: "✓",
  FAILED: "✗",
  CANCELED: "⊘",
};

/** A state or an outcome. A mark and a word say what the colour says. */
export function StateBadge({ state, outcome }: { state: string; outcome?: string | null | undefined }) {
  const shown = outcome ?? state;
  return (
    <span class={`badge ${shown.toLowerCase()}`}>
      <span aria-hidden="true">{MARKS[shown] ?? "•"} </span>
      {shown}
    </span>
  );
}

export function CopyButton({ text, label }: { text: string; label: string }) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      say(`copied: ${text}`);
    } catch {
      // Browsers give the clipboard to pages of https and of this machine alone.
      complain(`the browser does not let this page copy; copy it yourself: ${text}`);
    }
  };
  return (
    <button type="button" class="plain copy" title={`Copy ${label}`} aria-label={`Copy ${label}`} onClick={copy}>
      ⧉
    </button>
  );
}

/** The same on the command line. */
export function Command({ text }: { text: string }) {
  return (
    <span class="command">
      <code>{text}</code>
      <CopyButton text={text} label="this command" />
    </span>
  );
}

/** What a list says that has no entries: what to type to fill it. */
export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

export function Problem({ error }: { error: ApiError | null }) {
  return error === null ? null : (
    <p class="problem" role="alert">
      Error: {error.message}
    </p>
  );
}

/** Shown while a first answer is awaited. */
export function Loading() {
  return <p class="loading">Loading…</p>;
}

interface DialogProps {
  title: string;
  /** Whether it may be as wide as the window. */
  isWide?: boolean;
  onClose: () => void;
  children: ComponentChildren;
}

/**
 * A dialog over the page. Escape closes it, and the browser keeps the focus inside.
 *
 * The browser tells of a closed dialog later than it closes it. A dialog that was opened in between must not be closed by
 * that event, so Escape is taken before the browser closes anything, and nothing is heard once the dialog has gone.
 */
export function Dialog({ title, isWide = false, onClose, children }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const isGone = useRef(false);
  useEffect(() => {
    const shown = dialog.current;
    const opener = document.activeElement;
    shown?.showModal();
    return () => {
      isGone.current = true;
      shown?.close();
      // The browser gives the focus back only while the dialog is in the document.
      if (opener instanceof HTMLElement) opener.focus();
    };
  }, []);
  const close = () => {
    if (!isGone.current) onClose();
  };
  const cancel = (event: Event) => {
    event.preventDefault();
    close();
  };
  return (
    <dialog ref={dialog} class={isWide ? "wide" : ""} aria-labelledby="dialog-title" onCancel={cancel} onClose={close}>
      <h2 id="dialog-title">{title}</h2>
      {children}
    </dialog>
  );
}

interface ConfirmProps {
  title: string;
  action: string;
  onConfirm: () => Promise<void>;
  onClose: () => void;
  children: ComponentChildren;
}

/** Asks before something is done that cannot be undone. */
export function Confirm({ title, action, onConfirm, onClose, children }: ConfirmProps) {
  const [isBusy, setBusy] = useState(false);
  const confirm = async () => {
    setBusy(true);
    try {
      await onConfirm();
    } catch (failure) {
      complain(failure);
    }
    onClose();
  };
  return (
    <Dialog title={title} onClose={onClose}>
      {children}
      <div class="row end">
        <button type="button" onClick={onClose}>
          Back
        </button>
        <button type="button" class="danger" disabled={isBusy} onClick={confirm}>
          {action}
        </button>
      </div>
    </Dialog>
  );
}
