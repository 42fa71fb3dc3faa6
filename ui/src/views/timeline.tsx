// Timeline of a run: loads windows of boxes as the reader moves, and shows spans, ranges and searches beside it.

import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { addressOf, get, isReport, useAnswer } from "../api";
import {
  describe,
  findSpan,
  OPEN,
  prepare,
  Timeline,
  timeText,
  visit,
  type Mark,
  type TimelineHandle,
  type View,
  type Window,
} from "../charts/timeline";
import { phaseColour } from "../colours";
import { count, counted, duration, percent, plain } from "../format";
import { onVersion } from "../live";
import { Empty, Loading, Trouble } from "../parts/empty";
import { setParams, useRoute } from "../router";
import { cssColour, useTheme } from "../theme";
import type { SpanDetail, SpanHit, SpanName, SpanSearch, TimelineAnswer } from "../types";
import type { ViewProps } from "../view";
import "./timeline.css";

/** Standard spans that only contain others. */
const CONTAINERS = new Set(["application", "training_loop", "training_on_epoch", "epoch", "train"]);

function isOwn({ name, phase }: SpanName): boolean {
  return phase === null && !CONTAINERS.has(name);
}

/** A span has the colour of its phase; a span of the user's own has a colour of its own. */
function spanColour(name: SpanName): string {
  if (name.phase === null && !isOwn(name)) return cssColour("--line-2");
  return phaseColour(name.phase ?? name.name);
}

const RECORD = `import stepwell

run = stepwell.init("my-run")
for step, batch in enumerate(loader):
    run.set_step(step)
    with stepwell.span("train step"):
        ...`;

export function TimelineView({ run, head }: ViewProps) {
  if (!head.has.spans) {
    return (
      <Empty title="No spans were recorded." code={RECORD}>
        A span is a named interval, such as a step or its forward pass. Record spans with an integration or by hand:
      </Empty>
    );
  }
  return <Loaded run={run} isLive={head.status === "running"} />;
}

// Windows of boxes

const SCREENS = 3;
const DEBOUNCE_MS = 80;
const MOST_WINDOWS = 30;
const MOST_GOES = 60;

interface Windows {
  windows: Window[];
  full: [number, number] | null;
  isLoading: boolean;
  error: string | null;
  /** Say what is on the screen; what is missing is asked for. */
  want: (view: View, width: number) => void;
}

function resolution(window: Window & { width?: number }): number {
  return (window.answer.end - window.answer.start) / (window.width ?? 1500);
}

function useWindows(run: string, ranks: string[], offset: number): Windows {
  const path = `/api/runs/${encodeURIComponent(run)}/timeline`;
  const key = `${run}\n${ranks.join(",")}\n${offset}`;
  const [windows, setWindows] = useState<Window[]>([]);
  const [isLoading, setLoading] = useState(true);
  const [error, setError] = useState<string | null>(null);
  const state = useRef({
    key: "",
    cache: [] as (Window & { width?: number })[],
    base: null as (Window & { width?: number }) | null,
    shown: null as Window | null,
    view: null as View | null,
    width: 1200,
    timer: 0,
    /** The view of the last request: a view is asked for once, whatever the answer is. */
    asked: null as View | null,
    isBusy: false,
    isDead: false,
  }).current;

  const load = useCallback(
    async (part: View | null, width: number, again = 0): Promise<void> => {
      const asked = key;
      state.isBusy = true;
      setLoading(true);
      try {
        const params = part ? { start: Math.round(part.start), end: Math.round(part.end) } : {};
        const answer = await get<TimelineAnswer>(path, { ...params, width: Math.round(width), rank: ranks, offset: offset || null, again: again || null });
        if (asked !== state.key || state.isDead) return;
        const window = Object.assign(prepare(answer), { width });
        setError(null);
        if (!part) state.base = window;
        const { start, end, missing = 0 } = answer;
        state.cache = state.cache.filter((old) => old.answer.start !== start || old.answer.end !== end || old.width !== width);
        state.cache.push(window);
        // A large run is read in several goes.
        if (missing > 0 && again < MOST_GOES) state.timer = globalThis.setTimeout(() => void load(part, width, again + 1), 200) as unknown as number;
        if (state.cache.length > MOST_WINDOWS) state.cache.shift();
      } catch (trouble) {
        if (asked === state.key) setError((trouble as Error).message);
      } finally {
        if (asked === state.key && !state.isDead) {
          state.isBusy = false;
          setLoading(false);
          choose();
        }
      }
    },
    [key],
  );

  const choose = (): void => {
    const { base, view, width } = state;
    if (!base) return;
    let best: Window | null = null;
    if (view) {
      const [first, last] = base.answer.full;
      const [from, to] = [Math.max(view.start, first), Math.min(view.end, last)];
      const wanted = (view.end - view.start) / width;
      let closest = Infinity;
      for (const window of state.cache) {
        if (window.answer.start > from + 1 || window.answer.end < to - 1) continue;
        const ratio = resolution(window) / wanted;
        // A window without merged boxes is as good as any closer one.
        const isFine = ratio <= 1.5 || isReport || window.isComplete;
        if (!isFine || ratio < 0.25) continue;
        const away = Math.abs(Math.log(ratio));
        if (away < closest) [best, closest] = [window, away];
      }
      if (!best && !state.isBusy && !isReport && state.asked !== view) {
        clearTimeout(state.timer);
        state.timer = globalThis.setTimeout(() => {
          const now = state.view ?? view;
          const span = now.end - now.start;
          const side = ((SCREENS - 1) / 2) * span;
          const part = { start: Math.max(first, now.start - side), end: Math.min(last, now.end + side) };
          if (part.end <= part.start || state.isBusy) return;
          state.asked = now;
          void load(part, Math.min(6000, ((part.end - part.start) / span) * state.width));
        }, DEBOUNCE_MS) as unknown as number;
      }
    }
    const shown = best ?? state.shown ?? base;
    if (shown === state.shown && windowsAre(base, shown)) return;
    state.shown = shown;
    setWindows(shown === base ? [base] : [base, shown]);
  };
  const windowsRef = useRef(windows);
  windowsRef.current = windows;
  const windowsAre = (base: Window, shown: Window) =>
    windowsRef.current[0] === base && windowsRef.current[windowsRef.current.length - 1] === shown;

  useEffect(() => {
    state.key = key;
    state.isDead = false;
    state.cache = [];
    state.base = null;
    state.shown = null;
    void load(null, 1600);
    const forget = onVersion(run, () => {
      // The run has grown: what is loaded stays on the screen until the new answers are there.
      state.cache = [];
      state.asked = null;
      const { shown, base } = state;
      void load(null, 1600).then(() => {
        if (state.shown === shown && shown === base) state.shown = state.base;
        choose();
      });
    });
    return () => {
      forget();
      clearTimeout(state.timer);
      state.isDead = true;
    };
  }, [key]);

  const want = useCallback(
    (view: View, width: number) => {
      const old = state.view;
      if (old && old.start === view.start && old.end === view.end && width === state.width) return;
      state.view = { ...view };
      state.width = width;
      choose();
    },
    [key],
  );
  return { windows, full: windows[windows.length - 1]?.answer.full ?? null, isLoading, error, want };
}

// The view

interface Top {
  name: SpanName;
  count: number;
  ns: number;
  isExact: boolean;
}

/** Return the names with the most time between two times, of all loaded lanes. */
function topSpans(windows: Window[], { start, end }: View): Top[] {
  const covers = ({ answer }: Window) => answer.start <= start + 1 && answer.end >= end - 1;
  const window = [...windows].reverse().find(covers) ?? windows[0];
  if (!window) return [];
  const tops = new Map<string, Top & { rows: Set<string> }>();
  // A box of several spans has the name of the longest: it may contain any name of its row, in lanes like it too.
  const merged = new Set<string>();
  visit(window, start, end, (name, boxes, ns, { lane }, depth) => {
    const row = `${lane.label.replace(/\d+/g, "")} ${depth}`;
    const key = `${name.name}\n${name.category}`;
    const top = tops.get(key) ?? { name, count: 0, ns: 0, isExact: true, rows: new Set() };
    top.count += boxes;
    top.ns += ns;
    top.rows.add(row);
    if (boxes > 1) merged.add(row);
    tops.set(key, top);
  });
  for (const top of tops.values()) top.isExact = ![...top.rows].some((row) => merged.has(row));
  return [...tops.values()].sort((a, b) => b.ns - a.ns);
}

/** Return the time of a step on a rank: the server names some steps of a window, so the window shrinks until it has this one. */
async function viewOfStep(run: string, rank: number, step: number): Promise<View | null> {
  let part: { start?: number; end?: number } = {};
  for (let tries = 0; tries < 6; tries++) {
    const answer: TimelineAnswer = await get(`/api/runs/${encodeURIComponent(run)}/timeline`, { ...part, rank: [rank], width: 4000, lanes: 1 });
    const { steps } = answer;
    // A step may have been done in several attempts: the last one counts.
    let at = steps.length - 1;
    while (at >= 0 && !(steps[at]!.step <= step && step < (steps[at + 1]?.step ?? Infinity))) at--;
    const here = steps[at];
    if (!here) return null;
    const next = steps[at + 1];
    const end = next && next.start > here.start ? next.start : answer.end;
    if (here.step === step && (!next || next.step === step + 1 || tries === 5)) return { start: here.start, end };
    if (end - here.start >= answer.end - answer.start) return { start: here.start, end };
    part = { start: Math.floor(here.start), end: Math.ceil(end) };
  }
  return null;
}

function Loaded({ run, isLive }: { run: string; isLive: boolean }) {
  useTheme();
  const { query } = useRoute();
  const wantedStep = query.get("step");
  useEffect(() => {
    if (wantedStep === null) return;
    let isStale = false;
    const rank = Number(query.get("rank") ?? 0);
    viewOfStep(run, rank, Number(wantedStep)).then(
      (at) => {
        if (isStale) return;
        const margin = at ? (at.end - at.start) * 0.5 : 0;
        setParams({ step: null, start: at ? Math.round(at.start - margin) : null, end: at ? Math.round(at.end + margin) : null });
      },
      () => isStale || setParams({ step: null }),
    );
    return () => void (isStale = true);
  }, [wantedStep]);
  const ranks = query.getAll("rank");
  const offset = Number(query.get("offset")) || 0;
  const spanId = query.has("span") ? Number(query.get("span")) : null;
  const search = query.get("q") ?? "";
  const highlight = query.get("name");
  const { windows, full, isLoading, error, want } = useWindows(run, ranks, offset);
  const handle = useRef<TimelineHandle | null>(null);
  const [mark, setMark] = useState<Mark | null>(null);
  const [spoken, setSpoken] = useState("");
  const [settled, setSettled] = useState<{ view: View; width: number } | null>(null);

  const routeView = useMemo<View | null>(() => {
    const [start, end] = [Number(query.get("start")), Number(query.get("end"))];
    return query.has("start") && query.has("end") && end > start ? { start, end } : null;
  }, [query.get("start"), query.get("end")]);
  const written = useRef<View | null>(null);
  const [target, setTarget] = useState<View | null>(routeView);
  useEffect(() => {
    if (!full) return;
    const isOwn =
      routeView === null
        ? written.current === null
        : written.current !== null && Math.abs(written.current.start - routeView.start) + Math.abs(written.current.end - routeView.end) <= 2;
    if (!isOwn || target === null) {
      written.current = routeView;
      setTarget(routeView ?? { start: full[0], end: full[1] });
    }
  }, [routeView, full !== null]);

  const [range, setRangeState] = useState<View | null>(() => {
    const [from, to] = (query.get("range") ?? "").split("-").map(Number);
    return from !== undefined && to !== undefined && to > from ? { start: from, end: to } : null;
  });
  const rangeTimer = useRef(0);
  const setRange = useCallback((next: View | null) => {
    setRangeState(next);
    clearTimeout(rangeTimer.current);
    rangeTimer.current = globalThis.setTimeout(
      () => setParams({ range: next ? `${Math.round(next.start)}-${Math.round(next.end)}` : null }),
      250,
    ) as unknown as number;
  }, []);

  // The view moves many times a second: the rest of the page follows when it rests.
  const timer = useRef(0);
  const moving = useRef<View | null>(null);
  const onView = useCallback(
    (view: View, width: number) => {
      want(view, width);
      if (moving.current && moving.current.start === view.start && moving.current.end === view.end) return;
      moving.current = { ...view };
      clearTimeout(timer.current);
      timer.current = globalThis.setTimeout(() => {
        setSettled({ view: { ...view }, width });
        const whole = fullRef.current;
        const isWhole = whole && Math.abs(view.start - whole[0]) + Math.abs(view.end - whole[1]) < (whole[1] - whole[0]) * 0.002;
        const next = isWhole ? null : { start: Math.round(view.start), end: Math.round(view.end) };
        if (routeRef.current?.start === next?.start && routeRef.current?.end === next?.end) return;
        written.current = next;
        setParams({ start: next?.start ?? null, end: next?.end ?? null });
      }, 280) as unknown as number;
    },
    [want],
  );
  const fullRef = useRef(full);
  fullRef.current = full;
  const routeRef = useRef(routeView);
  routeRef.current = routeView;
  useEffect(() => () => (clearTimeout(timer.current), clearTimeout(rangeTimer.current)), []);

  const detail = useAnswer<SpanDetail>(spanId === null || isReport ? null : `/api/runs/${encodeURIComponent(run)}/spans/${spanId}`);
  const span = spanId !== null && detail.data?.id === spanId ? detail.data : null;
  // A span from the route or the search is outlined once a window has its box; then the arrow keys may move on.
  const outlined = useRef<number | null>(null);
  useEffect(() => {
    if (spanId === null || mark?.id === spanId) outlined.current = spanId;
    if (!span || outlined.current === spanId) return;
    for (const window of [...windows].reverse()) {
      const box = findSpan(window, span.rank, spanId!);
      if (!box) continue;
      outlined.current = spanId;
      return setMark(box);
    }
  }, [span, windows, spanId]);

  const onSelect = useCallback((next: Mark | null, how: "open" | "move") => {
    setMark(next);
    setSpoken(next ? describe(next).join(", ") : "");
    if (how !== "open") return;
    if (next === null) setParams({ span: null, name: null });
    else setParams({ span: next.id });
  }, []);

  const showHit = (hit: SpanHit) => {
    const isLoaded = windows[0]?.bands.some(({ lane }) => lane.rank === hit.rank && lane.thread === hit.thread);
    const length = Math.max(hit.duration_ns ?? (full ? full[1] - hit.start : 1e6), 1000);
    setMark(null);
    setParams({ span: hit.id, name: hit.name, ...(isLoaded ? {} : { rank: [hit.rank], offset: null }) });
    handle.current?.fit({ start: hit.start - length * 0.6, end: hit.start + length * 1.6 });
  };

  const view = settled?.view ?? target ?? (full ? { start: full[0], end: full[1] } : null);
  const tops = useMemo(() => (view ? topSpans(windows, view) : []), [windows, settled]);
  const answer = windows[windows.length - 1]?.answer ?? null;

  if (!full || !answer || !target || !view) {
    return error ? <Trouble error={error} /> : <Loading height={420} label="Loading the timeline" />;
  }
  const lanes = windows[windows.length - 1]?.bands.length ?? 0;
  const spans = tops.reduce((sum, top) => sum + top.count, 0);
  const label =
    `Timeline from ${timeText(view.start, 1e6)} to ${timeText(view.end, 1e6)}, ${counted(lanes, "lane")}, ` +
    `${counted(spans, "span")}. Arrow keys move between spans, Enter opens one, W and S zoom, A and D move, 0 shows the whole run.`;
  const phases = legend(tops);
  return (
    <div class="timeline-view">
      <Tools run={run} view={view} ranks={ranks} answer={answer} handle={handle} search={search} />
      {error && <Trouble error={error} />}
      <div class={span || mark || search ? "timeline-split has-side" : "timeline-split"}>
        <div class="timeline-main">
          <Timeline
            windows={windows}
            full={full}
            target={target}
            colour={spanColour}
            selected={mark}
            highlight={highlight}
            range={range}
            isLoading={isLoading}
            label={label}
            onView={onView}
            onSelect={onSelect}
            onRange={setRange}
            handle={handle}
          />
          <div class="visually-hidden" role="status" aria-live="polite">
            {spoken}
          </div>
          <div class="timeline-foot">
            <ul class="timeline-legend" aria-label="Colours">
              {phases.map(({ text, colour }) => (
                <li key={text}>
                  <i style={{ background: colour }} aria-hidden="true" />
                  {text}
                </li>
              ))}
            </ul>
            <Lanes answer={answer} offset={offset} />
          </div>
          {range && <Measure windows={windows} range={range} onClear={() => setRange(null)} onZoom={() => handle.current?.fit(range)} />}
          <TopTable tops={tops} view={view} lanes={lanes} />
          <Keys />
        </div>
        {(span || mark || search) && (
          <aside class="timeline-side" aria-label="Details">
            {(mark || spanId !== null) && (
              <SpanPanel
                mark={mark}
                span={span}
                isLive={isLive}
                error={spanId !== null ? detail.error : null}
                highlight={highlight}
                onFit={(goal) => handle.current?.fit(goal)}
                onClose={() => (setMark(null), setParams({ span: null, name: null }))}
              />
            )}
            {search && <SearchPanel run={run} text={search} chosen={spanId} onPick={showHit} highlight={highlight} />}
          </aside>
        )}
      </div>
    </div>
  );
}

function legend(tops: Top[]): { text: string; colour: string }[] {
  const texts = new Map<string, string>();
  for (const { name } of tops) {
    const text = name.phase ?? (isOwn(name) ? name.name : "contains others");
    if (!texts.has(text)) texts.set(text, spanColour(name));
  }
  return [...texts].slice(0, 12).map(([text, colour]) => ({ text, colour }));
}

interface ToolsProps {
  run: string;
  view: View;
  ranks: string[];
  answer: TimelineAnswer;
  handle: { current: TimelineHandle | null };
  search: string;
}

function Tools({ run, view, ranks, answer, handle, search }: ToolsProps) {
  const [text, setText] = useState(search);
  useEffect(() => setText(search), [search]);
  const [rankText, setRankText] = useState(rankRanges(ranks.map(Number)));
  useEffect(() => setRankText(rankRanges(ranks.map(Number))), [ranks.join(",")]);
  const [rankNote, setRankNote] = useState("");
  const chooseRanks = (): void => {
    const { chosen, unknown } = parseRanks(rankText, answer.ranks);
    setRankNote(unknown.length ? `No rank ${unknown.join(", ")}. This run has ranks ${rankRanges(answer.ranks)}.` : "");
    if (!unknown.length) setParams({ rank: chosen, offset: null });
  };
  const trace = addressOf(`/api/runs/${encodeURIComponent(run)}/trace`, {
    start: Math.max(0, Math.round(view.start)),
    end: Math.round(view.end),
    rank: ranks,
  });
  return (
    <div class="timeline-tools">
      {!isReport && (
        <form
          class="timeline-search"
          role="search"
          onSubmit={(event) => {
            event.preventDefault();
            setParams({ q: text.trim() || null, name: null });
          }}
        >
          <label class="search">
            <span class="visually-hidden">Find spans by name</span>
            <input
              type="search"
              value={text}
              placeholder="Find spans"
              onInput={(event) => {
                setText(event.currentTarget.value);
                if (!event.currentTarget.value) setParams({ q: null, name: null });
              }}
            />
          </label>
          <button type="submit" class="secondary">
            Find
          </button>
        </form>
      )}
      {answer.ranks.length > 1 && !isReport && (
        <form
          class="timeline-ranks"
          onSubmit={(event) => {
            event.preventDefault();
            chooseRanks();
          }}
        >
          <label class="field">
            Ranks
            <input
              type="text"
              value={rankText}
              placeholder={`all ${count(answer.ranks.length)}`}
              title="Ranks to show, such as 0-3, 8. Empty: all."
              onInput={(event) => setRankText(event.currentTarget.value)}
              onChange={chooseRanks}
              aria-invalid={rankNote !== ""}
            />
          </label>
          <span class="field-wrong" role="status">
            {rankNote}
          </span>
        </form>
      )}
      <div class="timeline-zoom" role="group" aria-label="Zoom and move">
        <button type="button" class="secondary" aria-label="Move left" title="Move left (A)" onClick={() => handle.current?.pan(-0.4)}>
          ←
        </button>
        <button type="button" class="secondary" aria-label="Zoom out" title="Zoom out (S)" onClick={() => handle.current?.zoom(1.8)}>
          −
        </button>
        <button type="button" class="secondary" aria-label="Zoom in" title="Zoom in (W)" onClick={() => handle.current?.zoom(1 / 1.8)}>
          +
        </button>
        <button type="button" class="secondary" aria-label="Move right" title="Move right (D)" onClick={() => handle.current?.pan(0.4)}>
          →
        </button>
        <button type="button" class="secondary" title="Show the whole run (0)" onClick={() => handle.current?.reset()}>
          Whole run
        </button>
      </div>
      <span class="timeline-window">
        {duration(view.end - view.start)} of {duration(answer.full[1] - answer.full[0])}
      </span>
      {!isReport && (
        <span class="timeline-trace">
          <a href={trace} download title="Download what is on the screen as a trace. Drop the file on ui.perfetto.dev to open it.">
            Download for Perfetto
          </a>
          <span class="timeline-trace-how">this window; drop the file on ui.perfetto.dev</span>
        </span>
      )}
    </div>
  );
}

/** Return ranks as ranges: 0-3, 5. */
export function rankRanges(ranks: number[]): string {
  const sorted = [...ranks].sort((a, b) => a - b);
  const parts: [number, number][] = [];
  for (const rank of sorted) {
    const last = parts[parts.length - 1];
    if (last && rank === last[1] + 1) last[1] = rank;
    else parts.push([rank, rank]);
  }
  return parts.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(", ");
}

/** Return the ranks of a text such as "0-3, 8", and its parts that are no rank of the run. No ranks are all ranks. */
function parseRanks(text: string, all: number[]): { chosen: number[]; unknown: string[] } {
  const wanted = new Set<number>();
  const unknown: string[] = [];
  for (const part of text.split(/[,\s]+/).filter(Boolean)) {
    const match = /^(\d+)(?:-(\d+))?$/.exec(part);
    const [from, to] = [Number(match?.[1]), Number(match?.[2] ?? match?.[1])];
    const ranks = all.filter((rank) => rank >= from && rank <= to);
    for (const rank of ranks) wanted.add(rank);
    if (!ranks.length) unknown.push(part);
  }
  return { chosen: wanted.size === all.length ? [] : [...wanted].slice(0, 256), unknown };
}

function Lanes({ answer, offset }: { answer: TimelineAnswer; offset: number }) {
  const shown = answer.lanes.length;
  if (shown >= answer.lane_count) return null;
  if (isReport) return <span>the first {count(shown)} of {counted(answer.lane_count, "lane")}</span>;
  return (
    <div class="timeline-pages" role="group" aria-label="Lanes">
      <button type="button" class="secondary" disabled={offset === 0} onClick={() => setParams({ offset: Math.max(0, offset - shown) || null })}>
        Previous
      </button>
      <span>
        lanes {count(answer.offset + 1)} to {count(answer.offset + shown)} of {count(answer.lane_count)}
      </span>
      <button
        type="button"
        class="secondary"
        disabled={answer.offset + shown >= answer.lane_count}
        onClick={() => setParams({ offset: answer.offset + shown })}
      >
        Next
      </button>
    </div>
  );
}

interface MeasureProps {
  windows: Window[];
  range: View;
  onClear: () => void;
  onZoom: () => void;
}

function Measure({ windows, range, onClear, onZoom }: MeasureProps) {
  const all = topSpans(windows, range);
  const inner = all.filter(({ name }) => name.phase !== null || isOwn(name));
  const tops = (inner.length ? inner : all).slice(0, 6);
  const steps = (windows[windows.length - 1]?.answer.steps ?? []).filter(({ start }) => start >= range.start && start < range.end);
  const first = steps[0]?.step;
  const last = steps[steps.length - 1]?.step;
  const length = range.end - range.start;
  return (
    <section class="timeline-measure" aria-label="Selected range">
      <p>
        <strong>{duration(length)}</strong> selected
        {first !== undefined && last !== undefined && (
          <span>{first === last ? ` · step ${first} begins in it` : ` · steps ${first} to ${last} begin in it`}</span>
        )}
        <span class="timeline-measure-buttons">
          <button type="button" class="secondary" onClick={onZoom}>
            Zoom to it
          </button>
          <button type="button" class="secondary" onClick={onClear}>
            Clear
          </button>
        </span>
      </p>
      <ul>
        {tops.map(({ name, ns, count: boxes, isExact }) => (
          <li key={`${name.name}\n${name.category}`}>
            <i style={{ background: spanColour(name) }} aria-hidden="true" />
            <span class="timeline-measure-name">{name.name}</span>
            <span>
              {isExact ? `${duration(ns)}, ${counted(boxes, "span")}` : `≈ ${duration(ns)}`}
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}

interface SpanPanelProps {
  mark: Mark | null;
  span: SpanDetail | null;
  isLive: boolean;
  error: string | null;
  highlight: string | null;
  onFit: (view: View) => void;
  onClose: () => void;
}

function SpanPanel({ mark, span, isLive, error, highlight, onFit, onClose }: SpanPanelProps) {
  const isDetail = span !== null && (mark === null || mark.id === span.id);
  const name = isDetail ? span.name : (mark?.name.name ?? "");
  const start = isDetail ? span.start : (mark?.start ?? 0);
  const length = isDetail ? span.duration_ns : mark ? mark.end - mark.start : null;
  const isOpen = isDetail ? span.duration_ns === null : Boolean(mark && mark.flags & OPEN);
  const facts: [string, string][] = [];
  if (mark && mark.count > 1) facts.push(["spans", `${count(mark.count)}, too short to draw alone; zoom in to see them`]);
  const shownLength = length ?? (mark ? mark.end - mark.start : null);
  if (shownLength !== null) {
    const text = duration(shownLength);
    facts.push(["duration", !isOpen ? text : isLive ? `${text} so far` : `open for ${text} when the process ended`]);
  }
  facts.push(["start", timeText(start, 1e3)]);
  if (isDetail) {
    if (span.step !== null) facts.push(["step", count(span.step)]);
    if (span.epoch !== null) facts.push(["epoch", count(span.epoch)]);
    facts.push(["rank", `${span.rank}`]);
    if (span.attempt) facts.push(["attempt", `${span.attempt}`]);
    facts.push(["process", span.process], ["thread", span.thread]);
    if (span.category) facts.push(["category", span.category]);
    if (span.status && span.status !== "ok") facts.push(["status", span.status]);
  } else if (mark) {
    facts.push(["lane", mark.label]);
    if (mark.name.phase) facts.push(["phase", mark.name.phase]);
  }
  const end = mark?.end ?? start + (length ?? 0);
  return (
    <section class="span-panel" aria-label={`Span ${name}`}>
      <div class="span-panel-head">
        <h2>{name}</h2>
        <button type="button" class="secondary" aria-label="Close" title="Close (Esc)" onClick={onClose}>
          ×
        </button>
      </div>
      {error && <Trouble error={error} />}
      <dl class="facts-list">
        {facts.map(([term, text]) => (
          <div key={term}>
            <dt>{term}</dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
      <p class="span-panel-buttons">
        <button type="button" class="secondary" onClick={() => onFit({ start, end })}>
          Zoom to it
        </button>
        <button type="button" class="secondary" aria-pressed={highlight === name} onClick={() => setParams({ name: highlight === name ? null : name })}>
          {highlight === name ? "Show all names" : "Highlight this name"}
        </button>
      </p>
      {isDetail && span.path.length > 0 && (
        <>
          <h3>Path</h3>
          <p class="span-path">{span.path.join(" › ")}</p>
        </>
      )}
      {isDetail && Object.keys(span.attributes).length > 0 && (
        <>
          <h3>Attributes</h3>
          <Attributes values={span.attributes} />
        </>
      )}
      {isDetail && span.events.length > 0 && (
        <>
          <h3>Events</h3>
          <ol class="span-events">
            {span.events.map((event, i) => (
              <li key={i}>
                <span class="span-event-time">+{duration(event.time - span.start)}</span> <strong>{event.name}</strong>
                {Object.keys(event.attributes).length > 0 && <Attributes values={event.attributes} />}
              </li>
            ))}
          </ol>
        </>
      )}
    </section>
  );
}

function Attributes({ values }: { values: Record<string, unknown> }) {
  return (
    <dl class="facts-list">
      {Object.entries(values).map(([key, value]) => (
        <div key={key}>
          <dt>{key}</dt>
          <dd>{plain(value)}</dd>
        </div>
      ))}
    </dl>
  );
}

interface SearchPanelProps {
  run: string;
  text: string;
  chosen: number | null;
  highlight: string | null;
  onPick: (hit: SpanHit) => void;
}

function SearchPanel({ run, text, chosen, highlight, onPick }: SearchPanelProps) {
  const { data, error, loading } = useAnswer<SpanSearch>(`/api/runs/${encodeURIComponent(run)}/spans`, { q: text, limit: 200 });
  return (
    <section class="search-panel" aria-label="Search results">
      <div class="span-panel-head">
        <h2>Spans named “{text}”</h2>
        <button type="button" class="secondary" aria-label="End the search" onClick={() => setParams({ q: null, name: null })}>
          ×
        </button>
      </div>
      {error && <Trouble error={error} />}
      {!data && loading && <Loading height={120} label="Searching" />}
      {data && data.hits.length === 0 && <p class="muted">No span has this in its name.</p>}
      {data && data.stats.length > 0 && (
        <div class="table-box" tabIndex={0} role="region" aria-label="Statistics by name">
          <table class="data">
            <thead>
              <tr>
                <th scope="col">Name</th>
                <th scope="col" class="number">Spans</th>
                <th scope="col" class="number">Total</th>
                <th scope="col" class="number" title="Median: half of the spans are shorter">p50</th>
                <th scope="col" class="number">Max</th>
              </tr>
            </thead>
            <tbody>
              {data.stats.map((line) => (
                <tr key={line.name}>
                  <td>
                    <button
                      type="button"
                      class="link-button"
                      aria-pressed={highlight === line.name}
                      title="Highlight all spans of this name"
                      onClick={() => setParams({ name: highlight === line.name ? null : line.name })}
                    >
                      {line.name}
                    </button>
                  </td>
                  <td class="number">{count(line.count)}</td>
                  <td class="number">{duration(line.total_ns)}</td>
                  <td class="number">{duration(line.p50_ns)}</td>
                  <td class="number">{duration(line.max_ns)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {data && data.hits.length > 0 && (
        <>
          <h3>
            {data.more ? `The first ${count(data.hits.length)}` : counted(data.hits.length, "span")}
          </h3>
          <ul class="hits">
            {data.hits.map((hit) => (
              <li key={hit.id}>
                <button type="button" aria-current={hit.id === chosen ? "true" : undefined} onClick={() => onPick(hit)}>
                  <span class="hit-name">{hit.name}</span>
                  <span class="hit-time">{hit.duration_ns === null ? "open" : duration(hit.duration_ns)}</span>
                  <span class="hit-place">
                    {hit.step !== null ? `step ${count(hit.step)} · ` : ""}rank {hit.rank} · {hit.thread} · at {timeText(hit.start, 1e6)}
                    {hit.status && hit.status !== "ok" ? ` · ${hit.status}` : ""}
                  </span>
                </button>
              </li>
            ))}
          </ul>
        </>
      )}
    </section>
  );
}

function TopTable({ tops, view, lanes }: { tops: Top[]; view: View; lanes: number }) {
  const whole = (view.end - view.start) * Math.max(1, lanes);
  return (
    <details class="timeline-table" open>
      <summary>Spans in view, by name</summary>
      <p class="muted">
        Time between {timeText(view.start, 1e6)} and {timeText(view.end, 1e6)}, summed over {counted(lanes, "lane")}. Spans inside
        others count in both. ≈: contains boxes of several short spans, which count for the longest of them; zoom in for exact values.
      </p>
      <div class="table-box" tabIndex={0} role="region" aria-label="Spans in view">
        <table class="data">
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col">Phase</th>
              <th scope="col" class="number">Spans</th>
              <th scope="col" class="number">Time</th>
              <th scope="col" class="number">Share of lanes</th>
            </tr>
          </thead>
          <tbody>
            {tops.slice(0, 40).map(({ name, ns, count: boxes, isExact }) => (
              <tr key={`${name.name}\n${name.category}`}>
                <td>
                  <i class="swatch" style={{ background: spanColour(name) }} aria-hidden="true" />
                  {name.name}
                </td>
                <td>{name.phase ?? ""}</td>
                <td class="number">{isExact ? count(boxes) : ""}</td>
                <td class="number">
                  {isExact ? "" : "≈ "}
                  {duration(ns)}
                </td>
                <td class="number">
                  {isExact ? "" : "≈ "}
                  {percent(ns / whole)}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}

function Keys() {
  const keys: [string, string][] = [
    ["wheel, pinch, W S, + −", "zoom"],
    ["drag, A D, shift + arrows", "move"],
    ["arrows, Enter", "go from span to span, open one"],
    ["F, double click", "zoom to the span"],
    ["shift + drag, or drag on the axis", "measure a range"],
    ["alt + wheel", "scroll the lanes"],
    ["0", "whole run"],
    ["Esc", "clear"],
  ];
  return (
    <details class="timeline-table">
      <summary>Keys and mouse</summary>
      <dl class="facts-list timeline-keys">
        {keys.map(([key, text]) => (
          <div key={key}>
            <dt>{key}</dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
    </details>
  );
}
