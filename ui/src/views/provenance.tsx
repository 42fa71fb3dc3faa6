// Where a run comes from: settings, with a diff to another run; environment, code, artifacts, and the PROV graph.

import { useMemo, useState } from "preact/hooks";
import { isReport, useAnswer } from "../api";
import { Graph, type GraphEdge } from "../charts/graph";
import { count, counted, plain, size } from "../format";
import { Loading, Trouble } from "../parts/empty";
import { setParams, useRoute } from "../router";
import type { GraphNode, ProvenanceAnswer, RunList } from "../types";
import type { ViewProps } from "../view";
import "./ranks.css";
import "./model.css";
import "./provenance.css";

const MOST_LISTED = 200;

export function ProvenanceView({ run }: ViewProps) {
  const { data, error } = useAnswer<ProvenanceAnswer>(`/api/runs/${encodeURIComponent(run)}/provenance`);
  if (!data) return error ? <Trouble error={error} /> : <Loading height={420} label="Loading the provenance" />;
  return (
    <div class="provenance-view">
      {error && <Trouble error={error} />}
      <Config run={run} config={data.config} />
      <Lines title="Code" lines={data.git} nothing="The program was not started in a git repository." />
      <Artifacts artifacts={data.artifacts} />
      <GraphPanel nodes={data.nodes} edges={data.edges} leftOut={data.left_out} />
      <Lines title="Environment" lines={data.environment} nothing="No environment was recorded." />
    </div>
  );
}

// Settings

/** Return nested settings as one level, with keys joined by dots. */
function flatten(value: unknown, prefix = "", into = new Map<string, unknown>()): Map<string, unknown> {
  if (value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length) {
    for (const [key, child] of Object.entries(value)) flatten(child, prefix ? `${prefix}.${key}` : key, into);
  } else if (prefix) into.set(prefix, value);
  return into;
}

function Config({ run, config }: { run: string; config: Record<string, unknown> }) {
  const { query } = useRoute();
  const other = query.get("with");
  const search = query.get("key") ?? "";
  const isAll = query.get("same") === "show";
  const { data: list } = useAnswer<RunList>(isReport ? null : "/api/runs");
  const { data: answer, error } = useAnswer<ProvenanceAnswer>(other ? `/api/runs/${encodeURIComponent(other)}/provenance` : null);
  const own = useMemo(() => flatten(config), [config]);
  const theirs = useMemo(() => (other && answer ? flatten(answer.config) : null), [other, answer]);
  const rows = useMemo(() => {
    const keys = [...new Set([...own.keys(), ...(theirs?.keys() ?? [])])].sort();
    return keys.map((key) => {
      const [mine, that] = [textOf(own, key), theirs ? textOf(theirs, key) : null];
      return { key, mine, that, differs: theirs !== null && mine !== that };
    });
  }, [own, theirs]);
  const wanted = search.toLowerCase();
  const found = rows.filter(({ key, mine, that }) => !wanted || `${key}\n${mine}\n${that}`.toLowerCase().includes(wanted));
  const shown = theirs && !isAll ? found.filter(({ differs }) => differs) : found;
  const differing = rows.filter(({ differs }) => differs).length;
  const others = (list?.runs ?? []).filter(({ id }) => id !== run);
  const otherName = others.find(({ id }) => id === other)?.name ?? other;
  if (!own.size && !other) {
    return (
      <section class="card">
        <h2>Settings</h2>
        <p class="muted">
          No settings were recorded. Pass them when the run starts: <code>{'stepwell.init("my-run", config={"lr": 3e-4})'}</code>
        </p>
      </section>
    );
  }
  return (
    <section class="card">
      <div class="card-head">
        <h2>Settings</h2>
        <div class="card-tools">
          <label class="search">
            <span class="visually-hidden">Find settings</span>
            <input type="search" value={search} placeholder="Find settings" onInput={(event) => setParams({ key: event.currentTarget.value })} />
          </label>
          {others.length > 0 && (
            <label class="field">
              Compare with
              <select value={other ?? ""} onChange={(event) => setParams({ with: event.currentTarget.value || null, same: null })}>
                <option value="">no other run</option>
                {others.slice(0, MOST_LISTED).map(({ id, name }) => (
                  <option key={id} value={id}>
                    {name === id ? id : `${name} (${id})`}
                  </option>
                ))}
              </select>
            </label>
          )}
        </div>
      </div>
      {error && <Trouble error={error} />}
      {theirs && (
        <p class="muted config-note">
          {differing ? `${counted(differing, "setting")} ${differing === 1 ? "differs" : "differ"} of ${count(rows.length)}.` : "All settings are equal."}{" "}
          <button type="button" class="link-button" onClick={() => setParams({ same: isAll ? null : "show" })}>
            {isAll ? "Show only differences" : "Show equal ones too"}
          </button>
        </p>
      )}
      {shown.length > 0 ? (
        <div class="table-box" tabIndex={0} role="region" aria-label="Settings">
          <table class="data config">
            <thead>
              <tr>
                <th scope="col">Setting</th>
                <th scope="col">{theirs ? "This run" : "Value"}</th>
                {theirs && <th scope="col">{otherName}</th>}
              </tr>
            </thead>
            <tbody>
              {shown.map(({ key, mine, that, differs }, i) => (
                <tr key={key} class={differs && isAll ? "differs" : ""}>
                  <th scope="row">
                    <Key text={key} before={shown[i - 1]?.key} />
                  </th>
                  <td>{mine ?? <span class="muted">not set</span>}</td>
                  {theirs && <td>{that ?? <span class="muted">not set</span>}</td>}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        !theirs && <p class="muted">No setting contains this text.</p>
      )}
    </section>
  );
}

function textOf(settings: Map<string, unknown>, key: string): string | null {
  if (!settings.has(key)) return null;
  const value = settings.get(key);
  if (value === null) return "none";
  if (typeof value === "number") return String(value);
  return plain(value) || "empty";
}

/** The key with the part that it shares with the line above in grey: a table that reads as a tree. */
function Key({ text, before }: { text: string; before: string | undefined }) {
  const [parts, old] = [text.split("."), before?.split(".") ?? []];
  let same = 0;
  while (same < parts.length - 1 && parts[same] === old[same]) same++;
  return (
    <>
      {same > 0 && <span class="muted">{parts.slice(0, same).join(".")}.</span>}
      {parts.slice(same).join(".")}
    </>
  );
}

function Lines({ title, lines, nothing }: { title: string; lines: { label: string; value: string }[]; nothing: string }) {
  return (
    <section class="card">
      <div class="card-head">
        <h2>{title}</h2>
      </div>
      {lines.length ? (
        <dl class="facts-list provenance-facts">
          {lines.map(({ label, value }) => (
            <div key={label}>
              <dt>{label}</dt>
              <dd>{value.length > 400 ? <Long text={value} /> : label.endsWith("_bytes") && Number(value) ? size(Number(value)) : value}</dd>
            </div>
          ))}
        </dl>
      ) : (
        <p class="muted">{nothing}</p>
      )}
    </section>
  );
}

function Long({ text }: { text: string }) {
  return (
    <details>
      <summary>{text.slice(0, 120)}…</summary>
      <pre tabIndex={0}>{text}</pre>
    </details>
  );
}

// Artifacts

function Artifacts({ artifacts }: { artifacts: ProvenanceAnswer["artifacts"] }) {
  const [copied, setCopied] = useState<string | null>(null);
  const copy = (sha256: string) => {
    const done = () => setCopied(sha256);
    if (navigator.clipboard) void navigator.clipboard.writeText(sha256).then(done, () => setCopied(null));
  };
  const total = artifacts.reduce((sum, artifact) => sum + artifact.size, 0);
  return (
    <section class="card">
      <div class="card-head">
        <h2>Artifacts</h2>
        {artifacts.length > 0 && (
          <span class="muted">
            {counted(artifacts.length, "artifact")}, {size(total)}
          </span>
        )}
      </div>
      {artifacts.length === 0 ? (
        <p class="muted">
          No artifacts were stored. An artifact is a file stored with the run: <code>run.artifact("model.pt")</code>
        </p>
      ) : (
        <div class="table-box artifacts" tabIndex={0} role="region" aria-label="Artifacts">
          <table class="data">
            <thead>
              <tr>
                <th scope="col">Name</th>
                <th scope="col" class="number">Size</th>
                <th scope="col" class="number">Step</th>
                <th scope="col" class="number">Rank</th>
                <th scope="col">SHA-256</th>
              </tr>
            </thead>
            <tbody>
              {artifacts.map((artifact, i) => (
                <tr key={i}>
                  <th scope="row">
                    {isReport ? (
                      artifact.name
                    ) : (
                      <a href={artifact.url} download title="Download">
                        {artifact.name}
                      </a>
                    )}
                  </th>
                  <td class="number">{size(artifact.size)}</td>
                  <td class="number">{artifact.step === null ? "" : count(artifact.step)}</td>
                  <td class="number">{artifact.rank}</td>
                  <td>
                    <code title={artifact.sha256}>{artifact.sha256.slice(0, 12)}…</code>{" "}
                    <button type="button" class="link-button" aria-label={`Copy the sha256 of ${artifact.name}`} onClick={() => copy(artifact.sha256)}>
                      {copied === artifact.sha256 ? "copied" : "copy"}
                    </button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <span class="visually-hidden" role="status">
        {copied ? "sha256 copied" : ""}
      </span>
    </section>
  );
}

// Graph

function GraphPanel({ nodes, edges, leftOut }: { nodes: GraphNode[]; edges: GraphEdge[]; leftOut: number }) {
  const { query } = useRoute();
  const chosen = query.get("node");
  const search = query.get("find") ?? "";
  const wanted = search.trim().toLowerCase();
  const hits = useMemo(
    () => (wanted ? nodes.filter(({ id, label, attributes }) => `${id}\n${label}\n${JSON.stringify(attributes)}`.toLowerCase().includes(wanted)) : nodes),
    [nodes, wanted],
  );
  const matches = useMemo(() => (wanted ? new Set(hits.map(({ id }) => id)) : null), [hits, wanted]);
  const select = (id: string | null) => setParams({ node: id });
  if (!nodes.length) return null;
  const node = nodes.find(({ id }) => id === chosen) ?? null;
  return (
    <section class="card">
      <div class="card-head">
        <h2>Provenance graph</h2>
        <div class="card-tools">
          <span class="muted" role="status">
            {wanted ? `${count(hits.length)} of ${counted(nodes.length, "node")}` : counted(nodes.length, "node")}
            {leftOut > 0 ? `; ${count(leftOut)} more are not shown: stepwell export --to prov has them` : ""}
          </span>
          <label class="search">
            <span class="visually-hidden">Find nodes</span>
            <input type="search" value={search} placeholder="Find nodes" onInput={(event) => setParams({ find: event.currentTarget.value })} />
          </label>
        </div>
      </div>
      <div class={node ? "graph-split has-side" : "graph-split"}>
        <Graph nodes={nodes} edges={edges} selected={node?.id ?? null} matches={matches} onSelect={select} />
        {node && <NodePanel node={node} nodes={nodes} edges={edges} onSelect={select} />}
      </div>
      <details class="more">
        <summary>Nodes as a list</summary>
        <div>
          <ul class="node-list">
            {hits.slice(0, MOST_LISTED).map(({ id, kind, label }) => (
              <li key={id}>
                <button type="button" class="link-button" aria-current={id === chosen ? "true" : undefined} onClick={() => select(id)}>
                  {label}
                </button>{" "}
                <span class="muted">{kind}</span>
                <Relations id={id} nodes={nodes} edges={edges} />
              </li>
            ))}
          </ul>
          {hits.length > MOST_LISTED && <p class="muted">{count(hits.length - MOST_LISTED)} more: search for them.</p>}
        </div>
      </details>
    </section>
  );
}

function Relations({ id, nodes, edges }: { id: string; nodes: GraphNode[]; edges: GraphEdge[] }) {
  const own = edges.filter(({ from }) => from === id);
  if (!own.length) return null;
  const label = (other: string) => nodes.find((node) => node.id === other)?.label ?? other;
  const texts = own.slice(0, 8).map(({ to, label: relation }) => `${relation} ${label(to)}`);
  const more = own.length > 8 ? `, and ${own.length - 8} more` : "";
  return <span class="muted"> · {texts.join(", ") + more}</span>;
}

interface NodePanelProps {
  node: GraphNode;
  nodes: GraphNode[];
  edges: GraphEdge[];
  onSelect: (id: string | null) => void;
}

function NodePanel({ node, nodes, edges, onSelect }: NodePanelProps) {
  const label = (other: string) => nodes.find(({ id }) => id === other)?.label ?? other;
  const related = edges.flatMap(({ from, to, label: relation }) => {
    if (from === node.id) return [{ relation, other: to, isOut: true }];
    return to === node.id ? [{ relation, other: from, isOut: false }] : [];
  });
  return (
    <aside class="node-panel" aria-label={`Node ${node.label}`}>
      <div class="card-head">
        <h3>{node.label}</h3>
        <button type="button" class="secondary" aria-label="Close" onClick={() => onSelect(null)}>
          ×
        </button>
      </div>
      <dl class="facts-list">
        <div>
          <dt>kind</dt>
          <dd>{node.kind}</dd>
        </div>
        {Object.entries(node.attributes).map(([key, value]) => (
          <div key={key}>
            <dt>{key.replace(/^(prov|stepwell|dcterms):/, "")}</dt>
            <dd>{provText(value)}</dd>
          </div>
        ))}
      </dl>
      {related.length > 0 && (
        <>
          <h3>Relations</h3>
          <ul class="node-relations">
            {related.slice(0, 60).map(({ relation, other, isOut }, i) => (
              <li key={i}>
                <span class="muted">{isOut ? relation : `${relation} ←`}</span>{" "}
                <button type="button" class="link-button" onClick={() => onSelect(other)}>
                  {label(other)}
                </button>
              </li>
            ))}
            {related.length > 60 && <li class="muted">and {count(related.length - 60)} more</li>}
          </ul>
        </>
      )}
    </aside>
  );
}

/** PROV writes values with a type as {"$": value, "type": …}. */
function provText(value: unknown): string {
  if (Array.isArray(value)) return value.map(provText).join(", ");
  if (value !== null && typeof value === "object" && "$" in value) return plain((value as { $: unknown }).$);
  return plain(value);
}
