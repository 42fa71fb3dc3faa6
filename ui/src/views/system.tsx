// The machine under a run: CPU, memory, disk, network and GPUs over time, with one cursor for all charts.

import { useMemo, useState } from "preact/hooks";
import { isReport, useAnswer } from "../api";
import { MetricChart, type Unit } from "../charts/line";
import { count, counted, number, percent, size } from "../format";
import { Empty, Loading, Trouble } from "../parts/empty";
import { type Range, setParams, useRoute, useRouteRange } from "../router";
import type { MetricInfo, MetricList, SeriesAnswer } from "../types";
import type { ViewProps } from "../view";
import "./ranks.css";
import "./model.css";
import "./system.css";

const PREFIX = "system/";
const MOST_LINES = 64;

interface Chart {
  title: string;
  names: string[];
  unit: Unit;
}

interface Device {
  key: string;
  title: string;
  note: string;
  charts: Chart[];
}

const numberIn = (symbol: string): Unit => (value, digits) => `${number(value, digits)} ${symbol}`;
const unitOf = (name: string): Unit => {
  if (name.endsWith("_bytes")) return size;
  if (name.endsWith("_percent")) return numberIn("%");
  if (name.endsWith("_watts")) return numberIn("W");
  if (name.endsWith("_celsius")) return numberIn("°C");
  if (name.endsWith("_joules")) return numberIn("J");
  return number;
};

/** Charts of the metrics that every run records: metrics in one chart have the same unit. */
const KNOWN: { key: string; title: string; note: string; charts: [string, string[]][] }[] = [
  {
    key: "cpu",
    title: "CPU",
    note: "The process and its children: 100 % is one core. The node: 100 % is all cores.",
    charts: [
      ["Process", ["cpu_percent"]],
      ["Node", ["node_cpu_percent"]],
    ],
  },
  {
    key: "memory",
    title: "Memory",
    note: "Resident memory of the process and its children; available memory of the node or container.",
    charts: [
      ["Process", ["memory_rss_bytes"]],
      ["Node", ["memory_available_bytes", "memory_total_bytes", "memory_limit_bytes"]],
    ],
  },
  {
    key: "disk",
    title: "Disk",
    note: "Bytes since recording began, of the process and its children.",
    charts: [["Read and written", ["disk_read_bytes", "disk_write_bytes"]]],
  },
  {
    key: "network",
    title: "Network",
    note: "Bytes of the node since recording began, without loopback.",
    charts: [["Received and sent", ["network_received_bytes", "network_sent_bytes"]]],
  },
  {
    key: "processes",
    title: "Processes and threads",
    note: "",
    charts: [["Number", ["processes", "threads"]]],
  },
  {
    key: "energy",
    title: "Energy",
    note: "Joules since recording began.",
    charts: [["CPU", ["energy_cpu_measured_joules", "energy_cpu_estimated_joules"]]],
  },
];

const GPU: [string, string[]][] = [
  ["Utilization", ["utilization_percent"]],
  ["Memory", ["memory_used_bytes", "memory_total_bytes"]],
  ["Power", ["power_watts"]],
  ["Temperature", ["temperature_celsius"]],
  ["Energy", ["energy_measured_joules"]],
];

function devicesOf(metrics: MetricInfo[]): Device[] {
  const left = new Set(metrics.map(({ name }) => name));
  const take = (charts: [string, string[]][], prefix: string): Chart[] =>
    charts.flatMap(([title, names]) => {
      const own = names.map((name) => prefix + name).filter((name) => left.delete(name));
      return own.length ? [{ title, names: own, unit: unitOf(own[0]!) }] : [];
    });
  const gpus = [...new Set([...left].flatMap((name) => /^system\/gpu_(\d+)\//.exec(name)?.[1] ?? []))].sort((a, b) => Number(a) - Number(b));
  const devices = [
    ...gpus.map((gpu) => ({ key: `gpu${gpu}`, title: `GPU ${gpu}`, note: "", charts: take(GPU, `${PREFIX}gpu_${gpu}/`) })),
    ...KNOWN.map(({ key, title, note, charts }) => ({ key, title, note, charts: take(charts, PREFIX) })),
  ];
  const others = [...left].map((name) => ({ title: name.slice(PREFIX.length), names: [name], unit: unitOf(name) }));
  devices.push({ key: "other", title: "Other", note: "", charts: others });
  return devices.filter(({ charts }) => charts.length);
}

export function SystemView({ run, head }: ViewProps) {
  const { query } = useRoute();
  const { data, error } = useAnswer<MetricList>(`/api/runs/${encodeURIComponent(run)}/metrics`);
  const metrics = useMemo(() => (data?.metrics ?? []).filter(({ name }) => name.startsWith(PREFIX)), [data]);
  const devices = useMemo(() => devicesOf(metrics), [metrics]);
  const hasRanks = !isReport && metrics.some(({ ranks }) => ranks > 1);
  const [by, setBy] = [query.get("by") === "rank" ? "rank" : "spread", (next: string) => setParams({ by: next === "rank" ? next : null })] as const;
  const [range, setRange] = useRouteRange();
  const { spreads, isKnown } = useSpreads(run, hasRanks ? metrics.filter(({ ranks }) => ranks > 1).map(({ name }) => name) : []);
  if (hasRanks && !isKnown) return <Loading height={420} label="Loading the system metrics" />;
  if (!data) return error ? <Trouble error={error} /> : <Loading height={420} label="Loading the system metrics" />;
  if (!devices.length) {
    return (
      <Empty title="No system metrics were recorded." code={"pip install 'stepwell[nvml]'  # for GPUs"}>
        A run records CPU, memory, disk and network every five seconds, first after two seconds, unless STEPWELL_RUNTIME turns it off.
        Short, simulated and imported runs have none.
      </Empty>
    );
  }
  const spreadOf = (device: Device) => Math.max(0, ...device.charts.flatMap(({ names }) => names.map((name) => spreads[name] ?? 0)));
  const sorted = hasRanks ? [...devices].sort((a, b) => spreadOf(b) - spreadOf(a)) : devices;
  const widest = Math.max(...devices.map(spreadOf));
  const most = Math.max(...metrics.map(({ ranks }) => ranks));
  return (
    <div class="system-view">
      {error && <Trouble error={error} />}
      {hasRanks && (
        <div class="card-tools">
          <div class="segments" role="group" aria-label="Ranks">
            <button type="button" class="secondary" aria-pressed={by === "spread"} onClick={() => setBy("spread")}>
              Spread over ranks
            </button>
            <button type="button" class="secondary" aria-pressed={by === "rank"} onClick={() => setBy("rank")}>
              Per rank
            </button>
          </div>
          <span class="muted">
            {by === "rank" && most > MOST_LINES
              ? `${count(most)} ranks are many lines; the spread shows the lowest, mean and highest.`
              : `${counted(most, "rank")}. Where ranks differ most comes first.`}
          </span>
        </div>
      )}
      <div class="devices">
        {sorted.map((device) => (
          <DevicePanel
            key={device.key}
            run={run}
            device={device}
            by={hasRanks ? by : "mean"}
            spread={hasRanks ? spreadOf(device) : null}
            isOpen={!hasRanks || head.ranks <= 1 || devices.length <= 3 || spreadOf(device) >= widest * 0.34}
            range={range}
            onRange={setRange}
          />
        ))}
      </div>
    </div>
  );
}

/** Return for each metric how far its ranks are apart, relative to their mean, over the whole run. */
function useSpreads(run: string, names: string[]): { spreads: Record<string, number>; isKnown: boolean } {
  const { data, error } = useAnswer<SeriesAnswer>(names.length ? `/api/runs/${encodeURIComponent(run)}/series` : null, {
    name: names,
    by: "spread",
    x: "time",
    points: 40,
  });
  const spreads = useMemo(() => {
    const spreads: Record<string, number> = {};
    for (const { name, y, low, high } of data?.series ?? []) {
      let apart = 0;
      let total = 0;
      y.forEach((mean, i) => {
        const [bottom, top] = [low?.[i], high?.[i]];
        if (mean === null || bottom === null || bottom === undefined || top === null || top === undefined) return;
        apart += top - bottom;
        total += Math.abs(mean);
      });
      spreads[name] = total > 0 ? apart / total : 0;
    }
    return spreads;
  }, [data]);
  return { spreads, isKnown: data !== null || error !== null };
}

interface PanelProps {
  run: string;
  device: Device;
  by: "mean" | "rank" | "spread";
  spread: number | null;
  isOpen: boolean;
  range: Range | null;
  onRange: (range: Range | null) => void;
}

function DevicePanel({ run, device, by, spread, isOpen, range, onRange }: PanelProps) {
  const [choice, setChoice] = useState<boolean | null>(null);
  const open = choice ?? isOpen;
  const width = !open || device.charts.length < 2 ? "" : device.charts.length > 3 ? "is-full" : "is-wide";
  return (
    <details class={`device card ${width}`} open={open}>
      <summary
        onClick={(event) => {
          event.preventDefault();
          setChoice(!open);
        }}
      >
        <h2>{device.title}</h2>
        {spread !== null && spread > 0.005 && <span class="muted">ranks differ by {percent(spread)} of their mean</span>}
        {device.note && <span class="muted device-note">{device.note}</span>}
      </summary>
      {open && (
        <div class="device-charts">
          {device.charts.map(({ title, names, unit }) => (
            <MetricChart
              key={title}
              runs={[run]}
              names={names}
              title={title}
              x="time"
              by={by}
              unit={unit}
              fromZero={names.every((name) => /_(bytes|percent)$/.test(name))}
              height={130}
              range={range}
              onRange={onRange}
              syncKey={`system ${run}`}
            />
          ))}
        </div>
      )}
    </details>
  );
}
