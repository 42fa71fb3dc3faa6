import type { Live } from "../live";
import type { Overview } from "../types";

export function OverviewView({ overview }: { run: string; overview: Overview; live: Live }) {
  return <pre>{overview.head.name}</pre>;
}
