// The page of one run: its head, its tabs, and the view of the tab.

import type { ComponentType } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { isReport, useAnswer, useMissing } from "../api";
import { counted, duration, exactDate, number } from "../format";
import { type Live, useLive } from "../live";
import { Boundary } from "../parts/boundary";
import { Empty, Loading, Trouble } from "../parts/empty";
import { LiveMark, StatusBadge, Tag } from "../parts/marks";
import { Tabs } from "../parts/tabs";
import { href } from "../router";
import type { Head, Overview } from "../types";
import type { ViewProps } from "../view";
import { MediaView } from "./media";
import { MetricsView } from "./metrics";
import { ModelView } from "./model";
import { OverviewView } from "./overview";
import { ProvenanceView } from "./provenance";
import { RanksView } from "./ranks";
import { SystemView } from "./system";
import { TimelineView } from "./timeline";

const TABS: { key: string; title: string; view: ComponentType<ViewProps> | null }[] = [
  { key: "", title: "Overview", view: null },
  { key: "metrics", title: "Metrics", view: MetricsView },
  { key: "media", title: "Media", view: MediaView },
  { key: "timeline", title: "Timeline", view: TimelineView },
  { key: "ranks", title: "Ranks", view: RanksView },
  { key: "model", title: "Model", view: ModelView },
  { key: "system", title: "System", view: SystemView },
  { key: "provenance", title: "Provenance", view: ProvenanceView },
];

export function RunPage({ id, tab }: { id: string; tab: string }) {
  const answer = useAnswer<Overview>(`/api/runs/${encodeURIComponent(id)}`);
  const { error } = answer;
  // While a live run is analysed again, the analysis before stays.
  const complete = useRef<Overview | null>(null);
  if (answer.data && !answer.data.is_partial) complete.current = answer.data;
  const data = answer.data?.is_partial && complete.current ? { ...complete.current, head: answer.data.head } : answer.data;
  // Ended runs are followed too: they may be restarted.
  const { event, link } = useLive(isReport || !data ? null : id, data?.head.status);
  const live: Live = { event: event?.status === "running" ? event : null, link };
  const head = data?.head ?? null;
  useEffect(() => {
    document.title = head ? `${head.name} · stepwell` : "stepwell";
  }, [head?.name]);
  const chosen = TABS.find(({ key }) => key === tab) ?? TABS[0];
  const View = chosen?.view;
  const isMissing = useMissing(id);
  if (isMissing && !data) {
    return (
      <div class="page">
        <Empty title={`There is no run ${id}.`}>
          It may have been deleted or moved. <a href={href([])}>All runs</a>
        </Empty>
      </div>
    );
  }
  return (
    <div class="page">
      <RunHead id={id} head={head} live={live} />
      {isReport && (
        <p class="muted small">
          This file has no other x axes, no span search and no finer zoom. For those, open the run with <code>stepwell ui</code>.
        </p>
      )}
      {/* Read aloud when a live run ends or has new findings, and not at every step. */}
      <p class="visually-hidden" role="status">
        {data && !data.is_partial ? `${data.head.status_text}, ${counted(data.findings.length, "finding")}` : ""}
      </p>
      <Tabs
        label="Views of the run"
        tabs={TABS.map(({ key, title }) => ({ key, title, href: href(key ? ["run", id, key] : ["run", id]) }))}
        chosen={chosen?.key ?? ""}
      />
      {isMissing ? (
        <p class="trouble" role="alert">
          This run no longer exists: it was deleted or moved. The page shows its last state. <a href={href([])}>All runs</a>
        </p>
      ) : (
        error && <Trouble error={error} />
      )}
      <section id="view" role="tabpanel" aria-labelledby={`tab-${chosen?.key}`} class="view">
        <Boundary key={chosen?.key}>
          {!data ? (
            !error && <Loading height={480} label="Loading the run" />
          ) : View ? (
            <View run={id} head={data.head} />
          ) : (
            <OverviewView run={id} overview={data} live={live} />
          )}
        </Boundary>
      </section>
    </div>
  );
}

function RunHead({ id, head, live }: { id: string; head: Head | null; live: Live }) {
  const step = live.event?.step ?? head?.step ?? null;
  const wall = live.event?.wall_ns ?? head?.wall_ns ?? null;
  const facts: string[] = [];
  if (wall !== null) facts.push(duration(wall));
  if (step !== null) facts.push(`step ${number(step)}`);
  if (head?.epoch !== null && head?.epoch !== undefined) facts.push(`epoch ${number(head.epoch)}`);
  if (head) facts.push(counted(head.ranks, "rank"));
  if (head && head.attempts > 1) facts.push(counted(head.attempts, "attempt"));
  return (
    <div class="run-head">
      <div class="run-title">
        <h1>{head?.name ?? id}</h1>
        {head && <StatusBadge status={head.status} text={head.status_text} />}
        {head?.status === "running" && <LiveMark link={live.link} />}
      </div>
      <p class="facts">
        {facts.map((fact) => (
          <span key={fact}>{fact}</span>
        ))}
        {head && <span title={head.path}>started {exactDate(head.created_ms)}</span>}
        {head?.tags.map((tag) => <Tag key={tag} text={tag} />)}
      </p>
    </div>
  );
}
