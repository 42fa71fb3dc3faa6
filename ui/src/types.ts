// The server's answers, one interface for each address. Times inside a run are nanoseconds since the run
// began (numbers, exact up to 104 days); durations are nanoseconds; dates are milliseconds since 1970.

export type Status = "running" | "finished" | "failed" | "interrupted" | "killed" | "empty" | string;
export type Severity = "critical" | "warning" | "note";
export type Scalar = string | number | boolean | null;
/** JSON has no NaN or infinity: a value that is not finite is one of these words. */
export type Value = number | "nan" | "inf" | "-inf" | null;

// GET /api/runs

export interface RunSummary {
  id: string;
  name: string;
  status: Status;
  /** The status with its place, if the run died: "killed inside backward". */
  status_text: string;
  created_ms: number | null;
  duration_ns: number | null;
  step: number | null;
  tags: string[];
  ranks: number | null;
  attempts: number | null;
  goodput: number | null;
  /** null: not computed yet; the list is sent again when it is. */
  findings: { critical: number; warning: number; note: number } | null;
  /** The sentence of the most important finding. */
  headline: string | null;
  loss: { name: string; last: Value; best: Value; curve: number[] } | null;
  config: Record<string, Scalar>;
  metrics: Record<string, Value>;
}

export interface RunList {
  folder: string;
  runs: RunSummary[];
  /** Keys of config (nested keys joined by dots) and names of metrics, the most frequent first. */
  config_keys: string[];
  metric_names: string[];
  /** Runs whose findings and goodput are being computed. */
  pending: number;
}

// GET /api/runs/{id}

export interface Finding {
  rule: string;
  severity: Severity;
  sentence: string;
  advice: string;
  evidence: Record<string, unknown>;
  steps: number[];
  ranks: number[];
  link: string;
  cost_ns: number;
  lines: string[];
  /** The metric or phase it is about, to link to its chart. */
  metric: string | null;
  phase: string | null;
}

export interface PhaseLine {
  phase: string;
  /** Mean of all ranks. The lines add up to wall_ns. */
  ns: number;
  share: number;
  p50_ns: number | null;
  p95_ns: number | null;
}

export interface AttemptLine {
  attempt: number;
  status: Status;
  /** ns since the run began */
  start: number;
  end: number;
  last_step: number | null;
  host: string;
  ranks: number;
}

export interface ValueLine {
  name: string;
  last: Value;
  last_step: number;
  best: Value;
  best_step: number | null;
  nonfinite: number;
}

export interface Head {
  id: string;
  name: string;
  path: string;
  status: Status;
  status_text: string;
  error: string | null;
  created_ms: number;
  wall_ns: number;
  step: number | null;
  epoch: number | null;
  ranks: number;
  attempts: number;
  tags: string[];
  /** Views that have something to show; the others say how to record it. */
  has: Record<"metrics" | "media" | "spans" | "ranks" | "model" | "system" | "artifacts", boolean>;
}

export interface Overview {
  head: Head;
  findings: Finding[];
  unchecked: { subject: string; reason: string }[];
  hints: { text: string; lines: string[] }[];
  time: PhaseLine[];
  background: { kind: string; ns: number }[];
  steps: {
    count: number;
    p50_ns: number;
    p95_ns: number;
    max_ns: number;
    max_step: number;
    epochs: number | null;
  } | null;
  values: ValueLine[];
  summary: Record<string, unknown>;
  /** Progress, if a target was set; ns is the time left while the run is live. */
  left: { done: number; target: number; ns: number | null } | null;
  goodput: number | null;
  throughput: { samples_per_second: number | null; tokens_per_second: number | null } | null;
  attempts: AttemptLine[];
  cost: { text: string };
  /** Metrics to draw first: losses (training and validation together), then throughput. */
  charts: { title: string; names: string[] }[];
  /** True while findings and times of a large run are being computed: ask again in a second. */
  is_partial: boolean;
}

// GET /api/runs/{id}/metrics

export interface MetricInfo {
  name: string;
  count: number;
  ranks: number;
  first_step: number | null;
  last_step: number | null;
  last: Value;
  best: Value;
  best_step: number | null;
  goal: "lower" | "higher" | null;
  nonfinite: number;
}

export interface MetricList {
  metrics: MetricInfo[];
  /** Axes that the run can be drawn over. */
  axes: Axis[];
}

export type Axis = "step" | "epoch" | "samples" | "tokens" | "time";

// GET /api/runs/{id}/series?name=…&name=…&x=step&by=mean|rank|spread&rank=0&start=…&end=…&points=800

export interface Series {
  name: string;
  /** null: the mean of all ranks, or their spread. */
  rank: number | null;
  count: number;
  /** True if several points were merged into one: then low and high are the band. */
  is_downsampled: boolean;
  x: number[];
  y: (number | null)[];
  low: (number | null)[] | null;
  high: (number | null)[] | null;
  /** Places of values that are not finite. */
  odd: { x: number; value: "nan" | "inf" | "-inf" }[];
}

export interface SeriesAnswer {
  x: Axis;
  series: Series[];
}

// GET /api/runs/{id}/media: logged figures, images, tables, texts

export interface MediaItem {
  name: string;
  kind: string;
  step: number | null;
  time: number;
  rank: number;
  caption: string | null;
  media: string | null;
  size: number | null;
  /** Address of its content; null if `value` is the content. */
  url: string | null;
  value: unknown;
}

export interface MediaList {
  items: MediaItem[];
  left_out: number;
}

// GET /api/runs/{id}/timeline?start=…&end=…&width=1500&rank=0&rank=1&offset=0

export interface SpanName {
  name: string;
  category: string;
  phase: string | null;
}

export interface Lane {
  /** "rank 0 · MainThread" */
  label: string;
  rank: number;
  attempt: number;
  process: string;
  thread: string;
  is_worker: boolean;
  /** Parallel arrays, one entry for each box. */
  row: number[];
  start: number[];
  end: number[];
  /** Index into names. */
  name: number[];
  /** Spans in the box: above 1, they are too short to be drawn by themselves; the name has most of the time. */
  count: number[];
  /** Id of the span, if the box is one span. */
  id: (number | null)[];
  /** 1: open, 2: failed */
  flags: number[];
}

export interface TimelineAnswer {
  /** The whole run, ns since it began. */
  full: [number, number];
  start: number;
  end: number;
  names: SpanName[];
  lanes: Lane[];
  /** Lanes of the run in all, of which `lanes` are those from `offset` on. */
  lane_count: number;
  offset: number;
  ranks: number[];
  /** Beginnings of steps on the lowest rank in this window, at most one per 40 pixels. */
  steps: { step: number; start: number }[];
  /** Above 0: not everything could be read in time; ask again for the rest. */
  missing?: number;
}

// GET /api/runs/{id}/spans?q=…&limit=200 and GET /api/runs/{id}/spans/{span id}

export interface SpanHit {
  id: number;
  name: string;
  category: string;
  rank: number;
  attempt: number;
  process: string;
  thread: string;
  step: number | null;
  start: number;
  duration_ns: number | null;
  status: string;
}

export interface SpanSearch {
  hits: SpanHit[];
  /** True if there are more. */
  more: boolean;
  stats: { name: string; count: number; total_ns: number; p50_ns: number; max_ns: number }[];
}

export interface SpanDetail extends SpanHit {
  epoch: number | null;
  attributes: Record<string, unknown>;
  path: string[];
  events: { name: string; time: number; attributes: Record<string, unknown> }[];
}

// GET /api/runs/{id}/grid?phase=forward&width=1200&height=600&first=…&last=…

export interface GridAnswer {
  phase: string;
  phases: string[];
  attempts: number[];
  attempt: number;
  /** First rank of each row and first step of each column; rows and columns may stand for several. */
  ranks: number[];
  steps: number[];
  rank_count: number;
  step_count: number;
  /** values[row * steps.length + column]: the largest time of the ranks and steps there; null: no record. */
  values: (number | null)[];
  median_ns: number;
}

// GET /api/runs/{id}/ranks

export interface RankLine {
  rank: number;
  host: string;
  status: Status;
  step: number | null;
  /** Mean step time, and the phase in which it differs most from the median rank. */
  step_ns: number | null;
  slower: number | null;
  phase: string | null;
  phase_ns: number | null;
  typical_ns: number | null;
  /** Time that the others waited for it. */
  waited_ns: number;
}

export interface StackLine {
  rank: number;
  attempt: number;
  process: string;
  thread: string;
  status: Status;
  step: number | null;
  frames: { name: string; category: string; seconds: number; attributes: Record<string, unknown> }[];
  last: { name: string; seconds: number } | null;
  lines: string[];
  silent_s: number | null;
}

export interface RanksAnswer {
  ranks: RankLine[];
  stacks: StackLine[];
  /** One sentence if the run hangs. */
  hang: string | null;
  stragglers: string[];
  /** Phase and attempt of the costliest straggler, for the map to open with. */
  focus?: { phase: string; attempt: number } | null;
}

// GET /api/runs/{id}/model?measure=…

export interface LayersAnswer {
  measure: string;
  /** "gradient norm", "weight change", "update ratio", whichever were recorded. */
  measures: { key: string; title: string; unit: string }[];
  layers: string[];
  steps: number[];
  /** values[layer * steps.length + step] */
  values: (number | null)[];
  /** Names of metrics for line charts: learning rates, overall norms, holdout accuracy. */
  charts: { title: string; names: string[] }[];
  /** Predictions of the holdout examples: margin[example * steps.length + step]. */
  holdout: {
    steps: number[];
    examples: number[];
    labels: (number | null)[];
    margin: (number | null)[];
  } | null;
}

// GET /api/runs/{id}/provenance

export interface GraphNode {
  id: string;
  kind: "entity" | "activity" | "agent";
  label: string;
  attributes: Record<string, unknown>;
}

export interface ProvenanceAnswer {
  config: Record<string, unknown>;
  environment: { label: string; value: string }[];
  git: { label: string; value: string }[];
  artifacts: {
    name: string;
    size: number;
    sha256: string;
    step: number | null;
    rank: number;
    url: string;
  }[];
  nodes: GraphNode[];
  edges: { from: string; to: string; label: string }[];
  left_out: number;
}

// GET /api/compare?run=…&run=…

export interface CompareAnswer {
  runs: { id: string; label: string; status: Status; last_step: number | null; seconds: number }[];
  summary: string[];
  /** One row for each metric: its last and best value in each run. */
  metrics: {
    name: string;
    goal: "lower" | "higher" | null;
    last: Value[];
    best: Value[];
    best_step: (number | null)[];
    /** Index of the run that is better; null if none is. */
    winner: number | null;
  }[];
  config: { key: string; values: (string | null)[] }[];
  code: { key: string; values: (string | null)[] }[];
  /** Median time of a step and of each phase in it. */
  phases: { phase: string; ns: (number | null)[] }[];
  /** Axes of the parallel coordinates: settings that differ, then metrics. */
  axes: { key: string; values: Scalar[] }[];
}

// GET /api/runs/{id}/live and /api/live: server-sent events

export interface LiveEvent {
  /** The run has changed since the last event: ask again for what is on the screen. */
  version: number;
  status: Status;
  step: number | null;
  wall_ns: number;
  seconds_left: number | null;
  steps_per_second: number | null;
  /** New values by metric: [step, value]. */
  values: Record<string, [number, Value][]>;
  /** What each rank is doing (at most 16). */
  ranks: { rank: number; status: Status; step: number | null; inside: string[]; seconds: number }[];
  findings: number;
}
