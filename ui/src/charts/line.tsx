import type { Axis } from "../types";

export interface MetricChartProps {
  /** Ids of the runs to overlay. */
  runs: string[];
  /** Metrics in this chart. */
  names: string[];
  title: string;
  x?: Axis;
  by?: "mean" | "rank" | "spread";
  /** One rank only, with by="rank". */
  rank?: number;
  log?: boolean;
  /** Weight of the past in the smoothed line, 0 (off) to 0.99. */
  smooth?: number;
  height?: number;
  /** How values read, if not as plain numbers: (v) => size(v). */
  unit?: (value: number) => string;
  /** The window of x; null is the whole run. */
  range?: [number, number] | null;
  onRange?: (range: [number, number] | null) => void;
}

/** A chart of metrics that asks for its own data once it is on the screen. */
export function MetricChart(_: MetricChartProps) {
  return null;
}
