// The model of a run: each layer over steps, learning rates and norms, and the holdout examples.

import { useMemo } from "preact/hooks";
import { useAnswer } from "../api";
import { divergingScale, Heatmap, logScale, quantile } from "../charts/heatmap";
import { MetricChart } from "../charts/line";
import { count, counted, number } from "../format";
import { Empty, Loading, Trouble } from "../parts/empty";
import { setParams, useRoute, useRouteRange } from "../router";
import type { LayersAnswer } from "../types";
import type { ViewProps } from "../view";
import "./ranks.css";
import "./model.css";

const RECORD = `from stepwell.diagnostics import TelemetryConfig, TrainingTelemetry

config = TelemetryConfig(
    collect_every_n=200, groups="layers", track_update_ratio=True
)
telemetry = TrainingTelemetry(config)
telemetry.set_holdout_data(val_loader)  # its first 50 examples

for epoch in range(epochs):
    for batch_idx, batch in enumerate(train_loader, 1):
        ...
        optimizer.step()
        telemetry.on_batch_end(model, optimizer, batch_idx, epoch, device, batch)`;

export function ModelView({ run }: ViewProps) {
  const [range, setRange] = useRouteRange();
  const measure = useRoute().query.get("measure");
  const { data, error } = useAnswer<LayersAnswer>(`/api/runs/${encodeURIComponent(run)}/model`, { measure });
  if (!data) return error ? <Trouble error={error} /> : <Loading height={420} label="Loading the measures of the model" />;
  if (!data.measures.length && !data.charts.length && !data.holdout) {
    return (
      <Empty title="No measures of the model were recorded." code={RECORD}>
        Gradient norms, weight changes, learning rates and predictions show how a model learns. These lines record them:
      </Empty>
    );
  }
  return (
    <div class="model-view">
      {error && <Trouble error={error} />}
      {data.measures.length > 0 && <Layers data={data} />}
      {data.charts.length > 0 && (
        <div class="model-charts">
          {data.charts.map(({ title, names }) => (
            <div key={title} class="card">
              <MetricChart runs={[run]} names={names} title={title} log={isSmall(title)} height={180} syncKey={`model ${run}`} range={range} onRange={setRange} />
            </div>
          ))}
        </div>
      )}
      {data.holdout ? (
        <Holdout holdout={data.holdout} />
      ) : (
        <Empty title="No predictions of holdout examples were recorded." code="telemetry.set_holdout_data(val_loader)  # its first 50 examples">
          They show which examples the model learns, forgets or never gets right.
        </Empty>
      )}
    </div>
  );
}

/** Norms and ratios span decades. */
function isSmall(title: string): boolean {
  return /norm|ratio/i.test(title);
}

function Layers({ data }: { data: LayersAnswer }) {
  const { scale, columns } = useMemo(() => {
    const positive = data.values.filter((value): value is number => value !== null && value > 0);
    return {
      scale: logScale(quantile(positive, 0.005) ?? 1e-6, quantile(positive, 0.999) ?? 1, number),
      columns: data.steps.map((step) => count(step)),
    };
  }, [data]);
  const chosen = data.measures.find(({ key }) => key === data.measure) ?? data.measures[0];
  const title = chosen?.title ?? data.measure;
  return (
    <section class="card">
      <div class="card-head">
        <h2>{title} by layer and step</h2>
        <div class="segments" role="group" aria-label="Measure">
          {data.measures.map((measure) => (
            <button
              key={measure.key}
              type="button"
              class="secondary"
              aria-pressed={measure.key === data.measure}
              onClick={() => setParams({ measure: measure.key })}
            >
              {measure.title}
            </button>
          ))}
        </div>
      </div>
      {data.layers.length === 0 ? (
        <Empty title={`No ${title} of single layers was recorded.`} code={'TelemetryConfig(groups="layers")'}>
          Only the overall value was recorded. This setting records each layer:
        </Empty>
      ) : (
        <>
          <Heatmap
            label={`${title} by layer and step. The table below has the values of each layer`}
            rows={data.layers}
            columns={columns}
            columnTitle="step"
            values={data.values}
            scale={scale}
            legend={chosen?.unit ? `${title} (${chosen.unit})` : title}
            describe={(row, column, value) => [
              data.layers[row]!,
              `step ${columns[column]}`,
              value === null ? "no value, or not finite" : `${title} ${number(value)}`,
            ]}
            maxHeight={520}
          />
          <LayerTable data={data} />
        </>
      )}
    </section>
  );
}

function LayerTable({ data }: { data: LayersAnswer }) {
  const width = data.steps.length;
  const lines = useMemo(
    () =>
      data.layers.map((layer, row) => {
        const values = data.values.slice(row * width, (row + 1) * width).filter((value): value is number => value !== null);
        return {
          layer,
          first: values[0] ?? null,
          last: values[values.length - 1] ?? null,
          low: values.length ? Math.min(...values) : null,
          high: values.length ? Math.max(...values) : null,
        };
      }),
    [data],
  );
  return (
    <details class="more">
      <summary>Values of {counted(data.layers.length, "layer")} as a table</summary>
      <div class="table-box" tabIndex={0} role="region" aria-label="Values by layer">
        <table class="data">
          <thead>
            <tr>
              <th scope="col">Layer</th>
              <th scope="col" class="number">First</th>
              <th scope="col" class="number">Last</th>
              <th scope="col" class="number">Lowest</th>
              <th scope="col" class="number">Highest</th>
            </tr>
          </thead>
          <tbody>
            {lines.map((line) => (
              <tr key={line.layer}>
                <th scope="row">{line.layer}</th>
                <td class="number">{number(line.first)}</td>
                <td class="number">{number(line.last)}</td>
                <td class="number">{number(line.low)}</td>
                <td class="number">{number(line.high)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}

type HoldoutAnswer = NonNullable<LayersAnswer["holdout"]>;

function Holdout({ holdout }: { holdout: HoldoutAnswer }) {
  const width = holdout.steps.length;
  const { scale, rows, columns, lines } = useMemo(() => {
    const sizes = holdout.margin.map((value) => (value === null ? null : Math.abs(value)));
    return {
      scale: divergingScale(quantile(sizes, 0.98) ?? 1, number),
      rows: holdout.examples.map((example, i) => {
        const label = holdout.labels[i];
        return label === null || label === undefined ? `${example}` : `${example}, class ${label}`;
      }),
      columns: holdout.steps.map((step) => count(step)),
      lines: holdout.examples.map((_, row) => lastMargins(holdout.margin.slice(row * width, (row + 1) * width))),
    };
  }, [holdout]);
  const right = lines.filter(({ last }) => last !== null && last > 0).length;
  const never = lines.filter(({ rights, known }) => known > 0 && rights === 0).length;
  const forgotten = lines.filter(({ last, rights }) => last !== null && last <= 0 && rights > 0).length;
  return (
    <section class="card">
      <div class="card-head">
        <h2>Holdout examples: margin of the right class</h2>
      </div>
      <p class="holdout-summary">
        {count(right)} of {counted(lines.length, "example")} are right at the last collection; {count(never)}{" "}
        {never === 1 ? "was" : "were"} never right, {count(forgotten)} {forgotten === 1 ? "was" : "were"} right before and not at the
        end.
      </p>
      <Heatmap
        label="Margin of the right class by holdout example and step. Above 0 the prediction is right"
        rows={rows}
        columns={columns}
        columnTitle="step"
        values={holdout.margin}
        scale={scale}
        legend="wrong below 0, right above"
        describe={(row, column, value) => [
          `example ${rows[row]!}`,
          `step ${columns[column]}`,
          value === null ? "no value" : `margin ${number(value)}: ${value > 0 ? "right" : "wrong"}`,
        ]}
        maxHeight={560}
      />
    </section>
  );
}

function lastMargins(margins: (number | null)[]): { last: number | null; rights: number; known: number } {
  const known = margins.filter((margin): margin is number => margin !== null);
  return { last: known[known.length - 1] ?? null, rights: known.filter((margin) => margin > 0).length, known: known.length };
}
