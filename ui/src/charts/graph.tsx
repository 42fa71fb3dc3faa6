// A provenance graph: entities, activities and agents as W3C PROV draws them, laid out by dagre, with pan and zoom.

import dagre from "@dagrejs/dagre";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { GraphNode } from "../types";
import "./graph.css";

export interface GraphEdge {
  from: string;
  to: string;
  label: string;
}

export interface GraphProps {
  nodes: GraphNode[];
  edges: GraphEdge[];
  selected: string | null;
  /** Nodes to show in full colour while others are faint; null: all. */
  matches: Set<string> | null;
  onSelect: (id: string | null) => void;
}

const TALL = 34;
const FOLD_FROM = 6;

interface Shape {
  id: string;
  kind: GraphNode["kind"];
  label: string;
  /** Nodes that it stands for, if it is a folded group. */
  members: string[] | null;
}

interface Placed extends Shape {
  x: number;
  y: number;
  width: number;
}

/** Fold nodes with one neighbour, if the neighbour has many of them in the same relation. */
function fold(nodes: GraphNode[], edges: GraphEdge[], open: Set<string>): { shapes: Shape[]; edges: GraphEdge[] } {
  const degree = new Map<string, number>();
  for (const { from, to } of edges) {
    degree.set(from, (degree.get(from) ?? 0) + 1);
    degree.set(to, (degree.get(to) ?? 0) + 1);
  }
  const kinds = new Map(nodes.map(({ id, kind }) => [id, kind]));
  const groups = new Map<string, string[]>();
  for (const { from, to, label } of edges) {
    for (const [leaf, hub, way] of [[from, to, "out"], [to, from, "in"]] as const) {
      if (degree.get(leaf) !== 1 || degree.get(hub) === 1) continue;
      const key = ["group", hub, label, way, kinds.get(leaf)].join("\n");
      groups.set(key, [...(groups.get(key) ?? []), leaf]);
    }
  }
  const home = new Map<string, string>();
  const shapes: Shape[] = [];
  for (const [key, members] of groups) {
    if (members.length < FOLD_FROM || open.has(key)) continue;
    const kind = kinds.get(members[0]!)!;
    const plural = kind === "entity" ? "entities" : kind === "activity" ? "activities" : "agents";
    shapes.push({ id: key, kind, label: `${members.length} ${plural}`, members });
    for (const member of members) home.set(member, key);
  }
  for (const { id, kind, label } of nodes) if (!home.has(id)) shapes.push({ id, kind, label, members: null });
  const seen = new Set<string>();
  const kept: GraphEdge[] = [];
  for (const edge of edges) {
    const moved = { from: home.get(edge.from) ?? edge.from, to: home.get(edge.to) ?? edge.to, label: edge.label };
    const key = `${moved.from}\0${moved.to}\0${moved.label}`;
    if (moved.from === moved.to || seen.has(key)) continue;
    seen.add(key);
    kept.push(moved);
  }
  return { shapes, edges: kept };
}

function short(text: string): string {
  return text.length > 30 ? `${text.slice(0, 14)}…${text.slice(-14)}` : text;
}

interface Layout {
  nodes: Placed[];
  edges: (GraphEdge & { points: { x: number; y: number }[] })[];
  width: number;
  height: number;
}

function layOut(shapes: Shape[], edges: GraphEdge[]): Layout {
  const graph = new dagre.graphlib.Graph({ multigraph: true });
  // Relations point from the later to the earlier: with RL, time goes from left to right.
  graph.setGraph({ rankdir: "RL", nodesep: 12, ranksep: 74, edgesep: 8, marginx: 16, marginy: 16, ranker: "tight-tree" });
  graph.setDefaultEdgeLabel(() => ({}));
  const widths = new Map<string, number>();
  for (const { id, label, kind } of shapes) {
    const width = Math.max(70, short(label).length * 6.6 + (kind === "entity" ? 36 : 24));
    widths.set(id, width);
    graph.setNode(id, { width, height: TALL });
  }
  edges.forEach(({ from, to, label }, i) => {
    if (widths.has(from) && widths.has(to)) graph.setEdge(from, to, { width: label.length * 5, height: 12, labelpos: "c" }, String(i));
  });
  dagre.layout(graph);
  const size = graph.graph() as { width?: number; height?: number };
  return {
    nodes: shapes.map((shape) => {
      const { x, y } = graph.node(shape.id) as { x: number; y: number };
      return { ...shape, x, y, width: widths.get(shape.id)! };
    }),
    edges: edges.flatMap((edge, i) => {
      if (!graph.hasEdge(edge.from, edge.to, String(i))) return [];
      const { points } = graph.edge(edge.from, edge.to, String(i)) as { points: { x: number; y: number }[] };
      return [{ ...edge, points }];
    }),
    width: size.width ?? 100,
    height: size.height ?? 100,
  };
}

/** A smooth line through the points of an edge. */
function curve(points: { x: number; y: number }[]): string {
  const [first, ...rest] = points;
  if (!first) return "";
  let path = `M${first.x},${first.y}`;
  for (let i = 0; i < rest.length - 1; i++) {
    const [a, b] = [rest[i]!, rest[i + 1]!];
    path += `Q${a.x},${a.y} ${(a.x + b.x) / 2},${(a.y + b.y) / 2}`;
  }
  const last = rest[rest.length - 1] ?? first;
  return `${path}L${last.x},${last.y}`;
}

interface Camera {
  x: number;
  y: number;
  scale: number;
}

export function Graph({ nodes, edges, selected, matches, onSelect }: GraphProps) {
  const [open, setOpen] = useState<Set<string>>(new Set());
  const layout = useMemo(() => {
    const folded = fold(nodes, edges, open);
    return layOut(folded.shapes, folded.edges);
  }, [nodes, edges, open]);
  const box = useRef<HTMLDivElement>(null);
  const svg = useRef<SVGSVGElement>(null);
  const [camera, setCamera] = useState<Camera>({ x: 0, y: 0, scale: 1 });
  const [height, setHeight] = useState(200);
  const drag = useRef<{ x: number; y: number; camera: Camera; moved: boolean } | null>(null);

  const fit = () => {
    const width = box.current!.clientWidth;
    // On a narrow screen, a part that can be read is better than all of it.
    const least = width < 600 ? 0.55 : 0.3;
    const wide = Math.min(1, Math.max(least, width / layout.width));
    const height = Math.min(560, Math.max(160, layout.height * wide + 24));
    const scale = Math.min(wide, Math.max(least, height / layout.height));
    setHeight(height);
    setCamera({ x: Math.max(0, (width - layout.width * scale) / 2), y: Math.max(8, (height - layout.height * scale) / 2), scale });
  };
  useLayoutEffect(fit, [layout]);
  const zoom = (factor: number, x = box.current!.clientWidth / 2, y = box.current!.clientHeight / 2) =>
    setCamera((old) => {
      const scale = Math.min(3, Math.max(0.08, old.scale * factor));
      const ratio = scale / old.scale;
      return { x: x - (x - old.x) * ratio, y: y - (y - old.y) * ratio, scale };
    });
  useEffect(() => {
    // Registered by hand: wheel listeners of the page are passive, and this one must keep the page from scrolling.
    const element = svg.current!;
    const onWheel = (event: WheelEvent) => {
      event.preventDefault();
      const rect = element.getBoundingClientRect();
      zoom(Math.exp(-Math.max(-120, Math.min(120, event.deltaY)) * 0.003), event.clientX - rect.left, event.clientY - rect.top);
    };
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => element.removeEventListener("wheel", onWheel);
  }, []);
  // A node that was selected elsewhere comes into view.
  useEffect(() => {
    if (selected === null) return;
    const node = layout.nodes.find(({ id, members }) => id === selected || members?.includes(selected));
    if (node?.members) setOpen((old) => new Set(old).add(node.id));
    if (!node || !box.current) return;
    const { clientWidth: width, clientHeight: height } = box.current;
    setCamera((old) => {
      const scale = Math.max(old.scale, 0.6);
      const [x, y] = [node.x * scale + old.x, node.y * scale + old.y];
      if (scale === old.scale && x > 60 && x < width - 60 && y > 30 && y < height - 30) return old;
      return { x: width / 2 - node.x * scale, y: height / 2 - node.y * scale, scale };
    });
  }, [selected, layout]);

  const near = useMemo(() => {
    const ids = new Set<string>();
    if (selected === null) return ids;
    for (const { from, to } of layout.edges) {
      if (from === selected) ids.add(to);
      if (to === selected) ids.add(from);
    }
    return ids;
  }, [layout, selected]);
  const isFaint = ({ id, members }: Placed) => matches !== null && !matches.has(id) && !members?.some((member) => matches.has(member));

  const onDown = (event: PointerEvent) => {
    if (event.button !== 0) return;
    drag.current = { x: event.clientX, y: event.clientY, camera, moved: false };
  };
  const onMove = (event: PointerEvent) => {
    const from = drag.current;
    if (!from) return;
    const [dx, dy] = [event.clientX - from.x, event.clientY - from.y];
    if (!from.moved && Math.abs(dx) + Math.abs(dy) < 4) return;
    if (!from.moved) svg.current!.setPointerCapture(event.pointerId);
    from.moved = true;
    setCamera({ ...from.camera, x: from.camera.x + dx, y: from.camera.y + dy });
  };
  const onUp = () => {
    const from = drag.current;
    // The click that follows a drag selects nothing.
    if (from && !from.moved) drag.current = null;
    else setTimeout(() => (drag.current = null));
  };
  const pick = (node: Placed) => {
    if (drag.current?.moved) return;
    if (node.members) setOpen(new Set(open).add(node.id));
    else onSelect(node.id === selected ? null : node.id);
  };
  const onKey = (event: KeyboardEvent) => {
    const moves: Record<string, [number, number]> = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
    const move = moves[event.key];
    if (move) setCamera((old) => ({ ...old, x: old.x + move[0], y: old.y + move[1] }));
    else if (event.key === "+" || event.key === "=") zoom(1.3);
    else if (event.key === "-") zoom(1 / 1.3);
    else if (event.key === "0") fit();
    else if (event.key === "Escape") onSelect(null);
    else return;
    event.preventDefault();
  };
  const showLabels = camera.scale > 0.55;
  return (
    <div class="graph">
      <div class="graph-tools" role="group" aria-label="Zoom of the graph">
        <button type="button" class="secondary" aria-label="Zoom out" onClick={() => zoom(1 / 1.4)}>
          −
        </button>
        <button type="button" class="secondary" aria-label="Zoom in" onClick={() => zoom(1.4)}>
          +
        </button>
        <button type="button" class="secondary" onClick={fit}>
          Fit
        </button>
        {open.size > 0 && (
          <button type="button" class="secondary" onClick={() => setOpen(new Set())}>
            Fold
          </button>
        )}
        <ul class="graph-legend" aria-label="Shapes">
          <li>
            <svg width="22" height="12" aria-hidden="true">
              <ellipse class="graph-shape kind-entity" cx="11" cy="6" rx="10" ry="5" />
            </svg>
            entity
          </li>
          <li>
            <svg width="22" height="12" aria-hidden="true">
              <rect class="graph-shape kind-activity" x="1" y="1" width="20" height="10" />
            </svg>
            activity
          </li>
          <li>
            <svg width="22" height="12" aria-hidden="true">
              <path class="graph-shape kind-agent" d="M1,11V5L11,1L21,5V11Z" />
            </svg>
            agent
          </li>
        </ul>
      </div>
      <div class="graph-box" ref={box} style={{ height: `${Math.round(height)}px` }}>
        <svg
          ref={svg}
          class="graph-canvas"
          tabIndex={0}
          role="img"
          aria-label={`Provenance graph with ${nodes.length} nodes and ${edges.length} relations. The list below has the same content.`}
          onPointerDown={onDown}
          onPointerMove={onMove}
          onPointerUp={onUp}
          onPointerCancel={() => (drag.current = null)}
          onKeyDown={onKey}
        >
          <defs>
            <marker id="graph-arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">
              <path class="graph-arrow" d="M0,0L8,4L0,8Z" />
            </marker>
          </defs>
          <g transform={`translate(${camera.x} ${camera.y}) scale(${camera.scale})`}>
            {layout.edges.map((edge, i) => {
              const isNear = edge.from === selected || edge.to === selected;
              const middle = edge.points[Math.floor(edge.points.length / 2)];
              return (
                <g key={i} class={isNear ? "graph-edge is-near" : matches || selected ? "graph-edge is-faint" : "graph-edge"}>
                  <path d={curve(edge.points)} marker-end="url(#graph-arrow)" />
                  {(isNear || (showLabels && layout.edges.length < 60)) && middle && (
                    <text x={middle.x} y={middle.y - 3} text-anchor="middle">
                      {edge.label}
                    </text>
                  )}
                </g>
              );
            })}
            {layout.nodes.map((node) => (
              <g
                key={node.id}
                class={["graph-node", node.id === selected && "is-selected", isFaint(node) && "is-faint", near.has(node.id) && "is-near"].filter(Boolean).join(" ")}
                transform={`translate(${node.x} ${node.y})`}
                onClick={() => pick(node)}
              >
                <title>{node.members ? `${node.label}: click to unfold` : node.label}</title>
                <NodeShape node={node} />
                <text text-anchor="middle" dy="0.35em" y={node.kind === "agent" ? 3 : 0}>
                  {short(node.label)}
                </text>
              </g>
            ))}
          </g>
        </svg>
      </div>
    </div>
  );
}

function NodeShape({ node }: { node: Placed }) {
  const [w, h] = [node.width / 2, TALL / 2];
  const name = `graph-shape kind-${node.kind}${node.members ? " is-folded" : ""}`;
  if (node.kind === "entity") return <ellipse class={name} rx={w} ry={h} />;
  if (node.kind === "activity") return <rect class={name} x={-w} y={-h} width={w * 2} height={h * 2} />;
  return <path class={name} d={`M${-w},${h}V${-h / 3}L0,${-h - 4}L${w},${-h / 3}V${h}Z`} />;
}
