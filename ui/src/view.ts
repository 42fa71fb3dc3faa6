import type { Head } from "./types";

/** What every view of a run receives. */
export interface ViewProps {
  run: string;
  head: Head;
}
