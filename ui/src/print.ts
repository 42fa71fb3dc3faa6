// Printing: light colours, and charts that were not on the screen yet.

import { isIdle } from "./api";
import { showAll } from "./parts/visible";
import { setPaper } from "./theme";

const LONGEST_WAIT_MS = 15_000;
const CALM_MS = 300;

function prepare(on: boolean): void {
  setPaper(on);
  showAll(on);
}

/** Draw everything, wait for its data, and print. The event of the browser leaves no time to ask the server. */
async function print(): Promise<void> {
  prepare(true);
  const began = Date.now();
  let calmSince = began;
  while (Date.now() - calmSince < CALM_MS && Date.now() - began < LONGEST_WAIT_MS) {
    await new Promise((resolve) => setTimeout(resolve, 50));
    if (!isIdle()) calmSince = Date.now();
  }
  window.print();
}

/** Prepare the page when it is printed, by the keyboard or by the menu of the browser. */
export function watchPrinting(): void {
  window.addEventListener("beforeprint", () => prepare(true));
  window.addEventListener("afterprint", () => prepare(false));
  window.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "p" || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey) return;
    event.preventDefault();
    void print();
  });
}
