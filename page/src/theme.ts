/** Light or dark: as the system is set, until the reader chooses. */

import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const KEY = "gangline.theme";

function stored(): Theme {
  const value = localStorage.getItem(KEY);
  return value === "light" || value === "dark" ? value : "system";
}

export const theme = signal<Theme>("system");

export function startTheme(): void {
  theme.value = stored();
  effect(() => {
    document.documentElement.dataset.theme = theme.value;
    localStorage.setItem(KEY, theme.value);
  });
}
