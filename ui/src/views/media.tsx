// Logged values that are not numbers: figures, images, tables, texts, histograms. All of it is untrusted: text is
// text, and a picture is the source of an <img>.

import { useEffect, useMemo, useState } from "preact/hooks";
import { useAnswer } from "../api";
import { count, counted, number, plain, size } from "../format";
import { Empty, Loading, Trouble } from "../parts/empty";
import { TableBox } from "../parts/table_box";
import { setParams, useRouteParam } from "../router";
import type { MediaItem, MediaList } from "../types";
import type { ViewProps } from "../view";

const MOST_ROWS = 100;
const MOST_TEXT = 200_000;

interface Subject {
  key: string;
  name: string;
  rank: number | null;
  /** In order of their steps. */
  items: MediaItem[];
}

export function MediaView({ run }: ViewProps) {
  const { data, error } = useAnswer<MediaList>(`/api/runs/${encodeURIComponent(run)}/media`);
  if (error && !data) return <Trouble error={error} />;
  if (!data) return <Loading height={480} label="Loading media" />;
  if (!data.items.length) {
    return (
      <Empty
        title="No images, tables or texts were recorded."
        code={'run.log({"sample": stepwell.Image(array, caption="after this step")})\nrun.log({"predictions": stepwell.Table(rows, columns=["id", "label"])})\nrun.log({"weights": stepwell.Histogram(layer.weight)})'}
      >
        Log a Matplotlib or Plotly figure, an image, a table, a histogram or a text, and it is shown here:
      </Empty>
    );
  }
  return <Gallery list={data} />;
}

function Gallery({ list }: { list: MediaList }) {
  const [text, setText] = useRouteParam("q");
  const [at] = useRouteParam("step");
  const subjects = useMemo(() => subjectsOf(list.items), [list]);
  const steps = useMemo(
    () => [...new Set(list.items.flatMap(({ step }) => (step === null ? [] : [step])))].sort((a, b) => a - b),
    [list],
  );
  const last = steps.at(-1) ?? 0;
  const step = at === "" ? last : Number(at);
  const place = Math.max(0, steps.findLastIndex((each) => each <= step));
  const shown = subjects.filter(({ name }) => name.toLowerCase().includes(text.toLowerCase()));
  return (
    <div class="media">
      <div class="toolbar sticky">
        <label class="search">
          <span class="visually-hidden">Search media</span>
          <input type="search" placeholder="Search media" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
        {steps.length > 1 && (
          <label class="field grow">
            Step
            <input
              type="range"
              min="0"
              max={steps.length - 1}
              step="1"
              value={place}
              aria-valuetext={`step ${steps[place]}`}
              onInput={(event) => {
                const next = steps[Number(event.currentTarget.value)];
                setParams({ step: next === last ? null : next });
              }}
            />
            <output class="slider-value wide">{count(steps[place] ?? 0)}</output>
          </label>
        )}
        <p class="toolbar-note" role="status">
          {counted(shown.length, "item")}
          {list.left_out > 0 && ` · ${count(list.left_out)} items are not shown`}
        </p>
      </div>
      {shown.length === 0 && <Empty title="Nothing matches." />}
      <div class="gallery">
        {shown.map((subject) => (
          <Card key={subject.key} subject={subject} step={step} />
        ))}
      </div>
    </div>
  );
}

function subjectsOf(items: MediaItem[]): Subject[] {
  const ranksOf = new Map<string, Set<number>>();
  for (const { name, rank } of items) ranksOf.set(name, (ranksOf.get(name) ?? new Set()).add(rank));
  const subjects = new Map<string, Subject>();
  for (const item of items) {
    const isPerRank = (ranksOf.get(item.name)?.size ?? 1) > 1;
    const key = isPerRank ? `${item.name}\n${item.rank}` : item.name;
    const subject = subjects.get(key);
    if (subject) subject.items.push(item);
    else subjects.set(key, { key, name: item.name, rank: isPerRank ? item.rank : null, items: [item] });
  }
  for (const { items: own } of subjects.values()) own.sort((a, b) => (a.step ?? -1) - (b.step ?? -1) || a.time - b.time);
  return [...subjects.values()];
}

/** The latest item of a name at or before the chosen step. */
function Card({ subject, step }: { subject: Subject; step: number }) {
  const item = subject.items.findLast((each) => (each.step ?? -1) <= step) ?? subject.items[0];
  if (!item) return null;
  const isLater = (item.step ?? -1) > step;
  const place = subject.items.indexOf(item);
  return (
    <article class="card media-card">
      <div class="card-head">
        <h2 class="wrap">
          {subject.name}
          {subject.rank !== null && <span class="muted"> rank {subject.rank}</span>}
        </h2>
        <p class="muted">
          {item.step !== null && `step ${count(item.step)}`}
          {subject.items.length > 1 && ` · ${place + 1} of ${subject.items.length}`}
        </p>
      </div>
      {isLater ? <p class="muted media-body">Not recorded yet at this step.</p> : <Content item={item} />}
      {!isLater && item.caption && <p class="caption">{item.caption}</p>}
    </article>
  );
}

function Content({ item }: { item: MediaItem }) {
  if (item.url && (item.media ?? "").startsWith("image/")) return <Picture item={item} />;
  if (item.value !== null && item.value !== undefined) return <Inline item={item} value={item.value} />;
  if (item.url && /json|text\/plain/.test(item.media ?? "")) return <Fetched item={item} url={item.url} />;
  return <File item={item} />;
}

/** The pixels of smaller images are shown as they are, without blur. */
const SMALL_PIXELS = 64;

function Picture({ item }: { item: MediaItem }) {
  const [isBroken, setBroken] = useState(false);
  const [isSmall, setSmall] = useState(false);
  useEffect(() => setBroken(false), [item.url]);
  if (isBroken) return <File item={item} />;
  return (
    <div class="media-body picture">
      <img
        class={isSmall ? "small" : ""}
        src={item.url ?? undefined}
        alt={item.caption ?? `${item.name}${item.step === null ? "" : ` at step ${item.step}`}`}
        loading="lazy"
        onLoad={({ currentTarget: { naturalWidth, naturalHeight } }) => setSmall(Math.max(naturalWidth, naturalHeight) < SMALL_PIXELS)}
        onError={() => setBroken(true)}
      />
    </div>
  );
}

function File({ item }: { item: MediaItem }) {
  const facts = [item.kind, item.media, item.size === null ? null : size(item.size)].filter(Boolean).join(", ");
  return (
    <p class="media-body">
      {facts}
      {item.url ? (
        <>
          {" "}
          <a href={item.url} download="">
            Download
          </a>
        </>
      ) : (
        <span class="muted"> (its content is not contained in this file)</span>
      )}
    </p>
  );
}

/** Content that is too large for the list, in a file of its own. */
function Fetched({ item, url }: { item: MediaItem; url: string }) {
  const [value, set] = useState<unknown>(null);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
    let stale = false;
    set(null);
    setError(null);
    fetch(url, { credentials: "same-origin" })
      .then(async (response) => {
        if (!response.ok) throw new Error("The file is not there any more.");
        const text = (await response.text()).slice(0, 5_000_000);
        if (!stale) set(/json/.test(item.media ?? "") ? JSON.parse(text) : text);
      })
      .catch(() => stale || setError("The content cannot be shown."));
    return () => {
      stale = true;
    };
  }, [url]);
  if (error) return <File item={item} />;
  if (value === null) return <Loading height={160} label="Loading" />;
  return <Inline item={item} value={value} />;
}

function Inline({ item, value }: { item: MediaItem; value: unknown }) {
  if (isHistogram(value)) return <Histogram value={value} name={item.name} />;
  const table = tableOf(value);
  if (table) return <DataTable table={table} name={item.name} />;
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return (
    <pre class="media-body text" tabIndex={0}>
      {text.slice(0, MOST_TEXT)}
    </pre>
  );
}

interface Bins {
  counts: number[];
  edges: number[];
  mean?: number;
  std?: number;
  min?: number;
  max?: number;
  nonfinite?: number;
}

function isHistogram(value: unknown): value is Bins {
  const { counts, edges } = (value ?? {}) as Partial<Bins>;
  return Array.isArray(counts) && Array.isArray(edges) && edges.length === counts.length + 1;
}

function Histogram({ value, name }: { value: Bins; name: string }) {
  const { counts, edges, mean, std, min, max, nonfinite } = value;
  if (!counts.length) return <p class="media-body muted">The histogram is empty.</p>;
  const [width, height] = [360, 140];
  const first = edges[0] ?? 0;
  const range = (edges.at(-1) ?? 1) - first || 1;
  // Bins may have different widths: the area of a bar is its count.
  const densities = counts.map((amount, at) => amount / Math.max(1e-300, (edges[at + 1] ?? 0) - (edges[at] ?? 0)));
  const top = Math.max(...densities) || 1;
  const facts = [
    mean === undefined ? "" : `mean ${number(mean)}`,
    std === undefined ? "" : `std ${number(std)}`,
    nonfinite ? `${counted(nonfinite, "value")} not finite` : "",
  ].filter(Boolean);
  const label = `Histogram of ${name}, from ${number(min ?? first)} to ${number(max ?? first + range)}. ${facts.join(", ")}`;
  return (
    <div class="media-body">
      <svg class="histogram" viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="none" role="img" aria-label={label}>
        {densities.map((density, at) => {
          const x = (((edges[at] ?? 0) - first) / range) * width;
          const next = (((edges[at + 1] ?? 0) - first) / range) * width;
          const tall = (density / top) * (height - 4);
          return <rect key={at} x={x + 0.4} width={Math.max(0.5, next - x - 0.8)} y={height - tall} height={tall} />;
        })}
      </svg>
      <p class="axis-ends">
        <span>{number(first)}</span>
        <span>{facts.join(", ")}</span>
        <span>{number(first + range)}</span>
      </p>
    </div>
  );
}

interface Rows {
  columns: string[];
  rows: unknown[][];
}

/** {"columns": […], "data": [[…], …]}, with "rows" as another word for "data". */
function tableOf(value: unknown): Rows | null {
  const { columns, data, rows } = (value ?? {}) as { columns?: unknown; data?: unknown; rows?: unknown };
  const body = data ?? rows;
  if (!Array.isArray(columns) || !Array.isArray(body) || !body.every(Array.isArray)) return null;
  return { columns: columns.map(String), rows: body as unknown[][] };
}

function DataTable({ table, name }: { table: Rows; name: string }) {
  const [all, setAll] = useState(false);
  const shown = all ? table.rows : table.rows.slice(0, MOST_ROWS);
  return (
    <div class="media-body">
      <TableBox label={name} tall>
        <table class="data">
          <thead>
            <tr>
              {table.columns.map((column, at) => (
                <th key={at} scope="col" class={typeof table.rows[0]?.[at] === "number" ? "number" : ""}>
                  {column}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.map((row, at) => (
              <tr key={at}>
                {row.map((cell, column) => (
                  <td key={column} class={typeof cell === "number" ? "number" : ""}>
                    {plain(cell)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </TableBox>
      {shown.length < table.rows.length && (
        <button type="button" class="link-button" onClick={() => setAll(true)}>
          Show all {count(table.rows.length)} rows
        </button>
      )}
    </div>
  );
}
