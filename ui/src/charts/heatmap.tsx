// A heat map on a canvas: rows by columns of values, with a legend, a tooltip, a keyboard cursor and drag to zoom.
// Also the home of what the hand-drawn charts share: colour scales, ink and the size of a canvas.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import "./heatmap.css";

// Canvas

export interface Ink {
  text: string;
  muted: string;
  faint: string;
  line: string;
  surface: string;
  sunken: string;
  accent: string;
  danger: string;
  isDark: boolean;
  font: string;
}

/** Return the colours of the page at an element, for drawing on a canvas. */
export function readInk(element: Element): Ink {
  const style = getComputedStyle(element);
  const read = (name: string, otherwise: string) => style.getPropertyValue(name).trim() || otherwise;
  const surface = read("--card", "#ffffff");
  return {
    text: read("--ink", "#14171c"),
    muted: read("--ink-2", "#4c5462"),
    faint: read("--ink-3", "#646d7b"),
    line: read("--line-2", "#d3d7de"),
    surface,
    sunken: read("--raised", "#f4f5f7"),
    accent: read("--accent", "#4450c4"),
    danger: read("--critical", "#b3261e"),
    isDark: luminance(parseColour(surface)) < 0.4,
    font: style.fontFamily || "sans-serif",
  };
}

/** Call `draw` when the size of the element, the pixel ratio or the colours of the page change. */
export function onCanvasChange(element: HTMLElement, draw: () => void): () => void {
  const sizes = new ResizeObserver(draw);
  sizes.observe(element);
  const attributes = new MutationObserver(draw);
  attributes.observe(document.documentElement, { attributes: true });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", draw);
  return () => {
    sizes.disconnect();
    attributes.disconnect();
    dark.removeEventListener("change", draw);
  };
}

/** Give the canvas the pixels of its size on the screen; return its context in CSS pixels. */
export function fitCanvas(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  const w = Math.max(1, Math.round(width * ratio));
  const h = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = canvas.getContext("2d", { alpha: false })!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/** Return text shortened in the middle, so that the ends of long paths stay readable. */
export function elide(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (context.measureText(text).width <= width) return text;
  let low = 0;
  let high = text.length - 1;
  while (low < high) {
    const keep = (low + high + 1) >> 1;
    if (context.measureText(cutMiddle(text, keep)).width <= width) low = keep;
    else high = keep - 1;
  }
  return cutMiddle(text, low);
}

function cutMiddle(text: string, keep: number): string {
  const head = Math.ceil(keep * 0.4);
  return `${text.slice(0, head)}…${text.slice(text.length - (keep - head))}`;
}

// Colours

export type Rgb = [number, number, number];

const probe = typeof document === "undefined" ? null : document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const parsed = new Map<string, Rgb>();

/** Return red, green and blue (0 to 255) of a CSS colour. */
export function parseColour(css: string): Rgb {
  const known = parsed.get(css);
  if (known) return known;
  let colour: Rgb = [128, 128, 128];
  if (probe) {
    probe.canvas.width = probe.canvas.height = 1;
    probe.fillStyle = "#808080";
    probe.fillStyle = css;
    probe.fillRect(0, 0, 1, 1);
    const data = probe.getImageData(0, 0, 1, 1).data;
    colour = [data[0]!, data[1]!, data[2]!];
  }
  parsed.set(css, colour);
  return colour;
}

export function mix(a: Rgb, b: Rgb, share: number): string {
  const part = (i: 0 | 1 | 2) => Math.round(a[i] + (b[i] - a[i]) * share);
  return `rgb(${part(0)} ${part(1)} ${part(2)})`;
}

/** Return the relative luminance of WCAG, 0 to 1. */
export function luminance([r, g, b]: Rgb): number {
  const linear = (c: number) => (c <= 10 ? c / 255 / 12.92 : Math.pow((c / 255 + 0.055) / 1.055, 2.4));
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
}

/** Return sRGB of OKLab (lightness 0 to 1). Out of gamut: less chroma. */
function oklab(lightness: number, green: number, blue: number): Rgb {
  for (let keep = 1; ; keep -= 0.04) {
    const a = green * Math.max(0, keep);
    const b = blue * Math.max(0, keep);
    const l = Math.pow(lightness + 0.3963377774 * a + 0.2158037573 * b, 3);
    const m = Math.pow(lightness - 0.1055613458 * a - 0.0638541728 * b, 3);
    const s = Math.pow(lightness - 0.0894841775 * a - 1.291485548 * b, 3);
    const linear = [
      4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
      -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
      -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
    ];
    if (keep <= 0 || linear.every((v) => v >= -0.002 && v <= 1.002)) {
      return linear.map((v) => {
        const x = Math.min(1, Math.max(0, v));
        return Math.round(255 * (x <= 0.0031308 ? 12.92 * x : 1.055 * Math.pow(x, 1 / 2.4) - 0.055));
      }) as Rgb;
    }
  }
}

type Stop = [lightness: number, chroma: number, hue: number];

// Lightness changes evenly along each map, so equal differences look equal, also without colour vision. The quiet end
// is the one near the background of the page.
const MAPS: Record<MapName, { light: Stop[]; dark: Stop[] }> = {
  heat: {
    light: [[0.965, 0.012, 95], [0.83, 0.12, 78], [0.66, 0.17, 45], [0.48, 0.17, 20], [0.3, 0.13, 350]],
    dark: [[0.25, 0.015, 270], [0.4, 0.12, 320], [0.56, 0.18, 15], [0.74, 0.16, 55], [0.95, 0.11, 100]],
  },
  cool: {
    light: [[0.965, 0.02, 115], [0.8, 0.11, 150], [0.63, 0.1, 205], [0.46, 0.12, 255], [0.28, 0.12, 285]],
    dark: [[0.24, 0.05, 285], [0.4, 0.12, 270], [0.57, 0.1, 220], [0.75, 0.13, 165], [0.94, 0.15, 112]],
  },
  sides: {
    light: [[0.47, 0.15, 45], [0.72, 0.12, 60], [0.96, 0.005, 90], [0.72, 0.1, 245], [0.45, 0.15, 255]],
    dark: [[0.8, 0.14, 65], [0.52, 0.11, 50], [0.26, 0.008, 260], [0.52, 0.12, 250], [0.8, 0.11, 235]],
  },
};

export type MapName = "heat" | "cool" | "sides";
const COLOURS = 256;
const tables = new Map<string, Rgb[]>();

export function colourTable(map: MapName, isDark: boolean): Rgb[] {
  const key = map + isDark;
  let table = tables.get(key);
  if (!table) {
    const stops = isDark ? MAPS[map].dark : MAPS[map].light;
    table = [];
    for (let i = 0; i < COLOURS; i++) {
      const place = (i / (COLOURS - 1)) * (stops.length - 1);
      const index = Math.min(stops.length - 2, Math.floor(place));
      const share = place - index;
      const [from, to] = [stops[index]!, stops[index + 1]!];
      const between = (a: number, b: number) => a + (b - a) * share;
      const cos = (stop: Stop) => stop[1] * Math.cos((stop[2] * Math.PI) / 180);
      const sin = (stop: Stop) => stop[1] * Math.sin((stop[2] * Math.PI) / 180);
      table.push(oklab(between(from[0], to[0]), between(cos(from), cos(to)), between(sin(from), sin(to))));
    }
    tables.set(key, table);
  }
  return table;
}

// Scales: from a value to a place in a colour table

export interface Scale {
  map: MapName;
  /** Return 0 to 1. */
  at: (value: number) => number;
  /** Values for the legend, with their text. */
  marks: { value: number; text: string }[];
}

/** Steps from the median (quiet) to the largest values. `top` is a multiple of the median. */
export function medianScale(median: number, top: number, text: (value: number) => string): Scale {
  const base = median > 0 ? median : 1;
  const reach = Math.log(Math.max(top, 1.25));
  const at = (value: number) => (value <= base ? 0 : Math.min(1, Math.log(value / base) / reach));
  const marks = [{ value: base, text: `median ${text(base)}` }];
  let free = 0.42; // beside the text of the median
  for (const multiple of [1.1, 1.25, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000]) {
    const place = at(multiple * base);
    if (place < free || (multiple > top * 1.001 && multiple > 1.25)) continue;
    marks.push({ value: multiple * base, text: `${multiple} ×` });
    free = place + 0.17;
  }
  return { map: "heat", at, marks };
}

/** Logarithmic between the smallest and the largest positive value. Zero and below have the lowest colour. */
export function logScale(low: number, high: number, text: (value: number) => string): Scale {
  const bottom = low > 0 ? low : high > 0 ? high / 1e6 : 1e-6;
  const top = high > bottom ? high : bottom * 10;
  const reach = Math.log(top / bottom);
  const decades: number[] = [];
  for (let e = Math.ceil(Math.log10(bottom)); e <= Math.floor(Math.log10(top)); e++) decades.push(Math.pow(10, e));
  const at = (value: number) => (value <= bottom ? 0 : Math.min(1, Math.log(value / bottom) / reach));
  const inner = thin(decades, 4).filter((value) => at(value) > 0.17 && at(value) < 0.83);
  const values = [bottom, ...(inner.length ? inner : [Math.sqrt(bottom * top)]), top];
  return {
    map: "cool",
    at,
    marks: values.map((value) => ({ value, text: text(value) })),
  };
}

/** Two sides around zero, equally far. */
export function divergingScale(reach: number, text: (value: number) => string): Scale {
  const far = reach > 0 ? reach : 1;
  return {
    map: "sides",
    at: (value) => Math.min(1, Math.max(0, 0.5 + value / far / 2)),
    marks: [-far, -far / 2, 0, far / 2, far].map((value) => ({ value, text: text(value) })),
  };
}

function thin(values: number[], most: number): number[] {
  const every = Math.ceil(values.length / most);
  return values.filter((_, i) => i % every === 0);
}

/** Return the value below which a share of the values lies. */
export function quantile(values: Iterable<number | null>, share: number): number | null {
  const sorted = Float64Array.from([...values].filter((v): v is number => v !== null && Number.isFinite(v))).sort();
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]! : null;
}

// The heat map

export interface CellRange {
  firstRow: number;
  lastRow: number;
  firstColumn: number;
  lastColumn: number;
}

export interface HeatmapProps {
  /** What the map shows, for screen readers: "Step time by rank and step". */
  label: string;
  rows: string[];
  /** Text of a column in the axis: its step. */
  columns: string[];
  columnTitle: string;
  /** values[row * columns.length + column] */
  values: (number | null)[];
  scale: Scale;
  legend: string;
  /** Lines of the tooltip; the first one is bold. */
  describe: (row: number, column: number, value: number | null) => string[];
  onPick?: (row: number, column: number) => void;
  /** Drag over cells: ask for these. Without it, dragging does nothing. */
  onZoom?: (cells: CellRange) => void;
  isZoomed?: boolean;
  onReset?: () => void;
  maxHeight?: number;
}

const AXIS = 22;
const PAD = 8;
const DOUBLE_CLICK_MS = 300;

interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

export function Heatmap(props: HeatmapProps) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const state = useRef({
    plot: { left: 0, top: 0, width: 1, height: 1 } as Box,
    image: null as HTMLCanvasElement | null,
    drag: null as { x: number; y: number; toX: number; toY: number } | null,
    frame: 0,
  });
  const latest = useRef(props);
  latest.current = props;
  const [cell, setCell] = useState<{ row: number; column: number; isKey: boolean } | null>(null);
  const cursor = useRef(cell);
  cursor.current = cell;
  const [isDark, setDark] = useState(false);

  const draw = () => {
    state.current.frame = 0;
    if (!box.current || !canvas.current) return;
    const ink = readInk(canvas.current);
    if (ink.isDark !== isDark) setDark(ink.isDark);
    paint(canvas.current, box.current, latest.current, state.current, cursor.current, ink);
  };
  const ask = () => {
    state.current.frame ||= requestAnimationFrame(draw);
  };

  useLayoutEffect(() => {
    state.current.image = null;
    ask();
  }, [props.values, props.scale, props.rows, props.columns]);
  useLayoutEffect(ask, [cell]);
  useEffect(() => {
    const stop = onCanvasChange(box.current!, () => {
      state.current.image = null;
      ask();
    });
    return () => {
      stop();
      cancelAnimationFrame(state.current.frame);
    };
  }, []);

  const rowCount = props.rows.length;
  const columnCount = props.columns.length;
  const rowHeight = Math.max(3, Math.min(22, Math.floor((props.maxHeight ?? 480) / Math.max(1, rowCount))));
  const height = Math.min(Math.max(rowCount * rowHeight, 44), Math.max(props.maxHeight ?? 480, rowCount)) + AXIS + PAD;

  const cellAt = (event: PointerEvent) => {
    const rect = canvas.current!.getBoundingClientRect();
    const { plot } = state.current;
    const x = event.clientX - rect.left - plot.left;
    const y = event.clientY - rect.top - plot.top;
    if (x < 0 || y < 0 || x >= plot.width || y >= plot.height || !rowCount || !columnCount) return null;
    const row = Math.floor((y / plot.height) * rowCount);
    const column = Math.floor((x / plot.width) * columnCount);
    return { row, column: nearestLoud(latest.current, row, column, Math.ceil((3 * columnCount) / plot.width)) };
  };

  // A double click shows all: in a zoomed map, a click opens its cell only if no second one follows.
  const picking = useRef(0);
  useEffect(() => () => clearTimeout(picking.current), []);
  const pick = (row: number, column: number) => {
    const { onPick, onReset, isZoomed } = latest.current;
    clearTimeout(picking.current);
    if (isZoomed && onReset) picking.current = window.setTimeout(() => onPick?.(row, column), DOUBLE_CLICK_MS);
    else onPick?.(row, column);
  };
  const onMove = (event: PointerEvent) => {
    const drag = state.current.drag;
    if (drag) {
      const rect = canvas.current!.getBoundingClientRect();
      drag.toX = event.clientX - rect.left;
      drag.toY = event.clientY - rect.top;
      ask();
    }
    const at = cellAt(event);
    const old = cursor.current;
    if (!at) {
      if (old && !old.isKey) setCell(null);
    } else if (!old || old.row !== at.row || old.column !== at.column || old.isKey) {
      setCell({ ...at, isKey: false });
    }
  };
  const onDown = (event: PointerEvent) => {
    if (event.button !== 0 || !cellAt(event)) return;
    const rect = canvas.current!.getBoundingClientRect();
    const [x, y] = [event.clientX - rect.left, event.clientY - rect.top];
    state.current.drag = { x, y, toX: x, toY: y };
    if (event.pointerType === "mouse") canvas.current!.setPointerCapture(event.pointerId);
  };
  const onUp = (event: PointerEvent) => {
    const drag = state.current.drag;
    state.current.drag = null;
    ask();
    if (!drag) return;
    const moved = Math.max(Math.abs(drag.toX - drag.x), Math.abs(drag.toY - drag.y));
    if (moved < 5) {
      const at = cellAt(event);
      if (at) pick(at.row, at.column);
      return;
    }
    if (!latest.current.onZoom) return;
    const { plot } = state.current;
    const clamp = (v: number, most: number) => Math.max(0, Math.min(most - 1, v));
    const row = (y: number) => clamp(Math.floor(((y - plot.top) / plot.height) * rowCount), rowCount);
    const column = (x: number) => clamp(Math.floor(((x - plot.left) / plot.width) * columnCount), columnCount);
    const [top, bottom] = [Math.min(drag.y, drag.toY), Math.max(drag.y, drag.toY)];
    const [left, right] = [Math.min(drag.x, drag.toX), Math.max(drag.x, drag.toX)];
    const isFlat = bottom - top < 8;
    latest.current.onZoom({
      firstRow: isFlat ? 0 : row(top),
      lastRow: isFlat ? rowCount - 1 : row(bottom),
      firstColumn: column(left),
      lastColumn: column(right),
    });
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !rowCount || !columnCount) return;
    const at = cursor.current ?? { row: 0, column: 0 };
    const jump = event.shiftKey ? 10 : 1;
    let { row, column } = at;
    switch (event.key) {
      case "ArrowLeft": column -= cursor.current ? jump : 0; break;
      case "ArrowRight": column += cursor.current ? jump : 0; break;
      case "ArrowUp": row -= cursor.current ? jump : 0; break;
      case "ArrowDown": row += cursor.current ? jump : 0; break;
      case "Home": column = 0; break;
      case "End": column = columnCount - 1; break;
      case "PageUp": row = 0; break;
      case "PageDown": row = rowCount - 1; break;
      case "Enter": if (cursor.current) props.onPick?.(row, column); event.preventDefault(); return;
      case "Escape": if (cursor.current) setCell(null); else props.onReset?.(); return;
      case "0": props.onReset?.(); return;
      default: return;
    }
    event.preventDefault();
    row = Math.max(0, Math.min(rowCount - 1, row));
    column = Math.max(0, Math.min(columnCount - 1, column));
    setCell({ row, column, isKey: true });
  };

  const shown = cell && cell.row < rowCount && cell.column < columnCount ? cell : null;
  const lines = shown ? props.describe(shown.row, shown.column, at(props, shown.row, shown.column)) : [];
  const { plot } = state.current;
  const tipX = shown ? plot.left + ((shown.column + 0.5) / columnCount) * plot.width : 0;
  const tipY = shown ? plot.top + ((shown.row + 1) / rowCount) * plot.height : 0;
  const isRight = tipX > (box.current?.clientWidth ?? 0) / 2;
  const keys = props.onPick ? "Arrow keys move between cells, Enter opens the cell." : "Arrow keys move between cells.";
  return (
    <div class="heatmap">
      <div class="heatmap-head">
        <Legend scale={props.scale} title={props.legend} isDark={isDark} />
        {props.isZoomed && props.onReset && (
          <button type="button" class="heatmap-reset" onClick={props.onReset}>
            Show all
          </button>
        )}
      </div>
      <div class="heatmap-box" ref={box} style={{ height: `${height}px` }}>
        <canvas
          ref={canvas}
          class={props.onZoom ? "heatmap-canvas can-zoom" : "heatmap-canvas"}
          tabIndex={0}
          role="img"
          aria-label={`${props.label}. ${rowCount} rows, ${columnCount} columns. ${keys}`}
          onPointerMove={onMove}
          onPointerDown={onDown}
          onPointerUp={onUp}
          onPointerCancel={() => (state.current.drag = null)}
          onPointerLeave={() => !cursor.current?.isKey && setCell(null)}
          onDblClick={() => {
            clearTimeout(picking.current);
            props.onReset?.();
          }}
          onKeyDown={onKey}
          onBlur={() => cursor.current?.isKey && setCell(null)}
        />
        {shown && !state.current.drag && (
          <div
            class="chart-tip"
            aria-hidden="true"
            style={{
              top: `${Math.min(tipY + 6, height - 20)}px`,
              left: isRight ? "auto" : `${tipX + 10}px`,
              right: isRight ? `${(box.current?.clientWidth ?? 0) - tipX + 10}px` : "auto",
            }}
          >
            {lines.map((line, i) => (i === 0 ? <strong key={i}>{line}</strong> : <span key={i}>{line}</span>))}
          </div>
        )}
      </div>
      <div class="visually-hidden" role="status" aria-live="polite">
        {shown?.isKey ? lines.join(", ") : ""}
      </div>
    </div>
  );
}

/** Return the column near this one whose value stands out most: cells narrower than a few pixels are hard to hit. */
function nearestLoud(props: HeatmapProps, row: number, column: number, reach: number): number {
  if (reach < 2) return column;
  const quiet = props.scale.map === "sides" ? 0.5 : 0;
  let [best, most] = [column, -1];
  for (let c = Math.max(0, column - reach); c <= Math.min(props.columns.length - 1, column + reach); c++) {
    const value = at(props, row, c);
    if (value === null) continue;
    const loud = Math.abs(props.scale.at(value) - quiet) - Math.abs(c - column) * 0.01;
    if (loud > most) [best, most] = [c, loud];
  }
  return best;
}

function at(props: HeatmapProps, row: number, column: number): number | null {
  return props.values[row * props.columns.length + column] ?? null;
}

function Legend({ scale, title, isDark }: { scale: Scale; title: string; isDark: boolean }) {
  const ramp = useRef<HTMLCanvasElement>(null);
  useLayoutEffect(() => {
    const context = ramp.current!.getContext("2d")!;
    const table = colourTable(scale.map, isDark);
    const image = context.createImageData(COLOURS, 1);
    table.forEach((colour, i) => image.data.set([...colour, 255], i * 4));
    context.putImageData(image, 0, 0);
  }, [scale.map, isDark]);
  return (
    <div class="heatmap-legend">
      <span class="heatmap-legend-title">{title}</span>
      <div class="heatmap-ramp">
        <canvas ref={ramp} width={COLOURS} height={1} aria-hidden="true" />
        <div class="heatmap-marks">
          {scale.marks.map((mark, i) => {
            const place = scale.at(mark.value);
            const shift = place < 0.08 ? "0" : place > 0.92 ? "-100%" : "-50%";
            return (
              <span key={i} style={{ left: `${place * 100}%`, transform: `translateX(${shift})` }}>
                {mark.text}
              </span>
            );
          })}
        </div>
      </div>
    </div>
  );
}

/** Return the cells as an image with at most `most` columns; merged columns keep the value furthest from the quiet end. */
function cellImage(props: HeatmapProps, most: number, ink: Ink): HTMLCanvasElement {
  const rows = props.rows.length;
  const columns = props.columns.length;
  const merge = Math.max(1, Math.ceil(columns / Math.max(1, most)));
  const wide = Math.ceil(columns / merge);
  const table = colourTable(props.scale.map, ink.isDark);
  const packed = new Uint32Array(COLOURS + 1);
  table.forEach(([r, g, b], i) => (packed[i] = (255 << 24) | (b << 16) | (g << 8) | r));
  const [r, g, b] = parseColour(ink.sunken);
  packed[COLOURS] = (255 << 24) | (b << 16) | (g << 8) | r;
  const quiet = props.scale.map === "sides" ? 0.5 : 0;
  const pixels = new Uint32Array(wide * rows);
  for (let row = 0; row < rows; row++) {
    for (let x = 0; x < wide; x++) {
      let place = -1;
      for (let c = x * merge; c < Math.min(columns, (x + 1) * merge); c++) {
        const value = props.values[row * columns + c];
        if (value === null || value === undefined) continue;
        const p = props.scale.at(value);
        if (place < 0 || Math.abs(p - quiet) > Math.abs(place - quiet)) place = p;
      }
      pixels[row * wide + x] = packed[place < 0 ? COLOURS : Math.round(place * (COLOURS - 1))]!;
    }
  }
  const image = document.createElement("canvas");
  image.width = wide;
  image.height = rows;
  image.getContext("2d")!.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), wide, rows), 0, 0);
  return image;
}

function paint(
  canvas: HTMLCanvasElement,
  box: HTMLDivElement,
  props: HeatmapProps,
  state: { plot: Box; image: HTMLCanvasElement | null; drag: { x: number; y: number; toX: number; toY: number } | null },
  cursor: { row: number; column: number; isKey: boolean } | null,
  ink: Ink,
): void {
  const width = box.clientWidth;
  const height = box.clientHeight;
  if (!width || !height) return;
  const context = fitCanvas(canvas, width, height);
  context.fillStyle = ink.surface;
  context.fillRect(0, 0, width, height);
  const rows = props.rows.length;
  const columns = props.columns.length;
  if (!rows || !columns) return;
  context.font = `11px ${ink.font}`;
  context.textBaseline = "middle";

  const longest = props.rows.reduce((most, row) => (row.length > most.length ? row : most), "");
  const labelWidth = Math.min(context.measureText(longest).width + 10, width * (width < 500 ? 0.3 : 0.24));
  const plot = { left: Math.round(labelWidth), top: PAD, width: width - Math.round(labelWidth) - 1, height: height - AXIS - PAD };
  state.plot = plot;
  const rowHeight = plot.height / rows;
  const columnWidth = plot.width / columns;

  state.image ??= cellImage(props, plot.width * Math.min(window.devicePixelRatio || 1, 2), ink);
  context.imageSmoothingEnabled = false;
  context.drawImage(state.image, plot.left, plot.top, plot.width, plot.height);
  if (rowHeight >= 9) {
    context.fillStyle = ink.surface;
    for (let row = 1; row < rows; row++) context.fillRect(plot.left, plot.top + row * rowHeight - 0.5, plot.width, 1);
  }
  if (columnWidth >= 9 && rowHeight >= 6) {
    context.fillStyle = ink.surface;
    for (let column = 1; column < columns; column++) {
      context.fillRect(plot.left + column * columnWidth - 0.5, plot.top, 1, plot.height);
    }
  }

  // Labels of rows: as many as fit.
  context.fillStyle = ink.muted;
  context.textAlign = "right";
  const every = Math.max(1, Math.ceil(13 / rowHeight));
  const stride = every > 1 ? niceStride(every) : 1;
  for (let row = 0; row < rows; row += stride) {
    const y = plot.top + (row + 0.5) * rowHeight;
    context.fillText(elide(context, props.rows[row]!, labelWidth - 8), plot.left - 6, y);
  }

  // Labels of columns.
  context.textAlign = "center";
  const labelSpace = context.measureText(props.columns[columns - 1]!).width + 26;
  const skip = niceStride(Math.ceil(labelSpace / columnWidth));
  const y = plot.top + plot.height + 12;
  for (let column = 0; column < columns; column += skip) {
    const x = plot.left + (column + 0.5) * columnWidth;
    context.fillStyle = ink.line;
    context.fillRect(Math.round(x), plot.top + plot.height, 1, 4);
    context.fillStyle = ink.muted;
    const half = context.measureText(props.columns[column]!).width / 2;
    context.fillText(props.columns[column]!, Math.min(Math.max(x, plot.left + half), width - half), y);
  }
  context.textAlign = "right";
  context.fillStyle = ink.faint;
  context.fillText(props.columnTitle, plot.left - 6, y);

  if (cursor && !state.drag && cursor.row < rows && cursor.column < columns) {
    const x = plot.left + cursor.column * columnWidth;
    const top = plot.top + cursor.row * rowHeight;
    // Thin lines lead to the axes; the colours of the other cells stay as they are.
    context.fillStyle = ink.text;
    context.globalAlpha = 0.45;
    context.fillRect(plot.left, Math.round(top + rowHeight / 2), x - plot.left, 1);
    context.fillRect(Math.round(x + columnWidth / 2), top, 1, plot.top + plot.height - top);
    context.globalAlpha = 1;
    context.lineWidth = 2;
    context.strokeStyle = ink.surface;
    context.strokeRect(x - 2, top - 2, Math.max(3, columnWidth) + 4, Math.max(3, rowHeight) + 4);
    context.lineWidth = 1.5;
    context.strokeStyle = ink.text;
    context.strokeRect(x - 0.5, top - 0.5, Math.max(3, columnWidth) + 1, Math.max(3, rowHeight) + 1);
  }
  if (state.drag && props.onZoom) {
    const { x, y: from, toX, toY } = state.drag;
    const isFlat = Math.abs(toY - from) < 8;
    const top = isFlat ? plot.top : Math.min(from, toY);
    const tall = isFlat ? plot.height : Math.abs(toY - from);
    context.fillStyle = ink.accent;
    context.globalAlpha = 0.2;
    context.fillRect(Math.min(x, toX), top, Math.abs(toX - x), tall);
    context.globalAlpha = 1;
    context.strokeStyle = ink.accent;
    context.lineWidth = 1;
    context.strokeRect(Math.min(x, toX) + 0.5, top + 0.5, Math.abs(toX - x), tall);
  }
}

/** Return the next number of 1, 2, 5, 10, 20, 50, … that is at least `least`. */
export function niceStride(least: number): number {
  const power = Math.pow(10, Math.floor(Math.log10(Math.max(1, least))));
  for (const factor of [1, 2, 5, 10]) if (factor * power >= least) return factor * power;
  return 10 * power;
}
