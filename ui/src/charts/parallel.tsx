// Parallel coordinates: one line for each run through its settings and metrics. Brush an axis to keep some runs.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { runColour } from "../colours";
import { counted, number } from "../format";
import type { Scalar } from "../types";
import "./parallel.css";

export interface ParallelProps {
  /** values[i] is that of runs[i]. */
  axes: { key: string; values: Scalar[] }[];
  runs: { id: string; label: string }[];
  /** Called with the ids of the runs that pass all brushes; null: no brush. */
  onFilter?: (ids: string[] | null) => void;
  onPick?: (id: string) => void;
}

const TOP = 46;
const BOTTOM = 34;
const HEIGHT = 320;
const LEAST_SPACE = 104;
const MISSING = HEIGHT - 12;

interface Scaled {
  key: string;
  isNumber: boolean;
  /** Place of a value from 0 (bottom) to 1 (top), or null. */
  places: (number | null)[];
  ticks: { place: number; text: string }[];
  texts: string[];
}

/** Return where each value of an axis is. Numbers are logarithmic if positive and over two decades. */
function scaleAxis({ key, values }: { key: string; values: Scalar[] }): Scaled {
  const texts = values.map((value) => (value === null ? "none" : typeof value === "number" ? number(value) : String(value)));
  const numbers = values.filter((value): value is number => typeof value === "number" && Number.isFinite(value));
  const isNumber = numbers.length > 0 && values.every((value) => value === null || typeof value === "number");
  if (isNumber) {
    const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
    const isLog = low > 0 && high / low >= 100;
    const map = isLog ? Math.log : (value: number) => value;
    const [from, to] = [map(low), map(high)];
    const place = (value: number) => (to > from ? (map(value) - from) / (to - from) : 0.5);
    const distinct = [...new Set(numbers)].sort((a, b) => a - b);
    const evenly = [0, 0.25, 0.5, 0.75, 1].map((share) => {
      const value = isLog ? Math.exp(from + share * (to - from)) : from + share * (to - from);
      return { place: share, text: number(value) };
    });
    // A setting with few values has a tick for each of them, as far as there is space.
    const own = distinct.map((value) => ({ place: place(value), text: number(value) }));
    const ticks = own.length <= 6 ? own.filter((tick, i) => i === 0 || tick.place - own[i - 1]!.place > 0.05) : evenly;
    return {
      key,
      isNumber,
      texts,
      places: values.map((value) => (typeof value === "number" && Number.isFinite(value) ? place(value) : null)),
      ticks: to > from ? ticks : [{ place: 0.5, text: number(low) }],
    };
  }
  const kinds = [...new Set(texts.filter((_, i) => values[i] !== null))].sort();
  const place = (text: string) => (kinds.length > 1 ? kinds.indexOf(text) / (kinds.length - 1) : 0.5);
  const every = Math.ceil(kinds.length / 14);
  return {
    key,
    isNumber,
    texts,
    places: values.map((value, i) => (value === null ? null : place(texts[i]!))),
    ticks: kinds.filter((_, i) => i % every === 0).map((text) => ({ place: place(text), text })),
  };
}

function short(text: string, most: number): string {
  return text.length > most ? `${text.slice(0, Math.ceil(most * 0.4))}…${text.slice(-Math.floor(most * 0.5))}` : text;
}

type Brush = [low: number, high: number];

export function Parallel(props: ParallelProps) {
  return props.axes.length < 2 || !props.runs.length ? null : <Coordinates {...props} />;
}

function Coordinates({ axes, runs, onFilter, onPick }: ParallelProps) {
  const box = useRef<HTMLDivElement>(null);
  const svg = useRef<SVGSVGElement>(null);
  const [width, setWidth] = useState(800);
  const [brushes, setBrushes] = useState<Record<string, Brush>>({});
  const [hover, setHover] = useState<number | null>(null);
  const drag = useRef<{ key: string; from: number } | null>(null);
  useEffect(() => {
    const sizes = new ResizeObserver(() => box.current && setWidth(box.current.clientWidth));
    sizes.observe(box.current!);
    return () => sizes.disconnect();
  }, []);
  const scaled = useMemo(() => axes.map(scaleAxis), [axes]);
  const colours = runs.map(({ id }) => runColour(id));
  const isIn = useMemo(
    () =>
      runs.map((_, i) =>
        scaled.every(({ key, places }) => {
          const brush = brushes[key];
          const place = places[i];
          return !brush || (place !== null && place !== undefined && place >= brush[0] && place <= brush[1]);
        }),
      ),
    [scaled, brushes, runs],
  );
  const hasBrush = Object.keys(brushes).length > 0;
  const kept = isIn.filter(Boolean).length;
  useEffect(() => {
    onFilter?.(hasBrush ? runs.filter((_, i) => isIn[i]).map(({ id }) => id) : null);
  }, [isIn, hasBrush]);

  const wide = Math.max(width, axes.length * LEAST_SPACE);
  const side = 52;
  const x = (axis: number) => side + (axis / (axes.length - 1)) * (wide - 2 * side);
  const y = (place: number | null) => (place === null ? MISSING : TOP + (1 - place) * (HEIGHT - TOP - BOTTOM));
  const placeAt = (event: PointerEvent) => {
    const rect = svg.current!.getBoundingClientRect();
    return Math.min(1, Math.max(0, 1 - (event.clientY - rect.top - TOP) / (HEIGHT - TOP - BOTTOM)));
  };
  const setBrush = (key: string, brush: Brush | null) =>
    setBrushes(({ [key]: _, ...rest }) => (brush ? { ...rest, [key]: brush } : rest));
  const onMove = (event: PointerEvent) => {
    const from = drag.current;
    if (from) {
      const to = placeAt(event);
      const pad = 0.004;
      if (Math.abs(to - from.from) > 0.01) setBrush(from.key, [Math.min(from.from, to) - pad, Math.max(from.from, to) + pad]);
      return;
    }
    // The nearest line within 8 pixels.
    const rect = svg.current!.getBoundingClientRect();
    const [px, py] = [event.clientX - rect.left, event.clientY - rect.top];
    const right = scaled.findIndex((_, i) => x(i) >= px);
    let best: number | null = null;
    if (right > 0) {
      const share = (px - x(right - 1)) / (x(right) - x(right - 1));
      let distance = 8;
      runs.forEach((_, i) => {
        if (!isIn[i]) return;
        const [a, b] = [y(scaled[right - 1]!.places[i] ?? null), y(scaled[right]!.places[i] ?? null)];
        const away = Math.abs(a + (b - a) * share - py);
        if (away < distance) [best, distance] = [i, away];
      });
    }
    setHover(best);
  };
  const onKey = (event: KeyboardEvent, key: string) => {
    const brush = brushes[key] ?? [0.75, 1.004];
    const step = event.key === "ArrowUp" ? 0.05 : event.key === "ArrowDown" ? -0.05 : 0;
    if (event.key === "Escape" || event.key === "Delete") setBrush(key, null);
    else if (event.key === "Enter") setBrush(key, brushes[key] ? null : [0.75, 1.004]);
    else if (step && event.shiftKey) setBrush(key, [Math.min(brush[0] + step, brush[1] - 0.02), brush[1]]);
    else if (step) {
      const by = Math.max(-0.004 - brush[0], Math.min(1.004 - brush[1], step));
      setBrush(key, [brush[0] + by, brush[1] + by]);
    } else return;
    event.preventDefault();
  };
  const line = (i: number) => scaled.map(({ places }, axis) => `${axis ? "L" : "M"}${x(axis).toFixed(1)},${y(places[i] ?? null).toFixed(1)}`).join("");
  const hovered = hover === null ? null : runs[hover];
  return (
    <div class="parallel">
      <div class="parallel-head">
        <span role="status">
          {hovered
            ? hovered.label
            : hasBrush
              ? `${kept} of ${counted(runs.length, "run")}`
              : `${counted(runs.length, "run")}. Drag along an axis to keep some.`}
        </span>
        {hasBrush && (
          <button type="button" class="link-button" onClick={() => setBrushes({})}>
            Clear
          </button>
        )}
      </div>
      <div class="parallel-box" ref={box} tabIndex={0} role="group" aria-label={`Parallel coordinates of ${counted(runs.length, "run")}`}>
        <svg
          ref={svg}
          width={wide}
          height={HEIGHT + 12}
          onPointerMove={onMove}
          onPointerLeave={() => setHover(null)}
          onPointerUp={() => (drag.current = null)}
          onPointerCancel={() => (drag.current = null)}
          onClick={() => hovered && !drag.current && onPick?.(hovered.id)}
        >
          <g class={hover === null ? "parallel-lines" : "parallel-lines has-hover"} aria-hidden="true">
            {runs.map((run, i) => (
              <path key={run.id} d={line(i)} stroke={colours[i]} class={isIn[i] ? "" : "is-out"} />
            ))}
            {hover !== null && <path class="is-hover" d={line(hover)} stroke={colours[hover]} />}
          </g>
          {scaled.map((axis, i) => {
            const brush = brushes[axis.key];
            const anchor = i === 0 ? "start" : i === scaled.length - 1 ? "end" : "middle";
            const titleX = i === 0 ? 4 : i === scaled.length - 1 ? wide - 4 : x(i);
            const space = Math.floor((wide / axes.length) / 6.6);
            const inside = brush ? `keeps ${Math.round(brush[0] * 100)} to ${Math.round(brush[1] * 100)} % of the axis, ${kept} runs` : "no filter";
            return (
              <g key={axis.key}>
                <text class="parallel-title" x={titleX} y={i % 2 && space < 14 ? 30 : 16} text-anchor={anchor}>
                  <title>{axis.key}</title>
                  {short(axis.key, Math.max(10, space))}
                </text>
                <line class="parallel-axis" x1={x(i)} x2={x(i)} y1={TOP} y2={HEIGHT - BOTTOM} />
                {axis.ticks.map(({ place, text }) => (
                  <text
                    key={text + place}
                    class="parallel-tick"
                    x={x(i) + (i === scaled.length - 1 ? -6 : 6)}
                    y={y(place)}
                    dy="0.32em"
                    text-anchor={i === scaled.length - 1 ? "end" : "start"}
                  >
                    {short(text, 16)}
                  </text>
                ))}
                {axis.places.includes(null) && (
                  <text class="parallel-tick" x={x(i)} y={MISSING + 12} text-anchor="middle">
                    none
                  </text>
                )}
                {brush && <rect class="parallel-brush" x={x(i) - 7} width={14} y={y(brush[1])} height={Math.max(4, y(brush[0]) - y(brush[1]))} />}
                <rect
                  class="parallel-grip"
                  x={x(i) - 14}
                  width={28}
                  y={TOP - 6}
                  height={HEIGHT - TOP - BOTTOM + 12}
                  tabIndex={0}
                  role="slider"
                  aria-orientation="vertical"
                  aria-label={`Filter ${axis.key}`}
                  aria-valuemin={0}
                  aria-valuemax={100}
                  aria-valuenow={brush ? Math.round(((brush[0] + brush[1]) / 2) * 100) : 50}
                  aria-valuetext={inside}
                  onKeyDown={(event) => onKey(event, axis.key)}
                  onPointerDown={(event) => {
                    event.preventDefault();
                    svg.current!.setPointerCapture(event.pointerId);
                    drag.current = { key: axis.key, from: placeAt(event) };
                    setBrush(axis.key, null);
                  }}
                />
              </g>
            );
          })}
          {hover !== null &&
            scaled.map((axis, i) => (
              <text
                key={axis.key}
                class="parallel-value"
                x={x(i) + (i === scaled.length - 1 ? -8 : 8)}
                y={y(axis.places[hover] ?? null) - 6}
                text-anchor={i === scaled.length - 1 ? "end" : "start"}
              >
                {short(axis.texts[hover] ?? "", 18)}
              </text>
            ))}
        </svg>
      </div>
    </div>
  );
}
