// The timeline on a canvas: spans as boxes in lanes, over time, from the whole run down to one span.
// The view gives it windows of boxes; it draws them, moves, and reports what the reader points at.

import { useEffect, useRef } from "preact/hooks";
import { counted, duration } from "../format";
import type { Lane, SpanName, TimelineAnswer } from "../types";
import { fitCanvas, luminance, mix, onCanvasChange, parseColour, readInk, type Ink } from "./heatmap";
import "./timeline.css";

export const OPEN = 1;
export const FAILED = 2;

export interface View {
  start: number;
  end: number;
}

/** A box of a window; it stays valid while the page is open. */
export interface Mark {
  lane: string;
  label: string;
  rank: number;
  row: number;
  start: number;
  end: number;
  name: SpanName;
  count: number;
  id: number | null;
  flags: number;
}

// Windows: the answer of the server, ordered for drawing

interface Band {
  key: string;
  lane: Lane;
  rows: number;
  /** Boxes of a row: order[offsets[row]] up to order[offsets[row + 1]], by start. */
  offsets: Int32Array;
  row: Uint16Array;
  start: Float64Array;
  end: Float64Array;
  name: Int32Array;
  count: Float64Array;
  id: (number | null)[];
  flags: Uint8Array;
}

export interface Window {
  answer: TimelineAnswer;
  bands: Band[];
  byKey: Map<string, Band>;
  /** True if every box is one span: zooming in shows nothing new. */
  isComplete: boolean;
}

/** Return the lanes of a thread of a rank as one, if they are of different attempts: these follow each other. */
function joinAttempts(lanes: Lane[]): { key: string; lane: Lane }[] {
  const groups: { key: string; attempts: Set<number>; lanes: Lane[] }[] = [];
  const byThread = new Map<string, typeof groups>();
  for (const lane of lanes) {
    const thread = lane.is_worker ? `${lane.rank}\n${lane.process}\n${lane.thread}` : `${lane.rank}\n${lane.thread}`;
    const same = byThread.get(thread) ?? [];
    byThread.set(thread, same);
    let group = same.find(({ attempts }) => !attempts.has(lane.attempt));
    if (!group) {
      group = { key: `${thread}\n${same.length}`, attempts: new Set(), lanes: [] };
      same.push(group);
      groups.push(group);
    }
    group.attempts.add(lane.attempt);
    group.lanes.push(lane);
  }
  return groups.map(({ key, lanes: parts }) => {
    const first = parts[0]!;
    if (parts.length === 1) return { key, lane: first };
    const lane = { ...first, label: first.label.replace(/ · attempt \d+/, "") };
    for (const field of ["row", "start", "end", "name", "count", "flags"] as const) lane[field] = parts.flatMap((part) => part[field]);
    lane.id = parts.flatMap((part) => part.id);
    return { key, lane };
  });
}

/** Return the boxes of an answer ordered by lane, row and start, for drawing and searching. */
export function prepare(answer: TimelineAnswer): Window {
  const bands = joinAttempts(answer.lanes).map(prepareLane);
  return {
    answer,
    bands,
    byKey: new Map(bands.map((band) => [band.key, band])),
    isComplete: answer.lanes.every((lane) => lane.count.every((spans) => spans <= 1)),
  };
}

function prepareLane({ key, lane }: { key: string; lane: Lane }): Band {
  const size = lane.start.length;
  const order = Array.from({ length: size }, (_, i) => i);
  order.sort((a, b) => lane.row[a]! - lane.row[b]! || lane.start[a]! - lane.start[b]!);
  const rows = lane.row.reduce((most, row) => Math.max(most, row + 1), 1);
  const band: Band = {
    key,
    lane,
    rows,
    offsets: new Int32Array(rows + 1),
    row: new Uint16Array(size),
    start: new Float64Array(size),
    end: new Float64Array(size),
    name: new Int32Array(size),
    count: new Float64Array(size),
    id: new Array<number | null>(size),
    flags: new Uint8Array(size),
  };
  order.forEach((from, to) => {
    band.row[to] = lane.row[from]!;
    band.start[to] = lane.start[from]!;
    band.end[to] = lane.end[from]!;
    band.name[to] = lane.name[from]!;
    band.count[to] = lane.count[from]!;
    band.id[to] = lane.id[from] ?? null;
    band.flags[to] = lane.flags[from]!;
    band.offsets[lane.row[from]! + 1]!++;
  });
  for (let row = 0; row < rows; row++) band.offsets[row + 1]! += band.offsets[row]!;
  return band;
}

function markOf(window: Window, band: Band, index: number): Mark {
  return {
    lane: band.key,
    label: band.lane.label,
    rank: band.lane.rank,
    row: band.row[index]!,
    start: band.start[index]!,
    end: band.end[index]!,
    name: window.answer.names[band.name[index]!] ?? { name: "?", category: "", phase: null },
    count: band.count[index]!,
    id: band.id[index] ?? null,
    flags: band.flags[index]!,
  };
}

/** Return the first box of a row that ends after `time`. Boxes of a row do not overlap. */
function firstAfter(band: Band, row: number, time: number): number {
  let low = band.offsets[row]!;
  let high = band.offsets[row + 1]!;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (band.end[middle]! > time) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Call `visit` for every box between two times. `overlap` is its time in between. */
export function visit(
  window: Window,
  from: number,
  to: number,
  each: (name: SpanName, count: number, overlap: number, band: { lane: Lane }, row: number) => void,
): void {
  for (const band of window.bands) {
    for (let row = 0; row < band.rows; row++) {
      const last = band.offsets[row + 1]!;
      for (let i = firstAfter(band, row, from); i < last && band.start[i]! < to; i++) {
        const overlap = Math.min(to, band.end[i]!) - Math.max(from, band.start[i]!);
        each(window.answer.names[band.name[i]!]!, band.count[i]!, overlap, band, row);
      }
    }
  }
}

/** Return the box of a span, if the window has it by itself. */
export function findSpan(window: Window, rank: number, id: number): Mark | null {
  for (const band of window.bands) {
    const index = band.lane.rank === rank ? band.id.indexOf(id) : -1;
    if (index >= 0) return markOf(window, band, index);
  }
  return null;
}

// The time axis

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500].flatMap((n) => [n, n * 1e3, n * 1e6]).sort((a, b) => a - b);
STEPS.push(...[1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200].map((s) => s * 1e9));
STEPS.push(...[1, 2, 5, 10, 20, 50, 100].map((days) => days * 86_400e9));

function tickStep(span: number, most: number): number {
  return STEPS.find((step) => span / step <= most) ?? STEPS[STEPS.length - 1]!;
}

/** Return a time of the run, as exact as the distance of the ticks needs. */
export function timeText(ns: number, step: number): string {
  const places = (unit: number) => Math.max(0, Math.min(3, Math.ceil(-Math.log10(step / unit) - 1e-9)));
  const size = Math.abs(ns);
  if (size < 1) return "0";
  if (size < 1e6) return `${(ns / 1e3).toFixed(places(1e3))} µs`;
  if (size < 1e9) return `${(ns / 1e6).toFixed(places(1e6))} ms`;
  if (size < 60e9) return `${(ns / 1e9).toFixed(places(1e9))} s`;
  const digits = places(1e9);
  const total = Math.round((ns / 1e9) * 10 ** digits) / 10 ** digits;
  const seconds = (total % 60).toFixed(digits).padStart(digits ? digits + 3 : 2, "0");
  const minutes = Math.floor(total / 60) % 60;
  const hours = Math.floor(total / 3600);
  if (!hours) return `${minutes} min ${seconds} s`;
  const head = `${hours} h ${String(minutes).padStart(2, "0")} min`;
  return step >= 60e9 ? head : `${head} ${seconds} s`;
}

// The canvas

export interface TimelineProps {
  /** Loaded windows, the coarsest first. Where a later one has boxes, the earlier ones are not drawn. */
  windows: Window[];
  full: [number, number];
  /** Where to go; a new object moves the view there. */
  target: View;
  colour: (name: SpanName) => string;
  selected: Mark | null;
  /** Name to highlight; other boxes are drawn faintly. */
  highlight: string | null;
  range: View | null;
  isLoading: boolean;
  label: string;
  onView: (view: View, width: number) => void;
  onSelect: (mark: Mark | null, how: "open" | "move") => void;
  onRange: (range: View | null) => void;
}

const HEADER = 46;
const TRACK = 8;
const ROW = 18;
const GAP = 7;
const NARROWEST = 20; // ns
/** Narrower boxes have no name inside. */
const LEAST_TEXT = 26;

interface Place {
  key: string;
  label: string;
  rank: number;
  top: number;
  rows: number;
}

/** Leave out of labels what says nothing: rank 0 of a single rank's workers, and the main thread of a process without others. */
function shorten(places: Place[]): void {
  const head = ({ label }: Place) => label.split(" · ", 1)[0]!;
  const heads = new Map<string, number>();
  for (const place of places) heads.set(head(place), (heads.get(head(place)) ?? 0) + 1);
  const hasOneRank = places.every(({ rank }) => rank === places[0]!.rank);
  for (const place of places) {
    if (heads.get(head(place)) === 1) place.label = place.label.replace(" · MainThread", "");
    if (hasOneRank) place.label = place.label.replace(/^rank \d+ (?=worker)/, "");
  }
}

/** An image with one line of pixels for each row of boxes. */
class Strips {
  private canvas = document.createElement("canvas");
  private context = this.canvas.getContext("2d", { willReadFrequently: true })!;
  private image = new ImageData(1, 1);
  private pixels = new Uint32Array(this.image.data.buffer);

  /** Return empty pixels, `across` for each line. */
  begin(across: number, lines: number): Uint32Array {
    if (this.image.width !== across || this.image.height < lines) {
      this.image = new ImageData(across, lines);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.canvas.width = across;
      this.canvas.height = lines;
    } else this.pixels.fill(0);
    return this.pixels;
  }

  /** Draw the lines, each as a row at its height. */
  draw(context: CanvasRenderingContext2D, tops: number[], left: number, width: number, tall: number): void {
    if (!tops.length) return;
    const across = this.image.width;
    this.context.putImageData(this.image, 0, 0, 0, 0, across, tops.length);
    context.imageSmoothingEnabled = false;
    for (let line = 0; line < tops.length; line++) {
      context.drawImage(this.canvas, 0, line, across, 1, left, tops[line]!, width, tall);
    }
  }
}

/** Draws and moves; the component below only hands it its properties. */
class TimelineCanvas {
  view: View;
  private props: TimelineProps;
  private goal: View;
  private width = 0;
  private height = 0;
  private left = 120;
  private frame = 0;
  private last = 0;
  private ink: Ink | null = null;
  private places: Place[] = [];
  private rowsSeen = new Map<string, number>();
  private folded = new Set<string>();
  private hover: Mark | null = null;
  private pointers = new Map<number, { x: number; y: number }>();
  private drag: { kind: "pan" | "range" | "track"; x: number; y: number; at: number; scroll: number; moved: boolean } | null = null;
  private pinch = 0;
  private styles = new Map<Window, Style[]>();
  private keys = new Set<string>();
  private stops: (() => void)[] = [];
  private isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  private strips = new Strips();
  // Wide boxes of a frame, one list for each colour.
  private boxX = new Float32Array(4096);
  private boxY = new Float32Array(4096);
  private boxW = new Float32Array(4096);
  private next = new Int32Array(4096);
  private heads = new Int32Array(0);
  readonly times: number[] = [];

  constructor(
    private canvas: HTMLCanvasElement,
    private scroller: HTMLDivElement,
    private spacer: HTMLDivElement,
    private tip: HTMLDivElement,
    props: TimelineProps,
  ) {
    this.props = props;
    this.view = { ...props.target };
    this.goal = { ...props.target };
    const listen = <K extends keyof HTMLElementEventMap>(name: K, handler: (event: HTMLElementEventMap[K]) => void) => {
      canvas.addEventListener(name, handler, { passive: false });
    };
    listen("wheel", (event) => this.onWheel(event));
    listen("pointerdown", (event) => this.onDown(event));
    listen("pointermove", (event) => this.onMove(event));
    listen("pointerup", (event) => this.onUp(event));
    listen("pointercancel", (event) => this.onCancel(event));
    listen("pointerleave", () => this.setHover(null, 0, 0));
    listen("dblclick", (event) => this.onDouble(event));
    listen("keydown", (event) => this.onKey(event));
    listen("keyup", (event) => void this.keys.delete(event.key.toLowerCase()));
    listen("blur", () => this.keys.clear());
    scroller.addEventListener("scroll", () => this.ask());
    this.stops.push(
      onCanvasChange(scroller, () => {
        this.ink = null;
        this.styles.clear();
        this.ask();
      }),
    );
    this.layout();
  }

  stop(): void {
    cancelAnimationFrame(this.frame);
    for (const stop of this.stops) stop();
  }

  update(props: TimelineProps): void {
    const old = this.props;
    this.props = props;
    if (props.target !== old.target) this.go(props.target);
    else this.follow(old.full);
    if (props.windows !== old.windows) {
      for (const window of this.styles.keys()) if (!props.windows.includes(window)) this.styles.delete(window);
      this.layout();
    }
    if (props.colour !== old.colour) this.styles.clear();
    this.ask();
  }

  /** Stay at the end of a run that grows, if the view was there. */
  private follow([start, end]: [number, number]): void {
    const by = this.props.full[1] - end;
    const { goal } = this;
    if (by <= 0 || this.drag || goal.end < end - (goal.end - goal.start) * 0.01) return;
    if (goal.start <= start + (end - start) * 0.01) this.reset();
    else this.go({ start: goal.start + by, end: goal.end + by });
  }

  // Movement

  private get plotWidth(): number {
    return Math.max(1, this.width - this.left);
  }

  private x(time: number): number {
    return this.left + ((time - this.view.start) / (this.view.end - this.view.start)) * this.plotWidth;
  }

  private time(x: number): number {
    return this.view.start + ((x - this.left) / this.plotWidth) * (this.view.end - this.view.start);
  }

  private clamp(view: View): View {
    const [start, end] = this.props.full;
    const whole = Math.max(end - start, NARROWEST);
    const wanted = Math.max(view.end - view.start, NARROWEST);
    const margin = Math.min(wanted, whole) * 0.02;
    const span = Math.min(wanted, whole + 2 * margin);
    const middle = (view.start + view.end) / 2;
    const from = Math.min(Math.max(middle - span / 2, start - margin), end + margin - span);
    return { start: from, end: from + span };
  }

  /** Move to a view, smoothly unless the reader prefers no motion. */
  go(view: View, isSmooth = true): void {
    this.goal = this.clamp(view);
    if (!isSmooth || this.isCalm || !this.width) this.view = { ...this.goal };
    this.ask();
  }

  reset(): void {
    this.go({ start: this.props.full[0], end: this.props.full[1] });
  }

  zoom(factor: number, x = this.left + this.plotWidth / 2, isSmooth = true): void {
    // The time under the pointer stays under it: computed on the goal, so fast wheels add up.
    const share = (x - this.left) / this.plotWidth;
    const span = this.goal.end - this.goal.start;
    const at = this.goal.start + share * span;
    this.go({ start: at - share * span * factor, end: at + (1 - share) * span * factor }, isSmooth);
  }

  pan(share: number, isSmooth = true): void {
    const by = (this.goal.end - this.goal.start) * share;
    this.go({ start: this.goal.start + by, end: this.goal.end + by }, isSmooth);
  }

  private ask(): void {
    this.frame ||= requestAnimationFrame((now) => this.tick(now));
  }

  private tick(now: number): void {
    this.frame = 0;
    const elapsed = Math.min(64, now - this.last || 16);
    this.last = now;
    if (this.keys.size) {
      const pace = elapsed / 1000;
      if (this.keys.has("w")) this.zoom(Math.pow(0.12, pace));
      if (this.keys.has("s")) this.zoom(Math.pow(1 / 0.12, pace));
      if (this.keys.has("a")) this.pan(-1.1 * pace);
      if (this.keys.has("d")) this.pan(1.1 * pace);
    }
    const { view, goal } = this;
    const span = goal.end - goal.start;
    const isMoving = Math.abs(view.start - goal.start) + Math.abs(view.end - goal.end) > span * 0.001;
    if (isMoving) {
      // Zoom by equal factors per time, around the point that both views share.
      const share = 1 - Math.exp(-elapsed / 55);
      const from = view.end - view.start;
      const to = from * Math.pow(span / from, share);
      const done = Math.abs(span - from) > span * 1e-6 ? (to - from) / (span - from) : share;
      const start = view.start + (goal.start - view.start) * done;
      this.view = { start, end: start + to };
    } else if (view.start !== goal.start || view.end !== goal.end) {
      this.view = { ...goal };
    }
    const began = performance.now();
    this.draw();
    this.times.push(performance.now() - began);
    if (this.times.length > 240) this.times.shift();
    if (isMoving || this.keys.size) this.ask();
  }

  // Layout

  private layout(): void {
    let top = HEADER + 4;
    this.places = [];
    for (const window of this.props.windows) {
      for (const band of window.bands) {
        this.rowsSeen.set(band.key, Math.max(band.rows, this.rowsSeen.get(band.key) ?? 1));
      }
    }
    const current = this.props.windows[this.props.windows.length - 1];
    for (const band of current?.bands ?? []) {
      const rows = this.folded.has(band.key) ? 1 : this.rowsSeen.get(band.key)!;
      this.places.push({ key: band.key, label: band.lane.label, rank: band.lane.rank, top, rows });
      top += rows * ROW + GAP;
    }
    shorten(this.places);
    this.spacer.style.height = `${top}px`;
  }

  private scrollTo(place: Place, row: number): void {
    const y = place.top + Math.min(row, place.rows - 1) * ROW;
    const { scrollTop } = this.scroller;
    if (y - HEADER < scrollTop) this.scroller.scrollTop = y - HEADER - 8;
    else if (y + ROW > scrollTop + this.height) this.scroller.scrollTop = y + ROW - this.height + 8;
  }

  // Drawing

  private draw(): void {
    const width = this.scroller.clientWidth;
    const height = this.scroller.clientHeight;
    if (!width || !height) return;
    const isNew = width !== this.width;
    this.width = width;
    this.height = height;
    this.left = width < 560 ? 84 : width < 1000 ? 130 : 170;
    this.ink ??= readInk(this.canvas);
    this.props.onView(this.view, this.plotWidth);
    if (isNew) this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const ink = this.ink;
    const context = fitCanvas(this.canvas, width, height);
    context.fillStyle = ink.surface;
    context.fillRect(0, 0, width, height);
    context.textBaseline = "middle";
    context.font = `11px ${ink.font}`;

    const scroll = this.scroller.scrollTop;
    context.save();
    context.beginPath();
    context.rect(this.left, HEADER, this.plotWidth, height - HEADER);
    context.clip();
    this.drawGrid(context, ink);
    const { windows } = this.props;
    for (let i = 0; i < windows.length; i++) {
      const next = windows[i + 1];
      // Of a coarser window, only the parts beside the finer one are drawn.
      const parts: View[] = next
        ? [
            { start: this.view.start, end: Math.min(this.view.end, next.answer.start) },
            { start: Math.max(this.view.start, next.answer.end), end: this.view.end },
          ]
        : [this.view];
      for (const part of parts) if (part.end > part.start) this.drawBoxes(context, ink, windows[i]!, part, scroll);
    }
    this.drawMarks(context, ink, scroll);
    context.restore();
    this.drawLabels(context, ink, scroll);
    this.drawHeader(context, ink);
    this.drawRange(context, ink);
  }

  private style(window: Window, ink: Ink): Style[] {
    let styles = this.styles.get(window);
    if (!styles) {
      const surface = parseColour(ink.surface);
      styles = window.answer.names.map((name) => {
        const css = this.props.colour(name);
        const colour = parseColour(css);
        const isLight = luminance(colour) > 0.3;
        const fills = [css, mix(colour, surface, 0.45), mix(colour, surface, 0.82)];
        const packed = fills.map((fill) => {
          const [r, g, b] = parseColour(fill);
          return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
        });
        return { fills, packed, text: isLight ? "#10151c" : "#ffffff", width: 0 };
      });
      this.styles.set(window, styles);
    }
    return styles;
  }

  private grow(): void {
    const size = this.boxX.length * 2;
    const copy = <T extends Float32Array | Int32Array>(old: T, fresh: T): T => (fresh.set(old), fresh);
    this.boxX = copy(this.boxX, new Float32Array(size));
    this.boxY = copy(this.boxY, new Float32Array(size));
    this.boxW = copy(this.boxW, new Float32Array(size));
    this.next = copy(this.next, new Int32Array(size));
  }

  private drawBoxes(context: CanvasRenderingContext2D, ink: Ink, window: Window, part: View, scroll: number): void {
    const styles = this.style(window, ink);
    const { highlight } = this.props;
    // Slots: three for each name (alone, merged, faint). Wide boxes of a slot are a linked list.
    const names = window.answer.names;
    if (this.heads.length < names.length * 3) this.heads = new Int32Array(names.length * 3);
    this.heads.fill(-1);
    const isMatch = names.map(({ name }) => highlight === null || name === highlight);
    const scale = this.plotWidth / (this.view.end - this.view.start);
    const origin = this.left - this.view.start * scale;
    const right = this.width + 2;
    const leftEdge = this.left - 2;
    const tall = ROW - 2;
    const special: number[] = [];
    const specialBands: Band[] = [];
    const specialTops: number[] = [];
    let size = 0;

    // Boxes too narrow for a name are pixels in an image that has one line for each row. The image is stretched to the
    // height of the rows: tens of thousands of boxes cost as much as their pixels.
    const ratio = Math.min(globalThis.devicePixelRatio || 1, 3);
    const across = Math.ceil(this.plotWidth * ratio);
    const lines = Math.ceil(this.height / ROW) + this.places.length + 1;
    const pixels = this.strips.begin(across, lines);
    const tops: number[] = [];

    for (const place of this.places) {
      if (place.top + place.rows * ROW < scroll + HEADER || place.top > scroll + this.height) continue;
      const band = window.byKey.get(place.key);
      if (!band) continue;
      const rows = Math.min(place.rows, band.rows);
      for (let row = 0; row < rows; row++) {
        const y = place.top + row * ROW - scroll;
        if (y + ROW < HEADER || y > this.height) continue;
        const last = band.offsets[row + 1]!;
        const line = tops.length * across;
        let hasPixels = false;
        for (let i = firstAfter(band, row, part.start); i < last; i++) {
          const start = band.start[i]!;
          if (start >= part.end) break;
          let x0 = origin + start * scale;
          let x1 = origin + band.end[i]! * scale;
          if (x0 < leftEdge) x0 = leftEdge;
          if (x1 > right) x1 = right;
          const name = band.name[i]!;
          const kind = isMatch[name] ? (band.count[i]! > 1 ? 1 : 0) : 2;
          if (band.flags[i]) {
            special.push(i);
            specialBands.push(band);
            specialTops.push(y);
          }
          const wide = x1 - x0;
          if (wide <= LEAST_TEXT) {
            let from = Math.round((x0 - this.left) * ratio);
            let to = Math.round((x1 - this.left) * ratio);
            if (wide > 4) to -= 1;
            if (to <= from) to = from + 1;
            if (from < 0) from = 0;
            if (to > across) to = across;
            if (to > from) pixels.fill(styles[name]!.packed[kind]!, line + from, line + to);
            hasPixels = true;
            continue;
          }
          if (size === this.boxX.length) this.grow();
          this.boxX[size] = x0;
          this.boxY[size] = y;
          this.boxW[size] = wide - 1;
          this.next[size] = this.heads[name * 3 + kind]!;
          this.heads[name * 3 + kind] = size;
          size++;
        }
        if (hasPixels) tops.push(y);
      }
    }
    this.strips.draw(context, tops, this.left, this.plotWidth, tall);

    for (let slot = 0; slot < names.length * 3; slot++) {
      if (this.heads[slot]! < 0) continue;
      const kind = slot % 3;
      const style = styles[(slot - kind) / 3]!;
      context.fillStyle = style.fills[kind]!;
      for (let i = this.heads[slot]!; i >= 0; i = this.next[i]!) {
        context.fillRect(this.boxX[i]!, this.boxY[i]!, this.boxW[i]!, tall);
      }
      if (kind === 2) continue;
      const text = names[(slot - kind) / 3]!.name;
      style.width ||= context.measureText(text).width;
      context.fillStyle = kind === 0 ? style.text : ink.text;
      for (let i = this.heads[slot]!; i >= 0; i = this.next[i]!) {
        const from = Math.max(this.boxX[i]!, this.left);
        const space = this.boxX[i]! + this.boxW[i]! - from - 8;
        if (space < 18) continue;
        let shown = text;
        if (style.width > space) {
          const keep = Math.floor((text.length * (space - 8)) / style.width);
          if (keep < 4) continue;
          shown = `${text.slice(0, keep)}…`;
        }
        context.fillText(shown, from + 4, this.boxY[i]! + tall / 2 + 0.5);
      }
    }
    for (let i = 0; i < special.length; i++) {
      this.drawSpecial(context, ink, specialBands[i]!, special[i]!, specialTops[i]!, part);
    }
  }

  /** Open spans end ragged, failed ones have a red edge and corner. */
  private drawSpecial(context: CanvasRenderingContext2D, ink: Ink, band: Band, index: number, y: number, part: View): void {
    const x0 = this.x(Math.max(band.start[index]!, part.start));
    const x1 = this.x(Math.min(band.end[index]!, part.end));
    const tall = ROW - 2;
    if (band.flags[index]! & OPEN && band.end[index]! <= part.end) {
      const reach = Math.min(x1 - x0, 36);
      context.save();
      context.beginPath();
      context.rect(x1 - reach, y, reach, tall);
      context.clip();
      context.strokeStyle = ink.surface;
      context.globalAlpha = 0.55;
      context.lineWidth = 2;
      context.beginPath();
      for (let x = x1 - reach - tall; x < x1; x += 6) {
        context.moveTo(x, y + tall);
        context.lineTo(x + tall, y);
      }
      context.stroke();
      context.restore();
      // Teeth cut out of the end.
      context.fillStyle = ink.surface;
      context.beginPath();
      const tooth = tall / 4;
      context.moveTo(x1 + 1, y);
      for (let i = 0; i < 4; i++) {
        context.lineTo(x1 - Math.min(4, reach), y + (i + 0.5) * tooth);
        context.lineTo(x1 + 1, y + (i + 1) * tooth);
      }
      context.fill();
    }
    if (band.flags[index]! & FAILED) {
      context.strokeStyle = ink.danger;
      context.lineWidth = 2;
      if (x1 - x0 > 3) context.strokeRect(x0 + 1, y + 1, x1 - x0 - 3, tall - 2);
      context.fillStyle = ink.danger;
      context.beginPath();
      context.moveTo(x1 - 1, y);
      context.lineTo(Math.max(x0 - 3, x1 - 9), y);
      context.lineTo(x1 - 1, y + 8);
      context.fill();
    }
  }

  private drawMarks(context: CanvasRenderingContext2D, ink: Ink, scroll: number): void {
    const outline = (mark: Mark, colour: string, width: number) => {
      const place = this.places.find(({ key }) => key === mark.lane);
      if (!place || mark.row >= place.rows) return;
      const x0 = Math.max(this.x(mark.start), this.left - 4);
      const x1 = Math.min(this.x(mark.end), this.width + 4);
      const y = place.top + mark.row * ROW - scroll;
      context.strokeStyle = ink.surface;
      context.lineWidth = width + 2;
      context.strokeRect(x0 - 1, y - 1, Math.max(3, x1 - x0 + 1), ROW);
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.strokeRect(x0 - 1, y - 1, Math.max(3, x1 - x0 + 1), ROW);
    };
    if (this.hover) outline(this.hover, ink.muted, 1);
    if (this.props.selected) outline(this.props.selected, ink.text, 2);
  }

  private ticks(): { step: number; base: number; times: number[] } {
    const span = this.view.end - this.view.start;
    const step = tickStep(span, this.plotWidth / 96);
    // Far from the beginning and close up, ticks count from a base that the label column shows.
    const base = step < 1e9 && Math.abs(this.view.start) > step * 2000 ? Math.floor(this.view.start / (step * 50)) * step * 50 : 0;
    const times: number[] = [];
    for (let time = Math.ceil(this.view.start / step) * step; time <= this.view.end; time += step) times.push(time);
    return { step, base, times };
  }

  private drawGrid(context: CanvasRenderingContext2D, ink: Ink): void {
    context.fillStyle = ink.line;
    context.globalAlpha = 0.6;
    for (const time of this.ticks().times) context.fillRect(Math.round(this.x(time)), HEADER, 1, this.height);
    context.globalAlpha = 1;
    // Outside of the run there is nothing.
    const [start, end] = this.props.full;
    context.fillStyle = ink.sunken;
    const from = this.x(start);
    const to = this.x(end);
    if (from > this.left) context.fillRect(this.left, HEADER, from - this.left, this.height);
    if (to < this.width) context.fillRect(to, HEADER, this.width - to, this.height);
  }

  private drawHeader(context: CanvasRenderingContext2D, ink: Ink): void {
    context.fillStyle = ink.surface;
    context.fillRect(0, 0, this.width, HEADER);
    // The part of the run in view.
    const [start, end] = this.props.full;
    const whole = Math.max(1, end - start);
    context.fillStyle = ink.sunken;
    context.fillRect(this.left, 0, this.plotWidth, TRACK - 2);
    const from = this.left + Math.max(0, (this.view.start - start) / whole) * this.plotWidth;
    const to = this.left + Math.min(1, (this.view.end - start) / whole) * this.plotWidth;
    context.fillStyle = ink.accent;
    context.globalAlpha = 0.75;
    context.fillRect(Math.min(from, this.width - 3), 0, Math.max(3, to - from), TRACK - 2);
    context.globalAlpha = 1;

    // Steps.
    context.save();
    context.beginPath();
    context.rect(this.left, TRACK, this.plotWidth, HEADER - TRACK);
    context.clip();
    const current = this.props.windows[this.props.windows.length - 1];
    const steps = current?.answer.steps ?? [];
    context.font = `10px ${ink.font}`;
    let free = -Infinity;
    let shown = -Infinity;
    // The step that began before the view stays readable at the edge.
    const before = steps.findIndex(({ start: time }) => time > this.view.start);
    const running = steps[(before < 0 ? steps.length : before) - 1];
    if (running && (before < 0 || this.x(steps[before]!.start) > this.left + 44)) {
      context.fillStyle = ink.muted;
      context.fillText(`${running.step}`, this.left + 4, TRACK + 8);
      free = this.left + 44;
    }
    for (const { step, start: time } of steps) {
      const x = this.x(time);
      if (x < this.left || x > this.width) continue;
      if (x - shown < 6) continue;
      shown = x;
      context.fillStyle = ink.line;
      context.fillRect(Math.round(x), TRACK, 1, 15);
      const text = `${step}`;
      const end = x + context.measureText(text).width + 4;
      if (x >= free && end < this.width) {
        context.fillStyle = ink.muted;
        context.fillText(text, x + 4, TRACK + 8);
        free = end + 8;
      }
    }
    // Time.
    context.font = `11px ${ink.font}`;
    const { step, base, times } = this.ticks();
    for (const time of times) {
      const x = Math.round(this.x(time));
      context.fillStyle = ink.line;
      context.fillRect(x, HEADER - 6, 1, 6);
      context.fillStyle = ink.muted;
      const text = base ? `+${timeText(time - base, step)}` : timeText(time, step);
      if (x + context.measureText(text).width + 8 < this.width) context.fillText(text, x + 4, HEADER - 12);
    }
    context.restore();
    context.textAlign = "right";
    context.fillStyle = ink.faint;
    context.font = `10px ${ink.font}`;
    if (steps.length) context.fillText("step", this.left - 6, TRACK + 8);
    context.font = `11px ${ink.font}`;
    context.fillStyle = base ? ink.muted : ink.faint;
    context.fillText(base ? timeText(base, Math.min(step * 50, 1e9)) : "time", this.left - 6, HEADER - 12);
    context.textAlign = "left";
    context.fillStyle = ink.line;
    context.fillRect(0, HEADER - 1, this.width, 1);
    if (this.props.isLoading) {
      context.fillStyle = ink.accent;
      context.globalAlpha = 0.7;
      context.fillRect(this.left, HEADER - 2, this.plotWidth, 2);
      context.globalAlpha = 1;
    }
  }

  private drawLabels(context: CanvasRenderingContext2D, ink: Ink, scroll: number): void {
    context.fillStyle = ink.surface;
    context.fillRect(0, HEADER, this.left, this.height);
    let last = -1;
    for (const place of this.places) {
      const y = place.top - scroll;
      const bottom = y + place.rows * ROW;
      if (bottom < HEADER || y > this.height) continue;
      context.fillStyle = ink.line;
      context.globalAlpha = place.rank === last ? 0.4 : 1;
      context.fillRect(0, Math.round(y - GAP / 2 - 1), this.width, 1);
      context.globalAlpha = 1;
      last = place.rank;
      const [head, ...rest] = place.label.split(" · ");
      const at = Math.min(Math.max(y + ROW / 2 - 1, HEADER + ROW / 2 + 2), Math.max(bottom - ROW / 2, y + ROW / 2 - 1));
      context.fillStyle = ink.text;
      context.fillText(this.folded.has(place.key) ? "▸" : "▾", 4, at);
      context.fillText(cut(context, head!, this.left - 24), 17, at);
      const detail = rest.join(" · ");
      if (!detail) continue;
      context.fillStyle = ink.muted;
      const used = context.measureText(head!).width + 22;
      if (place.rows > 1 && used + 40 > this.left) context.fillText(cut(context, detail, this.left - 22), 17, at + 14);
      else if (used + 24 < this.left) context.fillText(cut(context, detail, this.left - used - 6), used, at);
    }
    context.fillStyle = ink.line;
    context.fillRect(this.left - 1, HEADER, 1, this.height);
  }

  private drawRange(context: CanvasRenderingContext2D, ink: Ink): void {
    const { range } = this.props;
    if (!range) return;
    const from = Math.max(this.left, this.x(range.start));
    const to = Math.min(this.width, this.x(range.end));
    if (to < this.left || from > this.width) return;
    context.fillStyle = ink.accent;
    context.globalAlpha = 0.14;
    context.fillRect(from, HEADER, to - from, this.height);
    context.globalAlpha = 1;
    context.fillRect(from, TRACK, 1, this.height);
    context.fillRect(to, TRACK, 1, this.height);
    context.fillRect(from, HEADER - 3, to - from, 3);
    const text = duration(range.end - range.start);
    context.font = `600 11px ${ink.font}`;
    const wide = context.measureText(text).width + 12;
    const x = Math.min(Math.max((from + to - wide) / 2, this.left), this.width - wide);
    context.fillRect(x, HEADER, wide, 17);
    context.fillStyle = ink.surface;
    context.fillText(text, x + 6, HEADER + 9);
  }

  // Pointing

  private spot(event: MouseEvent): { x: number; y: number } {
    const rect = this.canvas.getBoundingClientRect();
    return { x: event.clientX - rect.left, y: event.clientY - rect.top };
  }

  private hit(x: number, y: number): Mark | null {
    if (x < this.left || y < HEADER) return null;
    const down = y + this.scroller.scrollTop;
    const place = this.places.find(({ top, rows }) => down >= top && down < top + rows * ROW);
    if (!place) return null;
    const row = Math.floor((down - place.top) / ROW);
    const time = this.time(x);
    const slack = (3 * (this.view.end - this.view.start)) / this.plotWidth;
    for (let i = this.props.windows.length - 1; i >= 0; i--) {
      const window = this.props.windows[i]!;
      if (time < window.answer.start || time > window.answer.end) continue;
      const band = window.byKey.get(place.key);
      if (!band || row >= band.rows) return null;
      let best = -1;
      let distance = slack;
      for (let box = Math.max(band.offsets[row]!, firstAfter(band, row, time - slack) - 1); box < band.offsets[row + 1]!; box++) {
        if (band.start[box]! > time + slack) break;
        const away = Math.max(0, band.start[box]! - time, time - band.end[box]!);
        if (away < distance) [best, distance] = [box, away];
        if (away === 0) break;
      }
      return best < 0 ? null : markOf(window, band, best);
    }
    return null;
  }

  private setHover(mark: Mark | null, x: number, y: number): void {
    const isSame = mark?.start === this.hover?.start && mark?.lane === this.hover?.lane && mark?.row === this.hover?.row;
    if (!isSame) {
      this.hover = mark;
      this.canvas.style.cursor = mark ? "pointer" : "";
      this.ask();
      this.tip.replaceChildren();
      if (mark) for (const [i, line] of describe(mark).entries()) {
        const part = document.createElement(i ? "span" : "strong");
        part.textContent = line;
        this.tip.append(part);
      }
    }
    this.tip.hidden = !mark;
    if (!mark) return;
    const wide = this.tip.offsetWidth;
    const tall = this.tip.offsetHeight;
    const left = x + wide + 20 > this.width ? Math.max(4, x - wide - 12) : x + 14;
    const top = y + tall + 24 > this.height ? Math.max(4, y - tall - 10) : y + 16;
    this.tip.style.transform = `translate(${left}px, ${top}px)`;
  }

  private onWheel(event: WheelEvent): void {
    event.preventDefault();
    const { x } = this.spot(event);
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? this.height : 1;
    const [dx, dy] = [event.deltaX * unit, event.deltaY * unit];
    if (event.altKey) this.scroller.scrollTop += dy;
    else if (event.shiftKey || (Math.abs(dx) > Math.abs(dy) && !event.ctrlKey)) {
      this.pan((event.shiftKey ? dx || dy : dx) / this.plotWidth, false);
    } else {
      // Trackpad pinches come as small steps with ctrl.
      const pace = event.ctrlKey ? 0.01 : 0.0022;
      this.zoom(Math.exp(Math.max(-160, Math.min(160, dy)) * pace), Math.max(x, this.left));
    }
  }

  private onDown(event: PointerEvent): void {
    if (event.button !== 0) return;
    const { x, y } = this.spot(event);
    this.canvas.focus({ preventScroll: true });
    this.pointers.set(event.pointerId, { x, y });
    if (this.pointers.size === 2) {
      const [a, b] = [...this.pointers.values()];
      this.pinch = Math.abs(a!.x - b!.x) || 1;
      this.drag = null;
      return;
    }
    if (x < this.left && y > HEADER) {
      const down = y + this.scroller.scrollTop;
      const place = this.places.find(({ top, rows }) => down >= top - GAP / 2 && down < top + rows * ROW);
      if (place) {
        if (!this.folded.delete(place.key)) this.folded.add(place.key);
        this.layout();
        this.ask();
      }
      return;
    }
    if (event.pointerType === "mouse") this.canvas.setPointerCapture(event.pointerId);
    const kind = y < TRACK + 4 ? "track" : event.shiftKey || (y < HEADER && y > TRACK) ? "range" : "pan";
    this.drag = { kind, x, y, at: this.time(x), scroll: this.scroller.scrollTop, moved: false };
    if (kind === "track") this.onTrack(x);
  }

  private onTrack(x: number): void {
    const [start, end] = this.props.full;
    const middle = start + ((x - this.left) / this.plotWidth) * (end - start);
    const half = (this.goal.end - this.goal.start) / 2;
    this.go({ start: middle - half, end: middle + half }, false);
  }

  private onMove(event: PointerEvent): void {
    const { x, y } = this.spot(event);
    if (this.pointers.has(event.pointerId)) this.pointers.set(event.pointerId, { x, y });
    if (this.pointers.size === 2) {
      const [a, b] = [...this.pointers.values()];
      const distance = Math.abs(a!.x - b!.x) || 1;
      this.zoom(this.pinch / distance, (a!.x + b!.x) / 2, false);
      this.pinch = distance;
      return;
    }
    const { drag } = this;
    if (!drag) {
      this.setHover(this.hit(x, y), x, y);
      return;
    }
    if (!drag.moved && Math.abs(x - drag.x) + Math.abs(y - drag.y) < 4) return;
    drag.moved = true;
    this.setHover(null, 0, 0);
    if (drag.kind === "track") this.onTrack(x);
    else if (drag.kind === "range") {
      const to = this.time(Math.min(Math.max(x, this.left), this.width));
      this.props.onRange({ start: Math.min(drag.at, to), end: Math.max(drag.at, to) });
    } else {
      const span = this.view.end - this.view.start;
      const start = drag.at - ((x - this.left) / this.plotWidth) * span;
      this.go({ start, end: start + span }, false);
      if (event.pointerType === "mouse") this.scroller.scrollTop = drag.scroll - (y - drag.y);
      this.canvas.style.cursor = "grabbing";
    }
  }

  private onUp(event: PointerEvent): void {
    this.pointers.delete(event.pointerId);
    const { drag } = this;
    this.drag = null;
    this.canvas.style.cursor = "";
    if (!drag || drag.moved || drag.kind === "track") return;
    const { x, y } = this.spot(event);
    if (drag.kind === "range") this.props.onRange(null);
    else this.props.onSelect(this.hit(x, y), "open");
  }

  private onCancel(event: PointerEvent): void {
    this.pointers.delete(event.pointerId);
    this.drag = null;
  }

  private onDouble(event: MouseEvent): void {
    const { x, y } = this.spot(event);
    const mark = this.hit(x, y);
    if (mark) this.fit(mark);
    else if (x > this.left) this.zoom(0.4, x);
  }

  fit(mark: View): void {
    const span = Math.max(mark.end - mark.start, NARROWEST);
    this.go({ start: mark.start - span * 0.15, end: mark.end + span * 0.15 });
  }

  private onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.toLowerCase();
    const isArrow = key.startsWith("arrow");
    if (isArrow && event.shiftKey) {
      if (key === "arrowleft") this.pan(-0.2);
      else if (key === "arrowright") this.pan(0.2);
      else this.scroller.scrollTop += key === "arrowup" ? -3 * ROW : 3 * ROW;
    } else if (isArrow) this.step(key);
    else if (key === "w" || key === "a" || key === "s" || key === "d") {
      if (!this.keys.has(key)) this.last = performance.now();
      this.keys.add(key);
      if (this.isCalm) {
        this.keys.delete(key);
        if (key === "w" || key === "s") this.zoom(key === "w" ? 0.6 : 1 / 0.6);
        else this.pan(key === "a" ? -0.2 : 0.2);
      }
      this.ask();
    } else if (key === "+" || key === "=") this.zoom(0.6);
    else if (key === "-" || key === "_") this.zoom(1 / 0.6);
    else if (key === "0") this.reset();
    else if (key === "home") this.pan(-1e9);
    else if (key === "end") this.pan(1e9);
    else if (key === "f" && this.props.selected) this.fit(this.props.selected);
    else if (key === "enter" && this.props.selected) this.props.onSelect(this.props.selected, "open");
    else if (key === "escape") {
      if (this.props.range) this.props.onRange(null);
      else this.props.onSelect(null, "open");
    } else return;
    event.preventDefault();
  }

  /** Move the selection: left and right in its row, up to the parent or the lane above, down to the child or below. */
  private step(key: string): void {
    const window = this.props.windows[this.props.windows.length - 1];
    if (!window || !this.places.length) return;
    const { selected } = this.props;
    const laneIndex = this.places.findIndex(({ key: lane }) => lane === selected?.lane);
    if (!selected || laneIndex < 0) {
      const scroll = this.scroller.scrollTop;
      const place = this.places.find(({ top }) => top >= scroll + HEADER) ?? this.places[0]!;
      this.choose(window, place, 0, (this.view.start + this.view.end) / 2);
      return;
    }
    const place = this.places[laneIndex]!;
    const middle = (Math.max(selected.start, this.view.start) + Math.min(selected.end, this.view.end)) / 2;
    const time = middle >= selected.start && middle <= selected.end ? middle : (selected.start + selected.end) / 2;
    const band = window.byKey.get(place.key);
    if (!band) return;
    if (key === "arrowleft" || key === "arrowright") {
      const row = Math.min(selected.row, band.rows - 1);
      const first = firstAfter(band, row, selected.start + (selected.end - selected.start) / 2);
      const index = key === "arrowleft" ? first - 1 : first + (band.start[first]! <= selected.start ? 1 : 0);
      if (index >= band.offsets[row]! && index < band.offsets[row + 1]!) this.show(markOf(window, band, index), place);
      return;
    }
    const down = key === "arrowdown";
    const row = selected.row + (down ? 1 : -1);
    if (row >= 0 && row < Math.min(place.rows, band.rows) && this.choose(window, place, row, time, selected)) return;
    const other = this.places[laneIndex + (down ? 1 : -1)];
    if (other) this.choose(window, other, 0, time);
  }

  /** Select the box of a row nearest to a time; with `within`, only one that overlaps it. */
  private choose(window: Window, place: Place, row: number, time: number, within?: View): boolean {
    const band = window.byKey.get(place.key);
    if (!band || row >= band.rows) return false;
    const first = firstAfter(band, row, time);
    const candidates = [first, first - 1].filter((i) => i >= band.offsets[row]! && i < band.offsets[row + 1]!);
    const away = (i: number) => Math.max(0, band.start[i]! - time, time - band.end[i]!);
    candidates.sort((a, b) => away(a) - away(b));
    const best = candidates[0];
    if (best === undefined) return false;
    if (within && (band.start[best]! >= within.end || band.end[best]! <= within.start)) return false;
    this.show(markOf(window, band, best), place);
    return true;
  }

  private show(mark: Mark, place: Place): void {
    this.props.onSelect(mark, "move");
    this.scrollTo(place, mark.row);
    const span = this.goal.end - this.goal.start;
    if (mark.end <= this.goal.start || mark.start >= this.goal.end) {
      const middle = (mark.start + mark.end) / 2;
      this.go({ start: middle - span / 2, end: middle + span / 2 });
    }
  }
}

interface Style {
  /** Colours of a box alone, of merged boxes, and of boxes that are not highlighted; also as pixels. */
  fills: string[];
  packed: number[];
  text: string;
  width: number;
}

function cut(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (context.measureText(text).width <= width) return text;
  let keep = text.length - 1;
  while (keep > 1 && context.measureText(`${text.slice(0, keep)}…`).width > width) keep--;
  return `${text.slice(0, keep)}…`;
}

/** Return the lines of the tooltip of a box, the name first. */
export function describe(mark: Mark): string[] {
  const time = duration(mark.end - mark.start);
  const state = mark.flags & FAILED ? " · failed" : "";
  const lines = [mark.name.name];
  if (mark.count > 1) lines.push(`${counted(mark.count, "span")} in ${time}, most of the time in this one${state}`);
  else lines.push(mark.flags & OPEN ? `open for ${time}${state}` : `${time}${state}`);
  lines.push(mark.name.phase && mark.name.phase !== mark.name.name ? `${mark.label} · phase ${mark.name.phase}` : mark.label);
  return lines;
}

/** What the buttons of the view call. */
export interface TimelineHandle {
  zoom: (factor: number) => void;
  pan: (share: number) => void;
  reset: () => void;
  fit: (view: View) => void;
  /** Milliseconds of the latest frames. */
  times: number[];
}

export function Timeline(props: TimelineProps & { handle: { current: TimelineHandle | null } }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const scroller = useRef<HTMLDivElement>(null);
  const spacer = useRef<HTMLDivElement>(null);
  const tip = useRef<HTMLDivElement>(null);
  const drawing = useRef<TimelineCanvas | null>(null);
  useEffect(() => {
    const made = new TimelineCanvas(canvas.current!, scroller.current!, spacer.current!, tip.current!, props);
    drawing.current = made;
    props.handle.current = {
      zoom: (factor) => made.zoom(factor),
      pan: (share) => made.pan(share),
      reset: () => made.reset(),
      fit: (view) => made.fit(view),
      times: made.times,
    };
    return () => {
      made.stop();
      props.handle.current = null;
    };
  }, []);
  useEffect(() => drawing.current?.update(props));
  return (
    <div class="timeline-box">
      <div class="timeline-scroll" ref={scroller}>
        <div class="timeline-space" ref={spacer}>
          <canvas ref={canvas} class="timeline-canvas" tabIndex={0} role="application" aria-label={props.label} />
        </div>
      </div>
      <div class="chart-tip timeline-tip" ref={tip} hidden aria-hidden="true" />
    </div>
  );
}
