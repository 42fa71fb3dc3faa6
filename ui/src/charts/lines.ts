// From series to lines of a chart: one x for all, smoothed values, text alternative.

import { number } from "../format";
import type { Axis, Series, Value } from "../types";

/** One line of a chart. */
export interface Line {
  key: string;
  label: string;
  colour: string;
  dash: number[];
  x: number[];
  y: (number | null)[];
  low: (number | null)[] | null;
  high: (number | null)[] | null;
  odd: Series["odd"];
  /** Points recorded in this window; more than x.length if several were merged into one. */
  count: number;
}

type Column = (number | null | undefined)[];

/** All x of all lines, in order, with those of values that are not finite. */
export function unionOf(lines: Line[]): number[] {
  const [first] = lines;
  if (first && lines.every(({ x, odd }) => isSame(x, first.x) && !odd.length)) return first.x;
  const all = new Set<number>();
  for (const { x, odd } of lines) {
    for (const value of x) all.add(value);
    for (const { x: value } of odd) all.add(value);
  }
  return Float64Array.from(all).sort() as unknown as number[];
}

function isSame(a: number[], b: number[]): boolean {
  return a === b || (a.length === b.length && a.every((value, at) => value === b[at]));
}

/** Values at every x of the chart: undefined where the line has no point, null where it has a gap. */
export function aligned(x: number[], lineX: number[], values: (number | null)[], log: boolean): Column {
  const column: Column = new Array(x.length);
  let at = 0;
  for (let place = 0; place < lineX.length; place += 1) {
    const goal = lineX[place] as number;
    while (at < x.length && (x[at] as number) < goal) at += 1;
    const value = values[place] ?? null;
    column[at] = log && value !== null && value <= 0 ? null : value;
  }
  return column;
}

/** Smoothing reaches equally far along x in every line, whether it has ten points or a million: the weight of the
 * past is for this part of the width of the chart. */
const SMOOTHING_PARTS = 200;

/** An exponential moving average without a bias at its start. `span` is the width of the chart in x. */
export function smoothed(line: Line, weight: number, span: number): (number | null)[] {
  let sum = 0;
  let total = 0;
  let before = line.x[0] ?? 0;
  return line.y.map((value, at) => {
    if (value === null) return null;
    const x = line.x[at] as number;
    const past = weight ** (span > 0 ? (SMOOTHING_PARTS * (x - before)) / span : 1);
    before = x;
    sum = past * sum + (1 - weight) * value;
    total = past * total + (1 - weight);
    return sum / total;
  });
}

/** Lowest and highest value, with the bands. */
export function extent(line: Line): [number, number] | null {
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (const values of [line.y, line.low ?? [], line.high ?? []]) {
    for (const value of values) {
      if (value === null) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : null;
}

/** How many values a log scale cannot draw. */
export function notPositive(line: Line): number {
  return line.y.filter((value) => value !== null && value <= 0).length;
}

export function lastOf(line: Line): Value {
  const odd = line.odd.at(-1);
  for (let at = line.y.length - 1; at >= 0; at -= 1) {
    const value = line.y[at];
    if (value === null || value === undefined) continue;
    return odd && odd.x > (line.x[at] as number) ? odd.value : value;
  }
  return odd?.value ?? null;
}

const AXES: Record<Axis, string> = {
  step: "steps",
  epoch: "epochs",
  samples: "samples",
  tokens: "tokens",
  time: "time",
};

/** The chart in words, for a screen reader. */
export function inWords(title: string, axis: Axis, lines: Line[], text: (value: number) => string): string {
  const sentences = lines.slice(0, 6).map((line) => {
    const last = lastOf(line);
    const range = extent(line);
    if (!range) return `${line.label}: no finite value.`;
    const shown = typeof last === "number" ? text(last) : number(last);
    const odd = line.odd.length ? `, ${line.odd.length} not finite` : "";
    return `${line.label}: last ${shown}, minimum ${text(range[0])}, maximum ${text(range[1])}${odd}.`;
  });
  const more = lines.length > 6 ? ` And ${lines.length - 6} more lines.` : "";
  return `Line chart of ${title} over ${AXES[axis]}. ${sentences.join(" ")}${more}`;
}
