// Line charts of metrics, drawn by uPlot.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { addressOf, useAnswers } from "../api";
import { lineColour, runColour, withAlpha } from "../colours";
import { count, counted, duration, general, number } from "../format";
import { useVisible, useWidth } from "../parts/visible";
import type { Range } from "../router";
import { cssColour, type Theme, useTheme } from "../theme";
import type { Axis, SeriesAnswer, Value } from "../types";
import { aligned, extent, inWords, type Line, lastOf, notPositive, smoothed, unionOf } from "./lines";

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
  /** The y axis starts at 0, if no value is below. */
  fromZero?: boolean;
  /** How values read with a number of significant digits, if not as plain numbers: size. */
  unit?: Unit;
  /** The window of x; null is the whole run. Without `onRange`, the chart keeps its own. */
  range?: Range | null;
  onRange?: (range: Range | null) => void;
  /** False if the view has its own button that resets the zoom. */
  hasReset?: boolean;
  /** Names of runs by id, if there are several. */
  runNames?: Record<string, string>;
  /** Best values of the first run by name of the metric. */
  best?: Record<string, { best: Value; best_step: number | null } | undefined>;
  /** Charts with the same key share their cursor. */
  syncKey?: string;
}

/** Text of a value with this many significant digits. */
export type Unit = (value: number, digits?: number) => string;

/** Digits of the values at the cursor: enough to tell neighbours apart. */
function cursorDigits(line: Line): number {
  const [low, high] = extent(line) ?? [0, 0];
  const digits = high > low ? Math.ceil(Math.log10(Math.max(Math.abs(low), Math.abs(high)) / (high - low))) + 3 : 0;
  return Math.min(15, Math.max(6, digits));
}

const DASHES = [[], [6, 4], [2, 3], [9, 3, 2, 3]];

/** A chart of metrics that asks for its own data once it is on the screen. Drag to zoom, double click to reset. */
export function MetricChart(props: MetricChartProps) {
  const { runs, names, title, x = "step", by = "mean", rank, height = 200, unit = number } = props;
  const box = useRef<HTMLElement>(null);
  const isVisible = useVisible(box);
  const width = useWidth(box);
  const [ownRange, setOwnRange] = useState<Range | null>(null);
  const range = props.onRange ? (props.range ?? null) : ownRange;
  const onRange = props.onRange ?? setOwnRange;
  const points = by === "rank" ? 300 : Math.min(2000, Math.max(200, Math.ceil(width / 200) * 200));
  const wasVisible = useRef(false);
  if (isVisible && width) wasVisible.current = true;
  const addresses = wasVisible.current
    ? runs.map((run) =>
        addressOf(`/api/runs/${encodeURIComponent(run)}/series`, {
          name: names,
          x,
          by,
          rank: by === "rank" ? rank : undefined,
          start: range?.[0],
          end: range?.[1],
          points,
        }),
      )
    : [];
  const answers = useAnswers<SeriesAnswer>(isVisible ? addresses : []);
  const kept = useRef<(SeriesAnswer | null)[]>([]);
  if (isVisible && addresses.length) kept.current = answers.map(({ data }) => data);
  const shown = kept.current;
  const lines = useMemo(() => linesOf(shown, runs, names, props.runNames), [...shown, runs.join(), names.join()]);
  const isLoading = !wasVisible.current || (lines.length === 0 && answers.some(({ loading }) => loading));
  const error = answers.find((answer) => answer.error)?.error ?? null;
  const log = props.log ?? false;
  const isHidden = log && lines.length > 0 && lines.every((line) => notPositive(line) === line.y.length && !line.odd.length);
  const readout = useRef<((index: number | null) => void) | null>(null);
  const where = useRef<HTMLSpanElement>(null);
  return (
    <figure class="chart" ref={box}>
      <figcaption>
        <h3 title={title}>{title}</h3>
        <span class="chart-where" ref={where} aria-hidden="true" />
        {range && props.hasReset !== false && (
          <button type="button" class="link-button" onClick={() => onRange(null)}>
            Reset zoom
          </button>
        )}
      </figcaption>
      <div class="chart-area" style={{ height: `${height}px` }}>
        {isVisible && width > 0 && lines.length > 0 && !isHidden && (
          <Plot
            lines={lines}
            label={inWords(title, x, lines, unit)}
            axis={x}
            log={log}
            smooth={props.smooth ?? 0}
            fromZero={props.fromZero ?? false}
            unit={unit}
            width={width}
            height={height}
            range={range}
            onRange={onRange}
            syncKey={props.syncKey}
            readout={readout}
          />
        )}
        {lines.length === 0 && !isLoading && <p class="chart-note">{error ?? "No values."}</p>}
        {isHidden && <p class="chart-note">No value is above 0, and a log scale has no place for the others.</p>}
      </div>
      <Legend
        lines={lines}
        axis={x}
        log={log}
        unit={unit}
        best={by === "mean" ? props.best : undefined}
        bestOf={runs[0] ?? ""}
        readout={readout}
        where={where}
        expected={Math.min(names.length * runs.length, 8)}
      />
    </figure>
  );
}

function linesOf(
  answers: (SeriesAnswer | null)[],
  runs: string[],
  names: string[],
  runNames: Record<string, string> | undefined,
): Line[] {
  const lines: Line[] = [];
  // Colours go by the order of the runs, not of their answers.
  if (runs.length > 1) runs.forEach(runColour);
  answers.forEach((answer, place) => {
    const run = runs[place];
    if (!answer || run === undefined) return;
    const perRank = answer.series.some(({ rank }) => rank !== null);
    answer.series.forEach((series, index) => {
      const metric = Math.max(0, names.indexOf(series.name));
      const label = [
        runs.length > 1 ? (runNames?.[run] ?? run) : "",
        names.length > 1 || runs.length === 1 ? series.name : "",
        series.rank === null ? "" : `rank ${series.rank}`,
      ]
        .filter(Boolean)
        .join(" · ");
      lines.push({
        key: `${run}\n${series.name}\n${series.rank}`,
        label,
        colour: runs.length > 1 ? runColour(run) : lineColour(perRank ? index : metric),
        dash: (runs.length > 1 || perRank ? DASHES[metric % DASHES.length] : undefined) ?? [],
        x: series.x,
        y: series.y,
        low: series.low,
        high: series.high,
        odd: series.odd,
        count: series.count,
      });
    });
  });
  return lines;
}

interface PlotProps {
  lines: Line[];
  label: string;
  axis: Axis;
  log: boolean;
  smooth: number;
  fromZero: boolean;
  unit: Unit;
  width: number;
  height: number;
  range: Range | null;
  onRange: (range: Range | null) => void;
  syncKey?: string | undefined;
  readout: { current: ((index: number | null) => void) | null };
}

/** Lines over one x. The plot is built again if its lines change, and otherwise gets new data only. */
function Plot(props: PlotProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const theme = useTheme();
  const { lines, log, smooth, axis, width, height, range } = props;
  const data = useMemo(() => columns(lines, log, smooth), [lines, log, smooth]);
  const shape = [
    ...lines.map(({ key, low, label, colour }) => `${key}${low ? "+" : ""}${label}${colour}`),
    axis,
    log,
    smooth > 0,
    theme,
    props.syncKey,
  ].join("\n");
  // Before the next paint: the browser prints right after its event.
  useLayoutEffect(() => {
    if (!place.current) return;
    plot.current = new uPlot(options(latest, theme), data, place.current);
    return () => {
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => {
    const current = plot.current;
    if (!current || current.data === data) return;
    current.setData(data, false);
    window_(current, latest.current.range);
  }, [data]);
  useEffect(() => {
    if (plot.current) window_(plot.current, range);
  }, [range?.[0], range?.[1]]);
  useEffect(() => plot.current?.setSize({ width, height }), [width, height]);
  return <div ref={place} class="plot" role="img" aria-label={props.label} />;
}

/** Show a window of x, or all of it. */
function window_(plot: uPlot, range: Range | null): void {
  const x = plot.data[0] as number[];
  const min = range?.[0] ?? x[0] ?? 0;
  const max = range?.[1] ?? x[x.length - 1] ?? 1;
  const [low, high] = wide(plot, min, max);
  plot.setScale("x", { min: low, max: high });
}

/** x, then for each line: low and high if it has a band, the raw values, the smoothed ones. */
function columns(lines: Line[], log: boolean, smooth: number): uPlot.AlignedData {
  const x = unionOf(lines);
  const data: uPlot.AlignedData = [x];
  const span = (x.at(-1) ?? 0) - (x[0] ?? 0);
  for (const line of lines) {
    const place = (values: (number | null)[]): (number | null | undefined)[] => aligned(x, line.x, values, log);
    if (line.low && line.high) data.push(place(line.high) as number[], place(line.low) as number[]);
    data.push(place(line.y) as number[]);
    if (smooth > 0) data.push(place(smoothed(line, smooth, span)) as number[]);
  }
  return data;
}

function options(latest: { current: PlotProps }, _: Theme): uPlot.Options {
  const { lines, log, smooth, fromZero, axis, unit, width, height, range } = latest.current;
  const ink = cssColour("--ink-3");
  const grid = cssColour("--grid");
  const critical = cssColour("--critical");
  const font = `11px ${cssColour("--font")}`;
  const series: uPlot.Series[] = [{}];
  const bands: uPlot.Band[] = [];
  const many = lines.length > 12;
  for (const line of lines) {
    const base = { label: line.label, dash: line.dash, points: pointsOf(line, width) };
    if (line.low && line.high) {
      // Its edges are drawn too: a single outlier in a merged point is only one pixel wide.
      const edge: uPlot.Series = { stroke: withAlpha(line.colour, many ? 0.1 : 0.35), width: 1, points: { show: false } };
      series.push(edge, { ...edge });
      bands.push({ series: [series.length - 2, series.length - 1], fill: withAlpha(line.colour, many ? 0.06 : 0.2) });
    }
    const stroke = smooth > 0 ? withAlpha(line.colour, 0.28) : many ? withAlpha(line.colour, 0.6) : line.colour;
    series.push({ ...base, stroke, width: many ? 1 : 1.5 });
    if (smooth > 0) series.push({ ...base, stroke: line.colour, width: 1.8, points: { show: false } });
  }
  const axisStyle: uPlot.Axis = {
    stroke: ink,
    font,
    grid: { stroke: grid, width: 1 },
    ticks: { show: false },
    border: { show: false },
  };
  return {
    width,
    height,
    legend: { show: false },
    // The last label of the x axis is centred on the edge of the plot.
    padding: [10, Math.max(8, 3.4 * widestX(lines, axis)), 0, 0],
    series,
    bands,
    scales: {
      x: { time: false, range: (plot, min, max) => wide(plot, min, max) },
      y: log ? { distr: 3, range: (_plot, min, max) => decadesAround(min ?? 0.1, max ?? 1) } : { range: (_plot, min, max) => padded(min, max, fromZero) },
    },
    axes: [
      {
        ...axisStyle,
        grid: { show: false },
        size: 28,
        gap: 8,
        space: 56,
        ...(axis === "time" ? { incrs: TIME_INCREMENTS } : axis === "epoch" ? {} : { incrs: WHOLE_INCREMENTS }),
        values: (_plot, ticks, _axis, _space, distance) => ticks.map((tick) => xText(axis, tick, digitsFor(ticks, distance, 4))),
      },
      {
        ...axisStyle,
        ...(log ? { filter: decades, grid: { stroke: grid, width: 1, filter: decades } } : {}),
        gap: 6,
        space: 34,
        size: (_plot, values) => 18 + 6.2 * Math.max(axis.length, ...(values ?? []).map((text) => text?.length ?? 0)),
        values: (_plot, ticks, _axis, _space, distance) => {
          const hasValues = latest.current.lines.some((line) => extent(line) !== null);
          const digits = log ? 3 : digitsFor(ticks, distance, 3);
          return ticks.map((tick) => (tick === null || !hasValues ? "" : yText(tick, unit, digits)));
        },
      },
    ],
    cursor: {
      y: false,
      points: { size: 6, width: 1.5, fill: () => cssColour("--card") },
      drag: { x: true, y: false, setScale: false },
      // Lines with few points show the value nearest to the cursor.
      dataIdx: (plot, line, index) => nearest(plot.data[line] as (number | null | undefined)[], index),
      focus: lines.length > 3 ? { prox: 24 } : { prox: -1 },
      bind: {
        dblclick: () => () => {
          latest.current.onRange(null);
          return null;
        },
      },
      ...(latest.current.syncKey
        ? { sync: { key: latest.current.syncKey, setSeries: false, scales: ["x", null] as [string, null] } }
        : {}),
    },
    focus: { alpha: lines.length > 3 ? 0.25 : 1 },
    hooks: {
      ready: [(plot) => window_(plot, range)],
      setCursor: [(plot) => latest.current.readout.current?.(plot.cursor.idx ?? null)],
      setSelect: [
        (plot) => {
          const { left, width: wide } = plot.select;
          if (wide < 4) return;
          const window: [number, number] = [plot.posToVal(left, "x"), plot.posToVal(left + wide, "x")];
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          latest.current.onRange(axis === "step" ? [Math.floor(window[0]), Math.ceil(window[1])] : window);
        },
      ],
      draw: [(plot) => drawOdd(plot, latest.current.lines, critical), (plot) => drawTitle(plot, axis, ink)],
    },
  };
}

/** Points are drawn by themselves if a line has few of them. */
function pointsOf(line: Line, width: number): uPlot.Series.Points {
  return { show: line.x.length <= 1 || (line.x.length * POINT_SPACE <= width && !line.low), size: 4, fill: line.colour };
}

/** Width of a point with the space around it. */
const POINT_SPACE = 14;

/** Letters of the longest label at the right end of the x axis. */
function widestX(lines: Line[], axis: Axis): number {
  return Math.max(0, ...lines.map(({ x }) => xText(axis, x.at(-1) ?? null).length));
}

/** The title of the x axis, at its left end below the labels of the y axis. */
function drawTitle(plot: uPlot, axis: Axis, ink: string): void {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.font = `${11 * devicePixelRatio}px ${cssColour("--font")}`;
  ctx.fillStyle = ink;
  ctx.textAlign = "left";
  ctx.textBaseline = "top";
  ctx.fillText(axis, 0, bbox.top + bbox.height + 8 * devicePixelRatio);
  ctx.restore();
}

function wide(_: uPlot, min: number | null, max: number | null): [number, number] {
  const low = min ?? 0;
  const high = max ?? 1;
  // A single point is in the middle, between labels of its axis.
  const air = high > low ? 0 : Math.max(1, Math.abs(low) * 0.1);
  return [low - air, high + air];
}

/** A little air above and below; a flat line is in the middle. */
function padded(min: number | null, max: number | null, fromZero: boolean): [number, number] {
  if (min === null || max === null) return [0, 1];
  if (fromZero && min > 0) min = 0;
  if (min === max) {
    const air = Math.abs(min) * 0.1 || 1;
    return [min - air, max + air];
  }
  const air = (max - min) * 0.06;
  // Values that are never negative have no negative axis.
  return [min >= 0 && min - air < 0 ? 0 : min - air, max + air];
}

/** The range of a log axis; a flat line is not at its edge. */
function decadesAround(min: number, max: number): [number, number] {
  const air = max > min * 1.01 ? 1 : 2;
  const [low, high] = uPlot.rangeLog(min / air, max * air, 10, false);
  return [low ?? min, high ?? max];
}

/** Of the ticks of a log axis, the powers of ten; if there are fewer than two, those that begin with 1, 2 or 5. */
function decades(_: uPlot, ticks: number[]): (number | null)[] {
  const isPower = (tick: number): boolean => Math.abs(Math.log10(tick) - Math.round(Math.log10(tick))) < 1e-9;
  const isRound = (tick: number): boolean => [1, 2, 5].some((digit) => isPower(tick / digit));
  const isKept = ticks.filter(isPower).length < 2 ? isRound : isPower;
  return ticks.map((tick) => (isKept(tick) ? tick : null));
}

function nearest(values: (number | null | undefined)[], index: number): number {
  if (values[index] !== undefined) return index;
  for (let away = 1; away < values.length; away += 1) {
    if (values[index - away] !== undefined && index - away >= 0) return index - away;
    if (values[index + away] !== undefined) return index + away;
  }
  return index;
}

/** Values that are not finite: a cross on the lower edge (NaN, -inf) or the upper one (inf). */
function drawOdd(plot: uPlot, lines: Line[], colour: string): void {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  const arm = 3 * ratio;
  const { min = 0, max = 0 } = plot.scales.x ?? {};
  ctx.save();
  ctx.lineWidth = 1.6 * ratio;
  ctx.strokeStyle = colour;
  for (const { odd } of lines) {
    let before = Number.NEGATIVE_INFINITY;
    for (const { x, value } of odd) {
      if (x < (min as number) || x > (max as number)) continue;
      const at = plot.valToPos(x, "x", true);
      if (at - before < 2) continue;
      before = at;
      const y = value === "inf" ? bbox.top + arm : bbox.top + bbox.height - arm;
      ctx.beginPath();
      ctx.moveTo(at - arm, y - arm);
      ctx.lineTo(at + arm, y + arm);
      ctx.moveTo(at - arm, y + arm);
      ctx.lineTo(at + arm, y - arm);
      ctx.stroke();
    }
  }
  ctx.restore();
}

const WHOLE_INCREMENTS = Array.from({ length: 15 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

const TIME_INCREMENTS = [
  ...[1e3, 1e4, 1e5, 1e6, 1e7, 1e8].flatMap((unit) => [unit, 2 * unit, 5 * unit]),
  ...[1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800].map((seconds) => seconds * 1e9),
  ...[1, 2, 3, 6, 12, 24, 48, 96, 240].map((hours) => hours * 3.6e12),
];

/** Significant digits that tell ticks at this distance apart. */
function digitsFor(ticks: (number | null)[], distance: number, least: number): number {
  const largest = Math.max(...ticks.map((tick) => Math.abs(tick ?? 0)));
  if (!(largest > 0 && distance > 0)) return least;
  // The distance itself may have two digits, as 2.5 has.
  const second = distance / 10 ** Math.floor(Math.log10(distance)) % 1 > 1e-6 ? 1 : 0;
  const digits = Math.floor(Math.log10(largest)) - Math.floor(Math.log10(distance)) + 1 + second;
  return Math.min(15, Math.max(least, digits));
}

/** A place on the x axis: "1,200" or "2 min". */
export function xText(axis: Axis, value: number | null, digits = 4): string {
  if (value === null) return "";
  if (axis === "time") return value === 0 ? "0 s" : duration(value).replace(/ 00 (s|min)$/, "");
  if (axis === "epoch") return general(value, 6);
  return Math.abs(value) >= 1e7 ? compact(value, digits) : Number.isInteger(value) ? count(value) : general(value, 6);
}

function yText(value: number, unit: Unit, digits: number): string {
  if (unit !== number) return unit(value, digits);
  const size = Math.abs(value);
  if (size >= 1e6) return compact(value, Math.max(4, digits));
  if (size !== 0 && size < 1e-4) return general(value, digits);
  return size >= 1000 ? number(value, digits) : general(value, Math.max(6, digits));
}

function compact(value: number, digits: number): string {
  for (const [limit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"]] as const) {
    if (Math.abs(value) >= limit) return `${general(value / limit, digits)} ${letter}`;
  }
  return count(value);
}

interface LegendProps {
  lines: Line[];
  axis: Axis;
  log: boolean;
  unit: Unit;
  best: MetricChartProps["best"];
  /** The run that the best values are of. */
  bestOf: string;
  readout: { current: ((index: number | null) => void) | null };
  /** Shows the x of the cursor. */
  where: { current: HTMLElement | null };
  expected: number;
}

const MOST_IN_LEGEND = 6;

/** The lines of a chart with their values at the cursor, or their last ones. */
function Legend({ lines, axis, log, unit, best, bestOf, readout, where, expected }: LegendProps) {
  const list = useRef<HTMLUListElement>(null);
  const x = useMemo(() => unionOf(lines), [lines]);
  useEffect(() => {
    const digits = lines.map(cursorDigits);
    // The cursor moves often: its values go into the page without a redraw.
    readout.current = (index) => {
      const at = index === null ? null : x[index];
      if (where.current) where.current.textContent = at === null || at === undefined ? "" : `${axis} ${xText(axis, at)}`;
      list.current?.querySelectorAll("[data-line]").forEach((cell, place) => {
        const line = lines[place];
        if (!line) return;
        cell.textContent = at === null || at === undefined ? valueText(lastOf(line), unit) : valueText(valueAt(line, at), unit, digits[place]);
      });
    };
    readout.current(null);
    return () => {
      readout.current = null;
    };
  }, [lines, axis]);
  const [isAll, setAll] = useState(false);
  const shown = isAll ? lines : lines.slice(0, MOST_IN_LEGEND);
  return (
    <div class="legend" style={{ minHeight: `${Math.min(expected, 4) * 20}px` }}>
      <ul ref={list}>
        {shown.map((line) => {
          const [run, name = ""] = line.key.split("\n");
          const hidden = log ? notPositive(line) : 0;
          const record = run === bestOf ? best?.[name] : undefined;
          return (
            <li key={line.key}>
              <svg width="16" height="8" aria-hidden="true">
                <line x1="0" x2="16" y1="4" y2="4" stroke={line.colour} stroke-width="2.500" stroke-dasharray={line.dash.join(" ")} />
              </svg>
              <span class="legend-name" title={line.label}>
                {line.label}
              </span>
              <span class="legend-value" data-line="">
                {valueText(lastOf(line), unit)}
              </span>
              {record && record.best !== null && record.best !== undefined && (
                <span class="legend-best">
                  best {valueText(record.best, unit)}
                  {record.best_step !== null && ` at step ${count(record.best_step)}`}
                </span>
              )}
              {line.odd.length > 0 && <span class="legend-odd">× {line.odd.length} not finite</span>}
              {hidden > 0 && (
                <span class="legend-odd">
                  {counted(hidden, line.count > line.x.length ? "point" : "value")} ≤ 0 {hidden === 1 ? "is" : "are"} not drawn
                </span>
              )}
            </li>
          );
        })}
      </ul>
      {lines.length > MOST_IN_LEGEND && (
        <button type="button" class="link-button legend-more" aria-expanded={isAll} onClick={() => setAll(!isAll)}>
          {isAll ? "Show fewer" : `${count(lines.length - MOST_IN_LEGEND)} more`}
        </button>
      )}
    </div>
  );
}

function valueText(value: Value, unit: Unit, digits?: number): string {
  return typeof value === "number" ? unit(value, digits) : number(value);
}

/** The value of a line at the point nearest to x. */
function valueAt(line: Line, x: number): Value {
  let low = 0;
  let high = line.x.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if ((line.x[middle] as number) <= x) low = middle;
    else high = middle;
  }
  const index = Math.abs((line.x[low] ?? 0) - x) <= Math.abs((line.x[high] ?? 0) - x) ? low : high;
  const away = index < line.x.length ? Math.abs((line.x[index] ?? 0) - x) : Number.POSITIVE_INFINITY;
  // A value that is not finite counts where it is nearer than any other, or in its place.
  const odd = line.odd.find((each) => Math.abs(each.x - x) < away || (each.x === line.x[index] && line.y[index] == null));
  return odd?.value ?? line.y[index] ?? null;
}
