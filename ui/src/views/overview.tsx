// The first page of a run: the verdict, then curves, time, attempts and values.

import type { ComponentChildren } from "preact";
import { useAnswer } from "../api";
import { MetricChart } from "../charts/line";
import { count, counted, duration, number, percent, plain, rate } from "../format";
import type { Live } from "../live";
import { Loading } from "../parts/empty";
import { StatusMark } from "../parts/marks";
import { TimeTable } from "../parts/stack";
import { TableBox } from "../parts/table_box";
import { href, useRouteRange } from "../router";
import type { AttemptLine, MetricList, Overview, ValueLine } from "../types";
import { Verdict } from "./findings";

interface Props {
  run: string;
  overview: Overview;
  live: Live;
}

export function OverviewView({ run, overview, live }: Props) {
  const { head, time, values, summary, hints, attempts, charts, background, cost } = overview;
  const [range, setRange] = useRouteRange();
  if (overview.is_partial) return <Analysing overview={overview} />;
  const best = Object.fromEntries(values.map((line) => [line.name, line]));
  return (
    <div class="overview">
      {head.error && <p class="run-error">{head.error}</p>}
      <Verdict run={run} overview={overview} />
      <Numbers overview={overview} live={live} />
      {charts.length > 0 && (
        <div class="charts charts-wide">
          {charts.map(({ title, names }) => (
            <div class="card" key={title}>
              <MetricChart runs={[run]} names={names} title={title} height={220} best={best} range={range} onRange={setRange} syncKey="overview" />
            </div>
          ))}
        </div>
      )}
      <div class={time.length > 0 ? "split" : "columns"}>
        {time.length > 0 && (
          <section class="card" aria-labelledby="time">
            <div class="card-head">
              <h2 id="time">Where the time went</h2>
              <p class="muted">
                {duration(head.wall_ns)} of wall time{head.ranks > 1 && `, mean of ${count(head.ranks)} ranks`}
              </p>
            </div>
            <TimeTable lines={time} wall={head.wall_ns} />
            {background.length > 0 && (
              <p class="muted card-foot">
                In the background: {background.map(({ kind, ns }) => `${kind} ${duration(ns)}`).join(", ")}.
              </p>
            )}
          </section>
        )}
        <div class="pile">
          {values.length > 0 && <Values run={run} values={values} ranks={head.ranks} />}
          {Object.keys(summary).length > 0 && <Summary summary={summary} />}
          {hints.length > 0 && <Hints hints={hints} />}
        </div>
      </div>
      {attempts.length > 1 && <Attempts attempts={attempts} wall={head.wall_ns} />}
      <p class="muted small">{cost.text}</p>
    </div>
  );
}

/** A large run: its head is there, its findings and times are being computed. */
function Analysing({ overview: { head, attempts } }: { overview: Overview }) {
  return (
    <div class="overview">
      {head.error && <p class="run-error">{head.error}</p>}
      <section class="card verdict" aria-labelledby="verdict">
        <h2 id="verdict">Analysing the run …</h2>
        <p class="muted" role="status">
          Findings and times appear here by themselves. The other tabs work already.
        </p>
      </section>
      <Loading height={64} label="" />
      <div class="charts charts-wide">
        <Loading height={300} label="" />
        <Loading height={300} label="" />
      </div>
      {attempts.length > 1 && <Attempts attempts={attempts} wall={head.wall_ns} />}
    </div>
  );
}

function Summary({ summary }: { summary: Overview["summary"] }) {
  return (
    <section class="card" aria-labelledby="summary">
      <h2 id="summary">Summary</h2>
      <table class="data">
        <tbody>
          {Object.entries(summary).map(([name, value]) => (
            <tr key={name}>
              <th scope="row" title={name}>{name}</th>
              <td class="wrap">{plain(value)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Hints({ hints }: { hints: Overview["hints"] }) {
  return (
    <section class="card" aria-labelledby="hints">
      <h2 id="hints">Record more</h2>
      {hints.map(({ text, lines }) => (
        <div key={text} class="hint">
          <p>{text}</p>
          {lines.length > 0 && <pre tabIndex={0}>{lines.join("\n")}</pre>}
        </div>
      ))}
    </section>
  );
}

/** The numbers of the report's second line. */
function Numbers({ overview, live }: { overview: Overview; live: Live }) {
  const { steps, goodput, throughput, left } = overview;
  const tiles: ComponentChildren[] = [];
  const tile = (title: string, value: ComponentChildren, note?: ComponentChildren): void => {
    tiles.push(
      <div class="tile" key={title}>
        <dt>{title}</dt>
        <dd>
          <strong>{value}</strong>
          {note && <span class="muted">{note}</span>}
        </dd>
      </div>,
    );
  };
  if (left) {
    const share = left.target ? Math.min(1, left.done / left.target) : 0;
    const ns = live.event?.seconds_left != null ? live.event.seconds_left * 1e9 : left.ns;
    tile(
      "Progress",
      percent(share),
      <>
        {count(left.done)} of {counted(left.target, "step")}
        {ns !== null && `, about ${duration(ns)} left`}
        <progress max={1} value={share} aria-label="Progress" />
      </>,
    );
  }
  if (goodput !== null) tile("Goodput", percent(goodput), "of the wall time made progress");
  if (steps) {
    tile(
      "Step",
      duration(steps.p50_ns),
      steps.count > 1 && `median; p95 ${duration(steps.p95_ns)}, longest ${duration(steps.max_ns)} at step ${count(steps.max_step)}`,
    );
    tile("Steps", count(steps.count), steps.epochs !== null && `in ${counted(steps.epochs, "epoch")}`);
  }
  if (throughput?.samples_per_second != null) tile("Throughput", `${rate(throughput.samples_per_second)} /s`, "samples");
  if (throughput?.tokens_per_second != null) tile("Tokens", `${rate(throughput.tokens_per_second)} /s`, "tokens");
  return tiles.length ? <dl class="tiles">{tiles}</dl> : null;
}

function Attempts({ attempts, wall }: { attempts: AttemptLine[]; wall: number }) {
  const end = Math.max(wall, ...attempts.map((attempt) => attempt.end)) || 1;
  return (
    <section class="card" aria-labelledby="attempts">
      <div class="card-head">
        <h2 id="attempts">Attempts</h2>
        <p class="muted">An attempt is one start of the training script; a restart is the next one.</p>
      </div>
      <TableBox label="Attempts">
        <table class="data attempts">
          <thead>
            <tr>
              <th scope="col">Attempt</th>
              <th scope="col">Status</th>
              <th scope="col" class="attempt-axis">
                <span class="visually-hidden">Time</span>
                <span class="axis-ends" aria-hidden="true">
                  <span>0 s</span>
                  <span>{duration(end)}</span>
                </span>
              </th>
              <th scope="col" class="number">Duration</th>
              <th scope="col" class="number">Last step</th>
              <th scope="col">Host</th>
            </tr>
          </thead>
          <tbody>
            {attempts.map((attempt) => (
              <tr key={attempt.attempt}>
                <td>{attempt.attempt}</td>
                <td>
                  <StatusMark status={attempt.status} /> {attempt.status}
                </td>
                <td class="attempt-axis">
                  <span class="attempt-track">
                    <span
                      class={`attempt-bar attempt-${attempt.status}`}
                      style={{
                        left: `${(100 * attempt.start) / end}%`,
                        width: `max(2px, ${(100 * (attempt.end - attempt.start)) / end}%)`,
                      }}
                      title={`from ${duration(attempt.start)} to ${duration(attempt.end)}`}
                    />
                  </span>
                </td>
                <td class="number">{duration(attempt.end - attempt.start)}</td>
                <td class="number">{attempt.last_step === null ? "" : count(attempt.last_step)}</td>
                <td>{attempt.host}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </TableBox>
    </section>
  );
}

function Values({ run, values, ranks }: { run: string; values: ValueLine[]; ranks: number }) {
  const { data } = useAnswer<MetricList>(`/api/runs/${encodeURIComponent(run)}/metrics`);
  const total = data?.metrics.length ?? 0;
  const hasBest = values.some(({ best }) => best !== null);
  return (
    <section class="card" aria-labelledby="values">
      <div class="card-head">
        <h2 id="values">Values</h2>
        <p class="muted">
          {total > values.length && (
            <a href={href(["run", run, "metrics"])}>
              {count(values.length)} of {counted(total, "metric")}
            </a>
          )}
          {total > values.length && ranks > 1 && ", "}
          {ranks > 1 && `mean of ${count(ranks)} ranks`}
        </p>
      </div>
      <TableBox label="Values">
        <table class="data">
          <thead>
            <tr>
              <th scope="col">Metric</th>
              <th scope="col" class="number">Last</th>
              <th scope="col" class="number">At step</th>
              {hasBest && <th scope="col" class="number">Best</th>}
              {hasBest && <th scope="col" class="number">At step</th>}
            </tr>
          </thead>
          <tbody>
            {values.map((line) => (
              <tr key={line.name}>
                <th scope="row" title={line.name}>
                  <a href={href(["run", run, "metrics"], { q: line.name })}>{line.name}</a>
                  {line.nonfinite > 0 && <span class="not-finite"> {counted(line.nonfinite, "value")} not finite</span>}
                </th>
                <td class={typeof line.last === "string" ? "number not-finite" : "number"}>{number(line.last)}</td>
                <td class="number muted">{count(line.last_step)}</td>
                {hasBest && <td class="number">{number(line.best)}</td>}
                {hasBest && <td class="number muted">{line.best_step === null ? "" : count(line.best_step)}</td>}
              </tr>
            ))}
          </tbody>
        </table>
      </TableBox>
    </section>
  );
}
