// The list of runs: sort, filter, group, choose columns, select some to compare.

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useAnswer } from "../api";
import { count, counted, date, duration, exactDate, number, percent, plain, shortId } from "../format";
import { useLive } from "../live";
import { Empty, Loading, Trouble } from "../parts/empty";
import { Findings, StatusMark, Tag } from "../parts/marks";
import { Menu } from "../parts/menu";
import { Sparkline } from "../parts/sparkline";
import { TableBox } from "../parts/table_box";
import { href, navigate, setParams, useRoute, useRouteList, useRouteParam } from "../router";
import type { RunList, RunSummary, Value } from "../types";

/** Heights of rows, as in views.css. On a narrow screen, the cells of a run are below its name. */
const ROW = 56;
const NARROW_ROW = 82;
const NARROW_LINE = 20;
const NAME_WIDTH = 260;
const GROUP_ROW = 36;
const narrow = window.matchMedia("(max-width: 640px)");
/** Runs that the server compares at most. */
export const MOST_COMPARED = 20;
/** Rows drawn above and below the screen, and how many are added at a time. */
const AROUND = 12;
const STRIDE = 8;

interface Column {
  key: string;
  title: string;
  /** Explains the title. */
  hint?: string;
  isNumber: boolean;
  width: number;
  /** The value to sort by; null sorts last. */
  value: (run: RunSummary) => number | string | null;
  cell: (run: RunSummary) => ComponentChildren;
}

const SEVERITY_WEIGHTS = { critical: 1e6, warning: 1e3, note: 1 };

const FIXED: Column[] = [
  {
    key: "findings",
    title: "Findings",
    isNumber: false,
    width: 124,
    value: (run) =>
      run.findings &&
      run.findings.critical * SEVERITY_WEIGHTS.critical +
        run.findings.warning * SEVERITY_WEIGHTS.warning +
        run.findings.note,
    cell: (run) => <Findings counts={run.findings} />,
  },
  {
    key: "loss",
    title: "Loss",
    isNumber: true,
    width: 150,
    value: (run) => sortable(run.loss?.last),
    cell: (run) =>
      run.loss && (
        <span class="loss-cell" title={`${run.loss.name}: last ${number(run.loss.last)}, best ${number(run.loss.best)}`}>
          <Sparkline values={run.loss.curve} />
          <span class={typeof run.loss.last === "string" ? "not-finite" : ""}>{number(run.loss.last)}</span>
        </span>
      ),
  },
  {
    key: "step",
    title: "Step",
    isNumber: true,
    width: 76,
    value: (run) => run.step,
    cell: (run) => run.step !== null && count(run.step),
  },
  {
    key: "duration",
    title: "Duration",
    isNumber: true,
    width: 100,
    value: (run) => run.duration_ns,
    cell: (run) => run.duration_ns !== null && duration(run.duration_ns),
  },
  {
    key: "goodput",
    title: "Goodput",
    hint: "Goodput: the share of the wall time that made progress",
    isNumber: true,
    width: 76,
    value: (run) => run.goodput,
    cell: (run) => run.goodput !== null && percent(run.goodput),
  },
  {
    key: "started",
    title: "Started",
    isNumber: false,
    width: 140,
    value: (run) => run.created_ms,
    cell: (run) => run.created_ms !== null && <span title={exactDate(run.created_ms)}>{date(run.created_ms)}</span>,
  },
];

const NAME: Column = {
  key: "name",
  title: "Run",
  isNumber: false,
  width: 320,
  value: (run) => run.name.toLowerCase(),
  cell: () => null,
};

const STATUS: Column = { ...NAME, key: "status", title: "Status", value: (run) => run.status };

function sortable(value: Value | undefined): number | null {
  if (value === "inf") return Number.MAX_VALUE;
  if (value === "-inf") return -Number.MAX_VALUE;
  return typeof value === "number" ? value : null;
}

/** A column for a setting ("config:lr") or a metric ("metric:val/loss"). */
function userColumn(key: string): Column | null {
  const [kind, ...rest] = key.split(":");
  const name = rest.join(":");
  if (kind === "config") {
    const value = (run: RunSummary) => run.config[name] ?? null;
    return {
      key,
      title: name,
      isNumber: false,
      width: 116,
      value: (run) => {
        const found = value(run);
        return typeof found === "boolean" ? String(found) : found;
      },
      cell: (run) => {
        const found = value(run);
        // Whole numbers stay as they are: a seed has no commas.
        return typeof found !== "number" ? plain(found) : Number.isInteger(found) ? String(found) : number(found, 6);
      },
    };
  }
  if (kind !== "metric") return null;
  return {
    key,
    title: name,
    isNumber: true,
    width: 116,
    value: (run) => sortable(run.metrics[name]),
    cell: (run) => number(run.metrics[name]),
  };
}

export function RunsView() {
  const { data, error } = useAnswer<RunList>("/api/runs");
  useLive("");
  useEffect(() => {
    document.title = "Runs · stepwell";
  }, []);
  return (
    <div class="page runs-page">
      <div class="page-head">
        <h1>Runs</h1>
        {data && <p class="muted mono ellipsis" title={data.folder}>{data.folder}</p>}
      </div>
      {error && <Trouble error={error} />}
      {!data ? !error && <Loading height={600} label="Loading runs" /> : data.runs.length ? <List list={data} /> : <NoRuns folder={data.folder} />}
    </div>
  );
}

function NoRuns({ folder }: { folder: string }) {
  return (
    <Empty
      title="There are no runs in this folder."
      code={'import stepwell\n\nwith stepwell.init("my training") as run:\n    run.log({"train/loss": 0.5}, step=0)'}
    >
      stepwell looked in <code>{folder}</code>. Record a first run with these lines; it appears here by itself.
    </Empty>
  );
}

function List({ list }: { list: RunList }) {
  const [text, setText] = useRouteParam("q");
  const [status, setStatus] = useRouteParam("status");
  const [group, setGroup] = useRouteParam("group");
  const [sort] = useRouteParam("sort", "-started");
  const [extra, setExtra] = useRouteList("col");
  const [chosen, setChosen] = useRouteList("run");
  const columns = useMemo(
    () => [...FIXED, ...extra.map(userColumn).filter((column): column is Column => column !== null)],
    [extra],
  );
  const shown = useMemo(() => filtered(list.runs, text, status), [list, text, status]);
  const sorted = useMemo(() => ordered(shown, [NAME, STATUS, ...columns], sort), [shown, columns, sort]);
  const rows = useMemo(() => grouped(sorted, group), [sorted, group]);
  const statuses = useMemo(() => tally(list.runs.map((run) => run.status)), [list]);
  const tags = useMemo(() => [...new Set(list.runs.flatMap((run) => run.tags))].sort(), [list]);
  const isFiltered = text !== "" || status !== "";
  return (
    <>
      <div class="toolbar">
        <label class="search">
          <span class="visually-hidden">Filter runs</span>
          <input
            type="search"
            placeholder="Filter by name, tag or setting (lr=0.1)"
            value={text}
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </label>
        <label class="field">
          Status
          <select value={status} onChange={(event) => setStatus(event.currentTarget.value)}>
            <option value="">all</option>
            {[...statuses].map(([name, amount]) => (
              <option key={name} value={name}>
                {name} ({amount})
              </option>
            ))}
          </select>
        </label>
        <label class="field">
          Group by
          <select value={group} onChange={(event) => setGroup(event.currentTarget.value)}>
            <option value="">nothing</option>
            <option value="name">name</option>
            {tags.length > 0 && <option value="tag">tag</option>}
            {list.config_keys.map((key) => (
              <option key={key} value={`config:${key}`}>
                {key}
              </option>
            ))}
          </select>
        </label>
        <label class="field narrow-only">
          Sort by
          <select value={sort} onChange={(event) => setParams({ sort: event.currentTarget.value })}>
            {[NAME, STATUS, ...columns].flatMap(({ key, title }) => [
              <option key={key} value={key}>
                {title} ↑
              </option>,
              <option key={`-${key}`} value={`-${key}`}>
                {title} ↓
              </option>,
            ])}
          </select>
        </label>
        <Menu label={extra.length ? `Columns (${extra.length})` : "Columns"}>
          <ColumnPicker list={list} chosen={extra} choose={setExtra} />
        </Menu>
        <p class="toolbar-note" role="status">
          {isFiltered ? `${count(shown.length)} of ${counted(list.runs.length, "run")}` : counted(list.runs.length, "run")}
          {list.pending > 0 && ` · analysing ${count(list.pending)}`}
        </p>
        <span class="toolbar-end">
          {chosen.length >= MOST_COMPARED && (
            <span class="muted" role="status">
              {count(MOST_COMPARED)} runs at most
            </span>
          )}
          {chosen.length > 0 && (
            <button type="button" class="link-button" onClick={() => setChosen([])}>
              Clear
            </button>
          )}
          <button
            type="button"
            class="primary"
            disabled={chosen.length < 2 || chosen.length > MOST_COMPARED}
            onClick={() => navigate(href(["compare"], { run: chosen }))}
          >
            {chosen.length < 2 ? "Compare runs" : `Compare ${chosen.length} runs`}
          </button>
        </span>
      </div>
      {shown.length === 0 ? (
        <Empty title="No run matches.">
          <button type="button" class="link-button" onClick={() => setParams({ q: null, status: null })}>
            Show all runs
          </button>
        </Empty>
      ) : (
        <Table rows={rows} columns={columns} sort={sort} chosen={chosen} choose={setChosen} />
      )}
    </>
  );
}

function ColumnPicker({ list, chosen, choose }: { list: RunList; chosen: string[]; choose: (keys: string[]) => void }) {
  const [text, setText] = useState("");
  const sections: [string, string, string[]][] = [
    ["Metrics, last value", "metric", list.metric_names],
    ["Settings", "config", list.config_keys],
  ];
  return (
    <div class="picker">
      <input
        type="search"
        aria-label="Search columns"
        placeholder="Search columns"
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      {sections.map(([title, kind, names]) => {
        const fitting = names.filter((name) => name.toLowerCase().includes(text.toLowerCase())).slice(0, 200);
        return (
          fitting.length > 0 && (
            <fieldset key={kind}>
              <legend>{title}</legend>
              {fitting.map((name) => {
                const key = `${kind}:${name}`;
                return (
                  <label key={key} class="check">
                    <input
                      type="checkbox"
                      checked={chosen.includes(key)}
                      onChange={(event) =>
                        choose(event.currentTarget.checked ? [...chosen, key] : chosen.filter((each) => each !== key))
                      }
                    />
                    <span class="ellipsis">{name}</span>
                  </label>
                );
              })}
            </fieldset>
          )
        );
      })}
      {list.metric_names.length + list.config_keys.length === 0 && <p class="muted">No run has settings or metrics.</p>}
    </div>
  );
}

// Filter, sort, group

function filtered(runs: RunSummary[], text: string, status: string): RunSummary[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return runs.filter((run) => (!status || run.status === status) && words.every((word) => matches(run, word)));
}

/** A word is part of a name, id, tag, or setting; "lr=0.1" is one setting. */
function matches(run: RunSummary, word: string): boolean {
  const [key = "", wanted] = word.split("=", 2);
  if (wanted !== undefined) {
    return Object.entries(run.config).some(
      ([name, value]) => (name.toLowerCase() === key || name.toLowerCase().endsWith(`.${key}`)) && String(value).toLowerCase() === wanted,
    );
  }
  return (
    run.name.toLowerCase().includes(word) ||
    run.id.toLowerCase().includes(word) ||
    run.tags.some((tag) => tag.toLowerCase().includes(word)) ||
    Object.entries(run.config).some(
      ([name, value]) => name.toLowerCase().includes(word) || String(value).toLowerCase().includes(word),
    )
  );
}

function ordered(runs: RunSummary[], columns: Column[], sort: string): RunSummary[] {
  const isDown = sort.startsWith("-");
  const column = columns.find(({ key }) => key === sort.replace(/^-/, "")) ?? NAME;

  const sign = isDown ? -1 : 1;
  return runs
    .map((run, place) => ({ run, place, value: column.value(run) }))
    .sort((a, b) => {
      if (a.value === null || b.value === null) {
        return a.value === b.value ? a.place - b.place : a.value === null ? 1 : -1;
      }
      if (typeof a.value === "number" && typeof b.value === "number") return sign * (a.value - b.value) || a.place - b.place;
      return sign * String(a.value).localeCompare(String(b.value), undefined, { numeric: true }) || a.place - b.place;
    })
    .map(({ run }) => run);
}

type Row = { kind: "run"; key: string; run: RunSummary } | { kind: "group"; key: string; title: string; size: number };

function grouped(runs: RunSummary[], by: string): Row[] {
  if (!by) return runs.map((run) => ({ kind: "run", key: run.id, run }));
  const groups = new Map<string, RunSummary[]>();
  for (const run of runs) {
    for (const title of groupsOf(run, by)) {
      const members = groups.get(title);
      if (members) members.push(run);
      else groups.set(title, [run]);
    }
  }
  return [...groups].flatMap(([title, members]) => [
    { kind: "group" as const, key: `group ${title}`, title, size: members.length },
    ...members.map((run) => ({ kind: "run" as const, key: `${title} ${run.id}`, run })),
  ]);
}

function groupsOf(run: RunSummary, by: string): string[] {
  if (by === "name") return [run.name];
  if (by === "tag") return run.tags.length ? run.tags : ["no tag"];
  const key = by.slice("config:".length);
  const value = run.config[key];
  return [value === undefined ? `${key} not set` : `${key} = ${String(value)}`];
}

function tally(values: string[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return counts;
}

// The table. Only the rows on the screen are in the document; the others are space above and below.

interface TableProps {
  rows: Row[];
  columns: Column[];
  sort: string;
  chosen: string[];
  choose: (ids: string[]) => void;
}

function Table({ rows, columns, sort, chosen, choose }: TableProps) {
  const body = useRef<HTMLTableSectionElement>(null);
  const isNarrow = useNarrow();
  const more = columns.length - FIXED.length;
  const height = isNarrow ? NARROW_ROW + NARROW_LINE * Math.ceil(more / 2) : ROW;
  const width = columns.reduce((sum, column) => sum + column.width, 34 + NAME_WIDTH);
  const tops = useMemo(() => {
    const all = [0];
    for (const row of rows) all.push((all.at(-1) ?? 0) + (row.kind === "run" ? height : GROUP_ROW));
    return all;
  }, [rows, height]);
  const [first, last] = useWindow(body, tops);
  const selected = useMemo(() => new Set(chosen), [chosen]);
  const names = useMemo(() => tally(rows.flatMap((row) => (row.kind === "run" ? [row.run.name] : []))), [rows]);
  const visible = rows.slice(first, last);
  const toggle = (id: string, on: boolean): void => choose(on ? [...chosen, id] : chosen.filter((each) => each !== id));
  return (
    <TableBox label="Runs">
      <table class="runs" role="table" style={isNarrow ? {} : { minWidth: `${width}px` }} aria-rowcount={rows.length + 1}>
        <colgroup>
          <col class="col-check" />
          <col class="col-name" />
          {columns.map(({ key, width }) => (
            <col key={key} style={{ width: `${width}px` }} />
          ))}
        </colgroup>
        <thead role="rowgroup">
          <tr role="row">
            <td role="cell" class="col-check" />
            <Heading column={NAME} sort={sort} also={STATUS} />
            {columns.map((column) => (
              <Heading key={column.key} column={column} sort={sort} />
            ))}
          </tr>
        </thead>
        <tbody role="rowgroup" ref={body}>
          {first > 0 && <Space height={tops[first] ?? 0} />}
          {visible.map((row, place) =>
            row.kind === "group" ? (
              <tr key={row.key} role="row" class="group-row" aria-rowindex={first + place + 2}>
                <th role="rowheader" colSpan={columns.length + 2} scope="rowgroup">
                  {row.title} <span class="muted">{counted(row.size, "run")}</span>
                </th>
              </tr>
            ) : (
              <RunRow
                key={row.key}
                run={row.run}
                columns={columns}
                height={height}
                index={first + place + 2}
                isTwice={(names.get(row.run.name) ?? 0) > 1}
                isChosen={selected.has(row.run.id)}
                isFull={selected.size >= MOST_COMPARED}
                choose={(on) => toggle(row.run.id, on)}
              />
            ),
          )}
          {last < rows.length && <Space height={(tops[rows.length] ?? 0) - (tops[last] ?? 0)} />}
        </tbody>
      </table>
    </TableBox>
  );
}

function useNarrow(): boolean {
  const [isNarrow, set] = useState(narrow.matches);
  useEffect(() => {
    const change = (): void => set(narrow.matches);
    narrow.addEventListener("change", change);
    return () => narrow.removeEventListener("change", change);
  }, []);
  return isNarrow;
}

function Space({ height }: { height: number }) {
  return <tr class="space" aria-hidden="true" style={{ height: `${height}px` }} />;
}

function Heading({ column, sort, also }: { column: Column; sort: string; also?: Column }) {
  const sortButton = ({ key, title }: Column) => {
    const isDown = sort === `-${key}`;
    const isUp = sort === key;
    return (
      <button
        type="button"
        class={isUp || isDown ? "sort sorted" : "sort"}
        onClick={() => {
          const next = isDown ? key : isUp ? `-${key}` : key === "started" || key === "findings" ? `-${key}` : key;
          setParams({ sort: next === "-started" ? null : next });
        }}
      >
        {title}
        <span aria-hidden="true">{isDown ? " ↓" : isUp ? " ↑" : ""}</span>
      </button>
    );
  };
  const key = sort.replace(/^-/, "");
  const isSorted = key === column.key || key === also?.key;
  return (
    <th
      role="columnheader"
      scope="col"
      class={column.isNumber ? "number" : ""}
      title={column.hint ?? column.title}
      aria-sort={isSorted ? (sort.startsWith("-") ? "descending" : "ascending") : "none"}
    >
      {sortButton(column)}
      {also && <span class="also"> · {sortButton(also)}</span>}
    </th>
  );
}

interface RunRowProps {
  run: RunSummary;
  columns: Column[];
  height: number;
  index: number;
  /** Another run has the same name. */
  isTwice: boolean;
  isChosen: boolean;
  /** As many runs are chosen as can be compared. */
  isFull: boolean;
  choose: (on: boolean) => void;
}

function RunRow({ run, columns, height, index, isTwice, isChosen, isFull, choose }: RunRowProps) {
  const address = href(["run", run.id]);
  const latest = useRef(choose);
  latest.current = choose;
  // The same element as before is not compared again, which keeps scrolling smooth.
  return useMemo(() => (
    <tr
      role="row"
      aria-rowindex={index}
      class={isChosen ? "run-row chosen" : "run-row"}
      style={{ height: `${height}px` }}
      onClick={(event) => {
        // The row is one large link; its parts that do something of their own stay.
        if ((event.target as Element).closest("a, input, button, label")) return;
        if (window.getSelection()?.toString()) return;
        navigate(address);
      }}
    >
      <td role="cell" class="col-check">
        <label class="row-check">
          <input
            type="checkbox"
            checked={isChosen}
            disabled={isFull && !isChosen}
            title={isFull && !isChosen ? `${MOST_COMPARED} runs at most can be compared` : undefined}
            aria-label={`Select ${run.name}`}
            onChange={(event) => latest.current(event.currentTarget.checked)}
          />
        </label>
      </td>
      <th role="rowheader" scope="row">
        <div class="run-line">
          <StatusMark status={run.status} />
          <a href={address} class="run-name" title={`${run.name} (${run.id})`}>
            {run.name}
          </a>
          {isTwice && <span class="run-id">{shortId(run.id)}</span>}
          <span class="run-status">{run.status_text}</span>
          {run.tags.slice(0, 2).map((tag) => (
            <Tag key={tag} text={tag} />
          ))}
        </div>
        <p class="run-headline" title={run.headline ?? undefined}>
          {run.headline ?? (!isTwice && <span class="muted mono">{run.id}</span>)}
        </p>
      </th>
      {columns.map((column) => (
        <td key={column.key} role="cell" class={`cell-${column.key.split(":", 1)[0]}${column.isNumber ? " number" : ""}`} data-title={column.title}>
          {column.cell(run)}
        </td>
      ))}
    </tr>
  ), [run, columns, height, index, isTwice, isChosen, isFull]);
}

/** The range of rows to draw: those on the screen and a few around them. */
function useWindow(body: { current: HTMLElement | null }, tops: number[]): [number, number] {
  const [range, set] = useState<[number, number]>([0, 40]);
  useEffect(() => {
    let frame = 0;
    const measure = (): void => {
      frame = 0;
      const top = body.current?.getBoundingClientRect().top ?? 0;
      const find = (y: number): number => {
        let low = 0;
        let high = tops.length - 1;
        while (low < high) {
          const middle = (low + high) >> 1;
          if ((tops[middle] as number) < y) low = middle + 1;
          else high = middle;
        }
        return low;
      };
      const first = Math.floor(Math.max(0, find(-top) - AROUND) / STRIDE) * STRIDE;
      const last = Math.min(tops.length - 1, Math.ceil((find(-top + window.innerHeight) + AROUND) / STRIDE) * STRIDE);
      set((before) => (before[0] === first && before[1] === last ? before : [first, last]));
    };
    const schedule = (): void => {
      frame ||= requestAnimationFrame(measure);
    };
    measure();
    window.addEventListener("scroll", schedule, { passive: true });
    window.addEventListener("resize", schedule);
    return () => {
      cancelAnimationFrame(frame);
      window.removeEventListener("scroll", schedule);
      window.removeEventListener("resize", schedule);
    };
  }, [tops]);
  useRoute();
  return [Math.min(range[0], Math.max(0, tops.length - 1)), Math.min(range[1], tops.length - 1)];
}
