// Several runs side by side: sentences first, then curves, values, settings and times.

import { useEffect, useMemo } from "preact/hooks";
import { useAnswer } from "../api";
import { MetricChart } from "../charts/line";
import { Parallel } from "../charts/parallel";
import { runColour } from "../colours";
import { count, duration, number, percent, phaseTitle } from "../format";
import { Empty, Loading, Trouble } from "../parts/empty";
import { StatusMark } from "../parts/marks";
import { TableBox } from "../parts/table_box";
import { href, useRouteList, useRouteParam, useRouteRange } from "../router";
import type { CompareAnswer, MetricInfo } from "../types";
import { groupsOf } from "./metrics";
import { MOST_COMPARED } from "./runs";

const MOST_CHARTS = 6;

/** A run whose label is its id, for lack of another name, has a short one in charts and tables: "sweep …3px65m". */
function shortLabel(label: string): string {
  return label.replace(/-\d{8}-\d{6}-(?=\w{6}$)/, " …");
}

export function CompareView() {
  const [ids, setIds] = useRouteList("run");
  const isTooMany = ids.length > MOST_COMPARED;
  const { data, error } = useAnswer<CompareAnswer>(ids.length > 1 && !isTooMany ? "/api/compare" : null, { run: ids });
  useEffect(() => {
    document.title = "Compare · stepwell";
  }, []);
  return (
    <div class="page">
      <div class="page-head">
        <h1>Compare</h1>
      </div>
      <Chips ids={ids} runs={data?.runs ?? []} remove={(id) => setIds(ids.filter((each) => each !== id))} />
      {ids.length < 2 ? (
        <Empty title="Choose two runs or more.">
          Tick them in the <a href={href([], { run: ids })}>list of runs</a>.
        </Empty>
      ) : isTooMany ? (
        <Empty title={`${count(ids.length)} runs are too many.`}>
          The comparison takes {count(MOST_COMPARED)} runs at most. Remove {count(ids.length - MOST_COMPARED)} of them.
        </Empty>
      ) : (
        <>
          {error && <Trouble error={error} />}
          {!data ? !error && <Loading height={480} label="Comparing" /> : !error && <Comparison answer={{ ...data, runs: data.runs.map((run) => ({ ...run, label: shortLabel(run.label) })) }} />}
        </>
      )}
    </div>
  );
}

/** The runs of the route, also those that the server does not have. */
function Chips({ ids, runs, remove }: { ids: string[]; runs: CompareAnswer["runs"]; remove: (id: string) => void }) {
  return (
    <ul class="chips" aria-label="Runs">
      {ids.map((id) => {
        const run = runs.find((each) => each.id === id);
        const label = run?.label ?? id;
        return (
          <li key={id} class="chip">
            <span class="swatch" style={{ background: runColour(id) }} />
            {run && <StatusMark status={run.status} />}
            <a href={href(["run", id])}>{label}</a>
            {run && (
              <span class="muted">
                {duration(run.seconds * 1e9)}
                {run.last_step !== null && `, step ${count(run.last_step)}`}
              </span>
            )}
            <button type="button" class="chip-remove" aria-label={`Remove ${label}`} onClick={() => remove(id)}>
              ×
            </button>
          </li>
        );
      })}
      <li>
        <a href={href([], { run: ids })}>Choose runs</a>
      </li>
    </ul>
  );
}

function Comparison({ answer }: { answer: CompareAnswer }) {
  const { runs, summary, metrics, config, code, phases, axes } = answer;
  const labels = useMemo(() => Object.fromEntries(runs.map(({ id, label }) => [id, label])), [runs]);
  return (
    <div class="compare">
      <section class="card verdict" aria-labelledby="summary">
        <h2 id="summary">Summary</h2>
        {summary.length ? (
          <ul class="sentences">
            {summary.map((sentence) => (
              <li key={sentence}>{sentence}</li>
            ))}
          </ul>
        ) : (
          <p>No differences were found.</p>
        )}
      </section>
      <Curves ids={runs.map(({ id }) => id)} labels={labels} metrics={metrics} />
      {metrics.length > 0 && <Values answer={answer} />}
      <div class={runs.length > 2 && config.length > 0 ? "overview" : "columns"}>
        <Differences title="Settings that differ" empty="The settings are the same." runs={runs} rows={config} />
        <Differences title="Code and environment that differ" empty="Code and environment are the same." runs={runs} rows={code} />
      </div>
      {phases.length > 0 && <Phases answer={answer} />}
      {runs.length > 1 && axes.length > 1 && (
        <section class="card" aria-labelledby="parallel">
          <h2 id="parallel">Settings and results</h2>
          <Parallel axes={axes} runs={runs.map(({ id, label }) => ({ id, label }))} />
        </section>
      )}
    </div>
  );
}

function Curves({ ids, labels, metrics }: { ids: string[]; labels: Record<string, string>; metrics: CompareAnswer["metrics"] }) {
  const [all, setAll] = useRouteParam("all");
  const [range, setRange] = useRouteRange();
  const names = metrics.map(({ name }) => name);
  const charts = useMemo(
    () => groupsOf(names.map((name) => ({ name }) as MetricInfo)).flatMap((group) => group.charts),
    [names.join("\n")],
  );
  const shown = all ? charts : charts.slice(0, MOST_CHARTS);
  return (
    <>
      <div class="charts charts-wide">
        {shown.map(({ title, names: own }) => (
          <div class="card" key={title}>
            <MetricChart runs={ids} runNames={labels} names={own} title={title} range={range} onRange={setRange} syncKey="compare" />
          </div>
        ))}
      </div>
      {shown.length < charts.length && (
        <button type="button" class="link-button" onClick={() => setAll("1")}>
          Show all {count(charts.length)} charts
        </button>
      )}
    </>
  );
}

function RunHeadings({ runs }: { runs: CompareAnswer["runs"] }) {
  return (
    <>
      {runs.map(({ id, label }) => (
        <th key={id} scope="col" title={id}>
          <span class="swatch" style={{ background: runColour(id) }} />
          {label}
        </th>
      ))}
    </>
  );
}

function Values({ answer: { runs, metrics } }: { answer: CompareAnswer }) {
  return (
    <section class="card" aria-labelledby="values">
      <div class="card-head">
        <h2 id="values">Values</h2>
        <p class="muted">last, and best at its step; ✓ is better at the last step that the runs have in common</p>
      </div>
      <TableBox label="Values" tall>
        <table class="data">
          <thead>
            <tr>
              <th scope="col">Metric</th>
              <RunHeadings runs={runs} />
            </tr>
          </thead>
          <tbody>
            {metrics.map((metric) => (
              <tr key={metric.name}>
                <th scope="row">
                  {metric.name}
                  {metric.goal && <span class="muted"> {metric.goal} is better</span>}
                </th>
                {runs.map(({ id }, place) => {
                  const best = metric.best[place];
                  const step = metric.best_step[place];
                  return (
                    <td key={id} class={metric.winner === place ? "winner" : ""}>
                      <span class="value">{number(metric.last[place])}</span>
                      {best !== null && best !== undefined && (
                        <span class="muted">
                          {" "}
                          best {number(best)}
                          {step !== null && step !== undefined && ` at ${count(step)}`}
                        </span>
                      )}
                      {metric.winner === place && <span class="winner-mark"> ✓ better</span>}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </TableBox>
    </section>
  );
}

interface DifferencesProps {
  title: string;
  empty: string;
  runs: CompareAnswer["runs"];
  rows: { key: string; values: (string | null)[] }[];
}

function Differences({ title, empty, runs, rows }: DifferencesProps) {
  return (
    <section class="card" aria-label={title}>
      <h2>{title}</h2>
      {rows.length === 0 ? (
        <p class="muted">{empty}</p>
      ) : (
        <TableBox label={title} tall>
          <table class="data">
            <thead>
              <tr>
                <th scope="col">Key</th>
                <RunHeadings runs={runs} />
              </tr>
            </thead>
            <tbody>
              {rows.map(({ key, values }) => (
                <tr key={key}>
                  <th scope="row">{key}</th>
                  {values.map((value, place) => (
                    <td key={place} class="long" title={value ?? undefined}>
                      {value ?? <span class="muted">not set</span>}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </TableBox>
      )}
    </section>
  );
}

/** Paired bars: the median time of each phase in a step, one bar for each run. */
function Phases({ answer }: { answer: CompareAnswer }) {
  const { runs } = answer;
  const phases = answer.phases.filter(({ ns }) => ns.some((value) => value));
  const longest = Math.max(...phases.flatMap(({ ns }) => ns.map((value) => value ?? 0))) || 1;
  return (
    <section class="card" aria-labelledby="phases">
      <div class="card-head">
        <h2 id="phases">Time of a step by phase</h2>
        <p class="muted">median; differences from {runs[0]?.label}</p>
      </div>
      <table class="data pairs">
        <thead class="visually-hidden">
          <tr>
            <th scope="col">Phase</th>
            <th scope="col">Median time of each run</th>
          </tr>
        </thead>
        <tbody>
          {phases.map(({ phase, ns }) => (
            <tr key={phase}>
              <th scope="row">{phaseTitle(phase)}</th>
              <td>
                {runs.map(({ id, label }, place) => {
                  const value = ns[place];
                  const base = ns[0];
                  const more = value != null && base != null && base > 0 && place > 0 ? value / base - 1 : null;
                  return (
                    <div class="pair" key={id} title={label}>
                      <span class="visually-hidden">{label}: </span>
                      <span class="pair-bar">
                        <span style={{ width: `${(100 * (value ?? 0)) / longest}%`, background: runColour(id) }} />
                      </span>
                      <span class="pair-value">{value == null ? "none" : duration(value)}</span>
                      <span class="pair-more muted">{more === null || Math.abs(more) < 0.005 ? "" : `${more > 0 ? "+" : "−"}${percent(Math.abs(more))}`}</span>
                    </div>
                  );
                })}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
