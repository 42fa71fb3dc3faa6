// Light and dark: as the system says, unless the reader chose one.

import { useEffect, useState } from "preact/hooks";

export type Theme = "light" | "dark";
export type Choice = Theme | "system";

const KEY = "stepwell-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();
let choice: Choice = stored();

function stored(): Choice {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : "system";
  } catch {
    return "system";
  }
}

export function theme(): Theme {
  if (choice !== "system") return choice;
  return system.matches ? "dark" : "light";
}

function apply(): void {
  document.documentElement.dataset.theme = theme();
  for (const listener of listeners) listener();
}

export function setTheme(next: Choice): void {
  choice = next;
  try {
    if (next === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, next);
  } catch {
    // Pages from disk may have no storage: the choice lasts as long as the page.
  }
  apply();
}

system.addEventListener("change", apply);
apply();

/** Show the light theme for printing, then the reader's theme again. */
export function setPaper(isPaper: boolean): void {
  if (!isPaper) return apply();
  document.documentElement.dataset.theme = "light";
  for (const listener of listeners) listener();
}

/** The theme on the screen. Canvas views draw again when it changes. */
export function useTheme(): Theme {
  const [value, set] = useState(document.documentElement.dataset.theme as Theme);
  useEffect(() => {
    const listener = (): void => set(document.documentElement.dataset.theme as Theme);
    listeners.add(listener);
    listener();
    return () => void listeners.delete(listener);
  }, []);
  return value;
}

/** The value of a CSS variable, for canvas views: cssColour("--ink-2"). */
export function cssColour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
