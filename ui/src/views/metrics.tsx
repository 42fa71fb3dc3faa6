// All metrics of a run as charts, grouped by prefix, with one cursor and one zoom.

import { useEffect, useMemo, useState } from "preact/hooks";
import { isReport, useAnswer } from "../api";
import { MetricChart, type MetricChartProps } from "../charts/line";
import { runColour } from "../colours";
import { count, counted, date, general, shortId } from "../format";
import { Empty, Loading, Trouble } from "../parts/empty";
import { Menu } from "../parts/menu";
import { type Range, setParams, setRange, useRoute, useRouteList, useRouteParam, useRouteRange } from "../router";
import type { Axis, MetricInfo, MetricList, RunList } from "../types";
import type { ViewProps } from "../view";

const SPLITS = ["train", "training", "val", "valid", "validation", "test", "eval", "holdout", "dev"];
const SYSTEM = "system";
/** Groups are open at first until they have about this many charts. */
const OPEN_FIRST = 12;
const MOST_IN_CHART = 12;

interface Chart {
  title: string;
  names: string[];
}

interface Group {
  key: string;
  title: string;
  charts: Chart[];
}

export function MetricsView({ run, head }: ViewProps) {
  const { data, error } = useAnswer<MetricList>(`/api/runs/${encodeURIComponent(run)}/metrics`);
  if (error && !data) return <Trouble error={error} />;
  if (!data) return <Loading height={480} label="Loading metrics" />;
  if (!data.metrics.length) {
    return (
      <Empty title="No metrics were recorded." code={'run.log({"train/loss": loss})'}>
        Log numbers at each step, and they are drawn here:
      </Empty>
    );
  }
  return <Charts run={run} name={head.name} ranks={head.ranks} list={data} />;
}

function Charts({ run, name, ranks, list }: { run: string; name: string; ranks: number; list: MetricList }) {
  const { query } = useRoute();
  const [text] = useRouteParam("q");
  const [others] = useRouteList("with");
  const [folded, setFolded] = useRouteList("fold");
  const axes = isReport ? (["step"] as Axis[]) : list.axes;
  const x = axes.find((axis) => axis === query.get("x")) ?? "step";
  const by = (["rank", "spread"] as const).find((way) => way === query.get("by")) ?? "mean";
  const smooth = Math.min(0.99, Math.max(0, Number(query.get("smooth")) || 0));
  const log = query.get("log") === "1";
  const [range] = useRouteRange();
  const runList = useAnswer<RunList>(others.length ? "/api/runs" : null);
  const runNames = useMemo(() => {
    const names: Record<string, string> = { [run]: name };
    for (const each of runList.data?.runs ?? []) names[each.id] = each.name;
    // Runs of the same name are told apart by the end of their ids.
    const all = [run, ...others];
    return Object.fromEntries(
      all.map((id) => {
        const own = names[id] ?? id;
        const isTwice = all.some((other) => other !== id && (names[other] ?? other) === own);
        return [id, isTwice ? `${own} ${shortId(id)}` : own];
      }),
    );
  }, [run, name, others, runList.data]);
  // The run itself comes first, and keeps the colour that it has alone.
  runColour(run);
  const groups = useMemo(() => groupsOf(list.metrics), [list]);
  const best = useMemo(() => Object.fromEntries(list.metrics.map((metric) => [metric.name, metric])), [list]);
  const shown = useMemo(() => matching(groups, text), [groups, text]);
  const amount = shown.reduce((sum, { charts }) => sum + charts.length, 0);
  const first = useMemo(() => openFirst(groups), [groups]);
  const isOpenFirst = ({ key }: Group): boolean => text !== "" || first.has(key);
  const isOpen = (group: Group): boolean => isOpenFirst(group) !== folded.includes(group.key);
  const openAll = (on: boolean): void => setFolded(shown.filter((group) => isOpenFirst(group) !== on).map(({ key }) => key));
  return (
    <div class="metrics">
      <Tools run={run} axes={axes} ranks={ranks} amount={amount} />
      {shown.length > 1 && (
        <p class="group-tools">
          <button type="button" class="link-button" disabled={shown.every(isOpen)} onClick={() => openAll(true)}>
            Open all
          </button>
          <button type="button" class="link-button" disabled={!shown.some(isOpen)} onClick={() => openAll(false)}>
            Close all
          </button>
        </p>
      )}
      {amount === 0 && (
        <Empty title="No metric matches.">
          <button type="button" class="link-button" onClick={() => setParams({ q: null })}>
            Show all metrics
          </button>
        </Empty>
      )}
      {shown.map((group) => (
        <section key={group.key} aria-label={group.title}>
          <h2 class="group-head">
            <button
              type="button"
              aria-expanded={isOpen(group)}
              onClick={() =>
                setFolded(folded.includes(group.key) ? folded.filter((key) => key !== group.key) : [...folded, group.key])
              }
            >
              <svg viewBox="0 0 10 10" width="10" height="10" aria-hidden="true">
                <path d="M3 1.500 6.500 5 3 8.500" fill="none" stroke="currentColor" stroke-width="1.500" />
              </svg>
              {group.title}
              <span class="muted">{counted(group.charts.length, "chart")}</span>
            </button>
          </h2>
          {isOpen(group) && (
            <div class="charts">
              {group.charts.map((chart) => (
                <div class="card" key={chart.title}>
                  <MetricChart
                    runs={[run, ...others]}
                    runNames={runNames}
                    names={chart.names}
                    title={chart.title}
                    x={isReport && group.key === SYSTEM ? "time" : x}
                    by={by}
                    log={log}
                    smooth={smooth}
                    range={range}
                    onRange={setRange}
                    hasReset={false}
                    best={best as MetricChartProps["best"]}
                    syncKey="metrics"
                  />
                </div>
              ))}
            </div>
          )}
        </section>
      ))}
    </div>
  );
}

// Groups

/** Charts by prefix. Metrics of several splits share a chart: train/loss and val/loss are "loss". */
export function groupsOf(metrics: MetricInfo[]): Group[] {
  const splits = new Map<string, string[]>();
  const others = new Map<string, string[]>();
  const prefixes = new Set<string>();
  for (const { name } of metrics) {
    const split = splitOf(name);
    if (split) {
      prefixes.add(split[0]);
      push(splits, split[1], name);
    } else {
      push(others, name.includes("/") ? (name.split("/", 1)[0] ?? "") : "", name);
    }
  }
  const groups: Group[] = [];
  if (splits.size) {
    const order = (title: string): string => (/loss/i.test(title) ? `0${title}` : `1${title}`);
    const charts = [...splits]
      .sort(([a], [b]) => (order(a) < order(b) ? -1 : 1))
      .flatMap(([title, names]) => inParts(title, names.sort((a, b) => rankOf(a) - rankOf(b))));
    const title = [...prefixes].sort((a, b) => SPLITS.indexOf(a) - SPLITS.indexOf(b)).join(" and ");
    groups.push({ key: "splits", title, charts });
  }
  const rest = [...others].sort(([a], [b]) => orderOf(a) - orderOf(b) || (a < b ? -1 : 1));
  for (const [prefix, names] of rest) {
    const charts = names.sort(naturally).map((name) => ({ title: name, names: [name] }));
    groups.push({ key: prefix || "other", title: prefix || (rest.length + groups.length > 1 ? "other metrics" : "all metrics"), charts });
  }
  return groups;
}

/** Keys of the groups that are open at first. Those of the system are below, and closed if there are others. */
function openFirst(groups: Group[]): Set<string> {
  const keys = new Set<string>();
  let charts = 0;
  for (const group of groups) {
    if (charts >= OPEN_FIRST || (group.key === SYSTEM && groups.length > 1)) continue;
    keys.add(group.key);
    charts += group.charts.length;
  }
  return keys;
}

const naturally = new Intl.Collator("en", { numeric: true }).compare;

function orderOf(prefix: string): number {
  return prefix === "" ? 0 : prefix === SYSTEM ? 2 : 1;
}

function rankOf(name: string): number {
  return SPLITS.indexOf(splitOf(name)?.[0] ?? "");
}

/** "val/top1/accuracy" → ["val", "top1/accuracy"]; "val_loss" → ["val", "loss"]. */
function splitOf(name: string): [string, string] | null {
  const match = /^([A-Za-z]+)[/_.](.+)$/.exec(name);
  const split = match?.[1]?.toLowerCase();
  if (!split || !match?.[2] || !SPLITS.includes(split)) return null;
  return [split, match[2]];
}

function push(map: Map<string, string[]>, key: string, value: string): void {
  const values = map.get(key);
  if (values) values.push(value);
  else map.set(key, [value]);
}

function inParts(title: string, names: string[]): Chart[] {
  if (names.length <= MOST_IN_CHART) return [{ title, names }];
  return names.map((name) => ({ title: name, names: [name] }));
}

function matching(groups: Group[], text: string): Group[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return groups;
  return groups
    .map((group) => ({
      ...group,
      charts: group.charts.filter(({ names }) =>
        names.some((name) => words.every((word) => name.toLowerCase().includes(word))),
      ),
    }))
    .filter(({ charts }) => charts.length > 0);
}

// Tools

const AXIS_TITLES: Record<Axis, string> = { step: "step", epoch: "epoch", samples: "samples", tokens: "tokens", time: "time" };

function Tools({ run, axes, ranks, amount }: { run: string; axes: Axis[]; ranks: number; amount: number }) {
  const [text, setText] = useRouteParam("q");
  const [given, setX] = useRouteParam("x", "step");
  const x = axes.find((axis) => axis === given) ?? "step";
  const [by, setBy] = useRouteParam("by", "mean");
  const [smooth, setSmooth] = useRouteParam("smooth", "0");
  const [log, setLog] = useRouteParam("log", "");
  const [others] = useRouteList("with");
  const [range] = useRouteRange();
  const weight = Number(smooth) || 0;
  return (
    <div class="toolbar sticky">
      <label class="search">
        <span class="visually-hidden">Search metrics</span>
        <input type="search" placeholder="Search metrics" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      {axes.length > 1 && (
        <label class="field">
          Over
          <select
            value={x}
            onChange={(event) => {
              setParams({ from: null, to: null });
              setX(event.currentTarget.value);
            }}
          >
            {axes.map((axis) => (
              <option key={axis} value={axis}>
                {AXIS_TITLES[axis]}
              </option>
            ))}
          </select>
        </label>
      )}
      {ranks > 1 && !isReport && (
        <label class="field">
          Ranks
          <select value={by} onChange={(event) => setBy(event.currentTarget.value)}>
            <option value="mean">mean</option>
            <option value="spread">mean and spread</option>
            <option value="rank">each rank</option>
          </select>
        </label>
      )}
      <label class="field">
        Smoothing
        <input
          type="range"
          min="0"
          max="0.99"
          step="0.01"
          value={weight}
          aria-valuetext={weight ? general(weight, 2) : "off"}
          onInput={(event) => setSmooth(String(Number(event.currentTarget.value)))}
        />
        <output class="slider-value">{weight ? general(weight, 2) : "off"}</output>
      </label>
      <label class="field check">
        <input type="checkbox" checked={log === "1"} onChange={(event) => setLog(event.currentTarget.checked ? "1" : "")} />
        Log scale
      </label>
      {!isReport && (
        <Menu label={others.length ? `Runs (${others.length + 1})` : "Add runs"}>
          <RunPicker run={run} />
        </Menu>
      )}
      <Window x={x} range={range} />
      <p class="toolbar-note" role="status">
        {text ? counted(amount, "chart") : ""}
      </p>
    </div>
  );
}

/** The window as numbers: the way to zoom without a mouse. */
function Window({ x, range }: { x: Axis; range: Range | null }) {
  const [from, to] = [textOf(range?.[0]), textOf(range?.[1])];
  const [texts, setTexts] = useState([from, to]);
  const [isWrong, setWrong] = useState(false);
  useEffect(() => {
    setTexts([from, to]);
    setWrong(false);
  }, [from, to]);
  if (x === "time") {
    return range ? (
      <button type="button" class="link-button" onClick={() => setRange(null)}>
        Reset zoom
      </button>
    ) : null;
  }
  const change = (): void => {
    const [first, last] = texts.map((text) => (text === "" ? null : Number(text)));
    const isReversed = first != null && last != null && first >= last;
    setWrong(isReversed);
    if (!isReversed) setParams({ from: first, to: last });
  };
  const input = (place: 0 | 1, label: string, placeholder: string) => (
    <input
      type="number"
      step="any"
      aria-label={label}
      aria-invalid={isWrong}
      placeholder={placeholder}
      value={texts[place]}
      onInput={(event) => setTexts(place === 0 ? [event.currentTarget.value, texts[1] ?? ""] : [texts[0] ?? "", event.currentTarget.value])}
      onChange={change}
    />
  );
  return (
    <fieldset class="field window">
      <legend class="visually-hidden">Window of {AXIS_TITLES[x]}</legend>
      From
      {input(0, `From ${x}`, "start")}
      to
      {input(1, `To ${x}`, "end")}
      {(range || isWrong) && (
        <button
          type="button"
          class="link-button"
          onClick={() => {
            setTexts(["", ""]);
            setWrong(false);
            setRange(null);
          }}
        >
          Reset
        </button>
      )}
      <span class="field-wrong" role="status">
        {isWrong ? "From must be less than to." : ""}
      </span>
    </fieldset>
  );
}

function textOf(value: number | null | undefined): string {
  return value == null ? "" : String(value);
}

const MOST_RUNS = 10;

function RunPicker({ run }: { run: string }) {
  const { data, error } = useAnswer<RunList>("/api/runs");
  const [text, setText] = useState("");
  const [others, setOthers] = useRouteList("with");
  if (error) return <Trouble error={error} />;
  const runs = (data?.runs ?? []).filter(
    ({ id, name }) => id !== run && `${name} ${id}`.toLowerCase().includes(text.toLowerCase()),
  );
  return (
    <div class="picker">
      <input type="search" aria-label="Search runs" placeholder="Search runs" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      <fieldset>
        <legend>Draw in the same charts ({count(MOST_RUNS)} at most)</legend>
        {runs.slice(0, 100).map(({ id, name, created_ms }) => {
          const isChosen = others.includes(id);
          return (
            <label key={id} class="check" title={id}>
              <input
                type="checkbox"
                checked={isChosen}
                disabled={!isChosen && others.length >= MOST_RUNS}
                onChange={(event) => setOthers(event.currentTarget.checked ? [...others, id] : others.filter((each) => each !== id))}
              />
              {isChosen && <span class="swatch" style={{ background: runColour(id) }} />}
              <span class="ellipsis">{name}</span>
              {runs.some((other) => other.id !== id && other.name === name) && <span class="run-id">{shortId(id)}</span>}
              <span class="muted">{created_ms !== null && date(created_ms)}</span>
            </label>
          );
        })}
        {data && runs.length === 0 && <p class="muted">There are no other runs.</p>}
      </fieldset>
    </div>
  );
}
