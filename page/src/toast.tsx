/** Short messages at the edge of the page: what was done, and errors in one line with their way out. */

import { signal } from "@preact/signals";

interface Toast {
  id: number;
  text: string;
  isError: boolean;
}

const SECONDS = 8;
const toasts = signal<Toast[]>([]);
let nextId = 0;

export function say(text: string): void {
  add(text, false);
}

/** Shows why something failed. It stays until it is closed. */
export function complain(failure: unknown): void {
  add(failure instanceof Error ? failure.message : String(failure), true);
}

function add(text: string, isError: boolean): void {
  const id = nextId++;
  // The same words are there once, and are read out again.
  const others = toasts.value.filter((toast) => toast.text !== text);
  toasts.value = [...others.slice(-4), { id, text, isError }];
  if (!isError) setTimeout(() => close(id), SECONDS * 1000);
}

function close(id: number): void {
  toasts.value = toasts.value.filter((toast) => toast.id !== id);
}

export function Toasts() {
  return (
    <section class="toasts" aria-live="polite" aria-label="Messages">
      {toasts.value.map((toast) => (
        <div key={toast.id} class={toast.isError ? "toast error" : "toast"} role={toast.isError ? "alert" : "status"}>
          <span>
            {toast.isError ? "Error: " : ""}
            {toast.text}
          </span>
          <button type="button" class="plain" aria-label="Close this message" onClick={() => close(toast.id)}>
            ×
          </button>
        </div>
      ))}
    </section>
  );
}
