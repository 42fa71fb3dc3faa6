"""The files of a provenance document: PROV-JSON, and its graph as DOT, Mermaid and SVG.

The SVG is drawn here, without Graphviz.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any

from stepwell.loggers.prov.graph import Edge, Graph, GraphNode, graph_of
from stepwell.loggers.prov.layout import LINE, Box, lay_out

MARGIN = 24
LEGEND = 48
COLOURS = {
    "used": "#3b6fb6",
    "wasGeneratedBy": "#b0562c",
    "wasDerivedFrom": "#8a4fa3",
    "wasInformedBy": "#2f8f6b",
    "wasStartedBy": "#9aa0a6",
    "wasAssociatedWith": "#c08a1e",
    "actedOnBehalfOf": "#c08a1e",
    "hadMember": "#777777",
}
DASHED = ("wasStartedBy", "wasAssociatedWith", "actedOnBehalfOf")
FILL = {"entity": "#fffce0", "activity": "#dfe3fb", "agent": "#fdd9b0"}
EDGE = {"entity": "#8d8a45", "activity": "#5a63a8", "agent": "#b37a35"}
FONT = "font-family='DejaVu Sans, Verdana, sans-serif'"


def svg_of(graph: Graph, title: str = "provenance") -> str:
    """Return the graph as SVG. Arrows lead from later to earlier elements, as PROV's relations do."""
    layout = lay_out(graph)
    relations = [name for name in COLOURS if any(e.relation == name for e in graph.edges)]
    legend = _legend(relations)
    width = max(layout.width, sum(map(_legend_width, relations))) + 2 * MARGIN
    height = layout.height + LEGEND + 2 * MARGIN
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0f}' height='{height:.0f}' "
        f"viewBox='0 0 {width:.0f} {height:.0f}' {FONT}>",
        f"<title>{escape(title)}</title>",
        _markers(relations),
        "<rect width='100%' height='100%' fill='white'/>",
        f"<g transform='translate({MARGIN},{MARGIN})'>{legend}</g>",
        f"<g transform='translate({MARGIN},{MARGIN + LEGEND})'>",
        *(_edge(edge, path, graph) for edge, path in layout.paths.items()),
        *(_node(box) for box in layout.boxes.values()),
        "</g></svg>",
    ]
    return "\n".join(parts) + "\n"


def _node(box: Box) -> str:
    node = box.node
    if node is None:
        return ""
    style = f"fill='{FILL[node.kind]}' stroke='{EDGE[node.kind]}' stroke-width='1.2'"
    lines = [f"<g><title>{escape(node.id)}</title>{_shape(box, node.kind, style)}"]
    top = box.y - LINE * len(node.lines) / 2 + 4
    lines.append(
        f"<text x='{box.x:.1f}' y='{top:.1f}' text-anchor='middle' font-size='12.5' "
        f"font-weight='bold'>{escape(node.title)}</text>"
    )
    for number, line in enumerate(node.lines, 1):
        lines.append(
            f"<text x='{box.x:.1f}' y='{top + number * LINE:.1f}' text-anchor='middle' "
            f"font-size='11' fill='#444'>{escape(line)}</text>"
        )
    return "".join([*lines, "</g>"])


def _shape(box: Box, kind: str, style: str) -> str:
    """Return PROV's shape for a kind: an oval, a rectangle or a house."""
    left, top, width, height = box.x - box.width / 2, box.y - box.height / 2, box.width, box.height
    if kind == "entity":
        return (
            f"<rect x='{left:.1f}' y='{top:.1f}' width='{width:.1f}' height='{height:.1f}' "
            f"rx='{min(height, width) / 2:.1f}' {style}/>"
        )
    if kind == "activity":
        return f"<rect x='{left:.1f}' y='{top:.1f}' width='{width:.1f}' height='{height:.1f}' {style}/>"
    right, bottom = left + width, top + height
    roof = [(left, top + 9), (box.x, top - 5), (right, top + 9), (right, bottom), (left, bottom)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in roof)
    return f"<polygon points='{points}' {style}/>"


def _edge(edge: Edge, path: list[tuple[float, float]], graph: Graph) -> str:
    """Return a smooth line through the points, with an arrow at the left end."""
    (x, y), *rest = path
    curve = [f"M{x + 6:.1f},{y:.1f}"]
    x += 6
    for next_x, next_y in rest:
        middle = (x + next_x) / 2
        curve.append(f"C{middle:.1f},{y:.1f} {middle:.1f},{next_y:.1f} {next_x:.1f},{next_y:.1f}")
        x, y = next_x, next_y
    colour = COLOURS.get(edge.relation, "#777777")
    dashes = " stroke-dasharray='5 4'" if edge.relation in DASHED else ""
    title = f"{graph.nodes[edge.later].title} {edge.relation} {graph.nodes[edge.earlier].title}"
    return (
        f"<path d='{' '.join(curve)}' fill='none' stroke='{colour}' stroke-width='1.4'{dashes} "
        f"marker-start='url(#{edge.relation})'><title>{escape(title)}</title></path>"
    )


def _markers(relations: list[str]) -> str:
    arrow = "<path d='M9,0 L0,4 L9,8 z'"
    return "".join(
        [
            "<defs>",
            *(
                f"<marker id='{name}' markerWidth='9' markerHeight='8' refX='6' refY='4' "
                f"markerUnits='userSpaceOnUse' orient='auto'>{arrow} fill='{COLOURS[name]}'/></marker>"
                for name in relations
            ),
            "</defs>",
        ]
    )


def _legend(relations: list[str]) -> str:
    parts, x = [], 0.0
    for name in relations:
        dashes = " stroke-dasharray='5 4'" if name in DASHED else ""
        parts.append(
            f"<path d='M{x + 6:.0f},8 h30' stroke='{COLOURS[name]}' stroke-width='1.6' fill='none'{dashes} "
            f"marker-start='url(#{name})'/><text x='{x + 42:.0f}' y='12' font-size='11' "
            f"fill='#333'>{name}</text>"
        )
        x += _legend_width(name)
    return "".join(parts)


def _legend_width(name: str) -> float:
    return 66 + len(name) * 6.6


SHAPES = {"entity": "ellipse", "activity": "box", "agent": "house"}
BRACKETS = {"entity": ("([", "])"), "activity": ("[", "]"), "agent": ("[/", "\\]")}


def dot_of(graph: Graph) -> str:
    """Return the graph in Graphviz's language."""
    lines = [
        "digraph provenance {",
        '  rankdir="RL";',
        '  node [style="filled", fontname="Helvetica", fontsize=11];',
        '  edge [fontname="Helvetica", fontsize=9];',
    ]
    for node in graph.nodes.values():
        label = "\\n".join(_dot(line) for line in (node.title, *node.lines))
        look = (
            f'shape="{SHAPES[node.kind]}", fillcolor="{FILL[node.kind]}", color="{EDGE[node.kind]}"'
        )
        lines.append(f'  "{_dot(node.id)}" [label="{label}", {look}];')
    for edge in graph.edges:
        style = ', style="dashed"' if edge.relation in DASHED else ""
        colour = COLOURS.get(edge.relation, "#777777")
        look = f'label="{edge.relation}", color="{colour}", fontcolor="{colour}"{style}'
        lines.append(f'  "{_dot(edge.later)}" -> "{_dot(edge.earlier)}" [{look}];')
    return "\n".join([*lines, "}"]) + "\n"


def mermaid_of(graph: Graph) -> str:
    """Return the graph as a Mermaid flowchart."""
    names = {id: f"n{number}" for number, id in enumerate(graph.nodes)}
    lines = ["flowchart RL"]
    for id, node in graph.nodes.items():
        before, after = BRACKETS[node.kind]
        lines.append(f"  {names[id]}{before}{_mermaid(node)}{after}:::{node.kind}")
    for edge in graph.edges:
        arrow = "-.->" if edge.relation in DASHED else "-->"
        lines.append(f"  {names[edge.later]} {arrow}|{edge.relation}| {names[edge.earlier]}")
    for kind in FILL:
        lines.append(f"  classDef {kind} fill:{FILL[kind]},stroke:{EDGE[kind]},color:#222")
    return "\n".join(lines) + "\n"


def _dot(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _mermaid(node: GraphNode) -> str:
    """Return the text of a node in quotes, with characters that are special in Mermaid or HTML encoded."""
    lines = []
    for line in (node.title, *node.lines):
        codes = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;"}
        lines.append("".join(codes.get(letter, letter) for letter in line))
    return json.dumps("<br/>".join(lines), ensure_ascii=False)


DOCUMENT = "provenance.json"


def documents_of(document: dict[str, Any], graph: bool = True, svg: bool = True) -> dict[str, str]:
    """Return the files of a document as texts, by name."""
    files = {DOCUMENT: json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"}
    if graph or svg:
        condensed = graph_of(document)
        if graph:
            files["provenance.dot"] = dot_of(condensed)
            files["provenance.mmd"] = mermaid_of(condensed)
        if svg:
            files["provenance.svg"] = svg_of(condensed)
    return files
