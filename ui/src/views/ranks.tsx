// Ranks of a run: which ones are slow, where and when, and what each of them is doing.

import { useMemo } from "preact/hooks";
import { isReport, useAnswer } from "../api";
import { Heatmap, medianScale, quantile, type CellRange } from "../charts/heatmap";
import { phaseColour } from "../colours";
import { count, counted, duration, fixed, percent, phaseTitle } from "../format";
import { Empty, Loading, Trouble } from "../parts/empty";
import { href, navigate, setParams, useRoute } from "../router";
import type { GridAnswer, Head, RankLine, RanksAnswer, StackLine } from "../types";
import type { ViewProps } from "../view";
import { rankRanges } from "./timeline";
import "./ranks.css";

const MOST_ROWS = 16;
const MOST_GROUPS = 40;

export function RanksView({ run, head }: ViewProps) {
  const { data, error } = useAnswer<RanksAnswer>(`/api/runs/${encodeURIComponent(run)}/ranks`);
  return (
    <div class="ranks-view">
      {error && <Trouble error={error} />}
      {data ? <Sentences answer={data} head={head} /> : !error && <Loading height={38} label="Loading the ranks" />}
      <GridPanel run={run} head={head} focus={data ? focusOf(data) : {}} />
      {data && <SkewTable run={run} lines={data.ranks} />}
      {data && <Stacks stacks={data.stacks} head={head} />}
    </div>
  );
}

function Sentences({ answer, head }: { answer: RanksAnswer; head: Head }) {
  const isAlone = head.ranks <= 1;
  if (!answer.hang && !answer.stragglers.length) {
    return (
      <p class="rank-sentence">
        {isAlone ? "This run has one rank, so there is nothing to compare it with." : "No rank is slower than the others."}
      </p>
    );
  }
  return (
    <ul class="rank-sentences">
      {answer.hang && <li class="rank-sentence tone-critical">{answer.hang}</li>}
      {answer.stragglers.map((sentence) => (
        <li key={sentence} class="rank-sentence tone-warning">
          {sentence}
        </li>
      ))}
    </ul>
  );
}

// Rank by step

interface Focus {
  phase?: string;
  attempt?: number;
}

/** Return where the map opens: at the first straggler. */
function focusOf({ focus, stragglers }: RanksAnswer): Focus {
  if (focus) return focus;
  const phase = /^Ranks? .+? (?:is|are) slow in (.+?) in (?:step|\d)/.exec(stragglers[0] ?? "")?.[1];
  return phase === undefined ? {} : { phase };
}

function GridPanel({ run, head, focus }: { run: string; head: Head; focus: Focus }) {
  const { query } = useRoute();
  const params = {
    phase: query.get("phase") ?? focus.phase,
    attempt: isReport ? null : (query.get("attempt") ?? focus.attempt),
    first: query.get("first"),
    last: query.get("last"),
    low: query.get("low"),
    high: query.get("high"),
    width: 800,
    height: 420,
  };
  const { data, error } = useAnswer<GridAnswer>(`/api/runs/${encodeURIComponent(run)}/grid`, params);
  const isZoomed = [params.first, params.low].some((value) => value !== null);
  const grid = useMemo(() => (data ? prepareGrid(data) : null), [data]);
  if (error && !data) return <Trouble error={error} />;
  if (!data || !grid) return <Loading height={320} label="Loading the times of ranks and steps" />;
  if (!data.steps.length) {
    return (
      <Empty title="No steps were recorded." code={"for step, batch in enumerate(loader):\n    run.set_step(step)\n    with stepwell.span(\"train step\"):\n        ..."}>
        The map needs training steps. An integration records them, or:
      </Empty>
    );
  }
  const phase = phaseTitle(data.phase);
  const rankText = (row: number) => text("rank", data.ranks, row, data.rank_count, data.ranks[data.ranks.length - 1]! + 1);
  const stepText = (column: number) => text("step", data.steps, column, data.step_count, data.steps[data.steps.length - 1]! + 1);
  const zoom = (cells: CellRange) => {
    const after = (values: number[], index: number) => (values[index + 1] ?? values[index]! + stride(values)) - 1;
    setParams(
      {
        first: data.steps[cells.firstColumn],
        last: after(data.steps, cells.lastColumn),
        low: data.ranks[cells.firstRow],
        high: after(data.ranks, cells.lastRow),
      },
      false,
    );
  };
  const reset = () => setParams({ first: null, last: null, low: null, high: null });
  return (
    <section class="rank-grid card">
      <div class="card-head">
        <h2>Time by rank and step</h2>
        <div class="card-tools">
          <label class="field">
            Phase
            <select value={data.phase} onChange={(event) => setParams({ phase: event.currentTarget.value })}>
              {data.phases.map((phase) => (
                <option key={phase} value={phase}>
                  {phaseTitle(phase)}
                </option>
              ))}
            </select>
          </label>
          {data.attempts.length > 1 && !isReport && (
            <label class="field">
              Attempt
              <select
                value={data.attempt}
                onChange={(event) => setParams({ attempt: event.currentTarget.value, first: null, last: null, low: null, high: null })}
              >
                {data.attempts.map((attempt) => (
                  <option key={attempt} value={attempt}>
                    {attempt}
                  </option>
                ))}
              </select>
            </label>
          )}
        </div>
      </div>
      <Heatmap
        label={`Time in ${phase} by rank and step, ${counted(data.rank_count, "rank")} and ${counted(data.step_count, "step")}. The table below has the mean of each rank`}
        rows={grid.rows}
        columns={grid.columns}
        columnTitle="step"
        values={data.values}
        scale={grid.scale}
        legend={`time in ${phase}`}
        describe={(row, column, value) =>
          value === null
            ? [`${rankText(row)}, ${stepText(column)}`, "no record"]
            : [
                `${rankText(row)}, ${stepText(column)}`,
                `${duration(value)} in ${phase}`,
                data.median_ns > 0 ? `${fixed(value / data.median_ns, 2)} × the median of ${duration(data.median_ns)}` : "",
                isReport ? "" : "click: open in the timeline",
              ].filter(Boolean)
        }
        {...(isReport ? {} : { onZoom: zoom })}
        onPick={(row, column) => isReport || navigate(href(["run", run, "timeline"], { rank: data.ranks[row], step: data.steps[column] }))}
        isZoomed={isZoomed}
        onReset={reset}
        maxHeight={head.ranks > 64 ? 420 : 340}
      />
      <p class="muted">
        {isMerged(data) ? "Each cell is the longest time of several ranks or steps. " : ""}
        {isReport ? "" : `Drag over cells to zoom${isZoomed ? ", double click to show all" : ""}, click a cell to open it in the timeline.`}
      </p>
    </section>
  );
}

function stride(values: number[]): number {
  return values.length > 1 ? values[values.length - 1]! - values[values.length - 2]! : 1;
}

function isMerged(grid: GridAnswer): boolean {
  return grid.ranks.length < grid.rank_count || grid.steps.length < grid.step_count;
}

/** "rank 3", or "ranks 8 to 15" where a row stands for several. */
function text(noun: string, firsts: number[], index: number, total: number, end: number): string {
  const first = firsts[index]!;
  const last = (firsts[index + 1] ?? Math.max(end, first + stride(firsts))) - 1;
  const isOne = firsts.length >= total || last <= first;
  return isOne ? `${noun} ${count(first)}` : `${noun}s ${count(first)} to ${count(last)}`;
}

function prepareGrid(data: GridAnswer) {
  const high = quantile(data.values, 0.999) ?? data.median_ns;
  const top = data.median_ns > 0 ? Math.min(Math.max(high / data.median_ns, 1.25), 1000) : 2;
  return {
    rows: data.ranks.map((rank) => `rank ${rank}`),
    columns: data.steps.map((step) => count(step)),
    scale: medianScale(data.median_ns, top, duration),
  };
}

// Skew

function SkewTable({ run, lines }: { run: string; lines: RankLine[] }) {
  const { query } = useRoute();
  const isAll = query.get("ranks") === "all";
  if (!lines.length) return null;
  const shown = isAll ? lines : lines.slice(0, MOST_ROWS);
  const isAlone = lines.length === 1;
  return (
    <section class="card">
      <div class="card-head">
        <h2>{isAlone ? "Rank" : "Slowest ranks first"}</h2>
      </div>
      <div class="table-box" tabIndex={0} role="region" aria-label="Ranks by time">
        <table class="data">
          <thead>
            <tr>
              <th scope="col">Rank</th>
              <th scope="col">Host</th>
              <th scope="col">Status</th>
              <th scope="col" class="number">Last step</th>
              <th scope="col" class="number">Mean step time</th>
              {!isAlone && <th scope="col" class="number">Slower by</th>}
              {!isAlone && <th scope="col">In phase</th>}
              {!isAlone && <th scope="col" class="number">Others waited</th>}
            </tr>
          </thead>
          <tbody>
            {shown.map((line) => (
              <tr key={line.rank}>
                <th scope="row">
                  <a href={href(["run", run, "timeline"], { rank: line.rank })} aria-label={`Timeline of rank ${line.rank}`}>
                    {line.rank}
                  </a>
                </th>
                <td>{line.host}</td>
                <td>{line.status}</td>
                <td class="number">{line.step === null ? "" : count(line.step)}</td>
                <td class="number">{line.step_ns === null ? "" : duration(line.step_ns)}</td>
                {!isAlone && <td class="number">{line.slower === null ? "" : <Slower share={line.slower} />}</td>}
                {!isAlone && (
                <td>
                  {line.phase !== null && line.phase_ns !== null && line.typical_ns !== null && line.phase_ns > line.typical_ns * 1.01 && (
                    <span class="rank-phase">
                      <i class="swatch" style={{ background: phaseColour(line.phase) }} aria-hidden="true" />
                      {phaseTitle(line.phase)} {duration(line.phase_ns)}, usually {duration(line.typical_ns)}
                    </span>
                  )}
                </td>
                )}
                {!isAlone && <td class="number">{line.waited_ns > 0 ? duration(line.waited_ns) : ""}</td>}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {shown.length < lines.length && (
        <button type="button" class="link-button" onClick={() => setParams({ ranks: "all" })}>
          Show all {count(lines.length)} ranks
        </button>
      )}
    </section>
  );
}

function Slower({ share }: { share: number }) {
  if (Math.abs(share) < 0.0005) return <>0 %</>;
  return share > 0 ? <>{percent(share)}</> : <span class="muted" title={`faster by ${percent(-share)}`}>–</span>;
}

// Stacks

/** Return threads of all ranks by name and open spans, as `stepwell stacks` prints them. */
function groupStacks(stacks: StackLine[]): { path: string; group: StackLine[] }[] {
  const groups = new Map<string, { path: string; group: StackLine[] }>();
  for (const stack of stacks) {
    const path = stack.frames.map((frame) => frame.name).join(" › ") || outside(stack);
    const lines = stack.frames.length ? "" : stack.lines.join("\n");
    const key = [path, stack.thread, isWorker(stack), stack.status, lines].join("\0");
    const known = groups.get(key);
    if (known) known.group.push(stack);
    else groups.set(key, { path, group: [stack] });
  }
  return [...groups.values()];
}

function outside(stack: StackLine): string {
  return stack.last === null ? "no open span" : `no open span; the last one was ${stack.last.name}`;
}

function isWorker(stack: StackLine): boolean {
  return stack.process.includes("worker");
}

function heading(group: StackLine[]): string {
  const first = group[0]!;
  const ranks = [...new Set(group.map((stack) => stack.rank))];
  const parts = [ranks.length === 1 ? `rank ${ranks[0]}` : `ranks ${rankRanges(ranks)}`];
  if (isWorker(first)) parts.push(group.length === 1 ? "worker" : `${group.length} workers`);
  parts.push(first.thread);
  const steps = group.map((stack) => stack.step).filter((step): step is number => step !== null);
  if (steps.length) {
    const [low, high] = [Math.min(...steps), Math.max(...steps)];
    parts.push(low === high ? `step ${low}` : `steps ${low} to ${high}`);
  }
  const times = group
    .map((stack) => stack.frames[stack.frames.length - 1]?.seconds ?? stack.last?.seconds)
    .filter((seconds): seconds is number => seconds !== undefined);
  if (times.length) {
    const [short, long] = [duration(Math.min(...times) * 1e9), duration(Math.max(...times) * 1e9)];
    parts.push(short === long ? `for ${long}` : `for ${short} to ${long}`);
  }
  if (first.status !== "running") parts.push(`when it ${first.status === "killed" ? "was killed" : first.status}`);
  return parts.join(" · ");
}

function Stacks({ stacks, head }: { stacks: StackLine[]; head: Head }) {
  const groups = useMemo(() => groupStacks(stacks), [stacks]);
  const isLive = head.status === "running";
  return (
    <section class="card">
      <div class="card-head">
        <h2>{isLive ? "What each rank is doing" : "Open spans at the end"}</h2>
      </div>
      {!groups.length && <p class="muted">{nothingOpen(head.status)}</p>}
      <ul class="stacks">
        {groups.slice(0, MOST_GROUPS).map(({ path, group }, i) => (
          <li key={i}>
            <p class="stack-head">{heading(group)}</p>
            <p class="stack-path">{path}</p>
            {group[0]!.silent_s !== null && (
              <p class="stack-silent">
                No heartbeat for {duration(group[0]!.silent_s * 1e9)}: C code holds the GIL, or the process is stopped.
              </p>
            )}
            {group[0]!.lines.length > 0 && (
              <details>
                <summary>Python stack{group.length > 1 ? ` of rank ${group[0]!.rank}` : ""}</summary>
                <pre tabIndex={0}>{group[0]!.lines.join("\n")}</pre>
              </details>
            )}
          </li>
        ))}
      </ul>
      {groups.length > MOST_GROUPS && (
        <p class="muted">{count(groups.length - MOST_GROUPS)} more groups: stepwell stacks --json</p>
      )}
    </section>
  );
}

function nothingOpen(status: string): string {
  if (status === "finished") return "No spans were open when the run finished.";
  if (status === "failed" || status === "interrupted") return "An exception ended the run. The overview shows where.";
  return status === "running" ? "No spans are open." : "No spans were open at the end.";
}
