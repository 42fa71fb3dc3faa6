"""The graph of a provenance document as text: DOT for Graphviz, Mermaid for Markdown pages."""

from __future__ import annotations

import json

from stepwell.loggers.prov.drawing import COLOURS, DASHED, EDGE, FILL
from stepwell.loggers.prov.graph import Graph, Node

SHAPES = {"entity": "ellipse", "activity": "box", "agent": "house"}
BRACKETS = {"entity": ("([", "])"), "activity": ("[", "]"), "agent": ("[/", "\\]")}


def dot_of(graph: Graph) -> str:
    """The graph in Graphviz's language."""
    lines = [
        "digraph provenance {",
        '  rankdir="RL";',
        '  node [style="filled", fontname="Helvetica", fontsize=11];',
        '  edge [fontname="Helvetica", fontsize=9];',
    ]
    for node in graph.nodes.values():
        words = "\\n".join(_dot(line) for line in (node.title, *node.lines))
        look = (
            f'shape="{SHAPES[node.kind]}", fillcolor="{FILL[node.kind]}", color="{EDGE[node.kind]}"'
        )
        lines.append(f'  "{_dot(node.id)}" [label="{words}", {look}];')
    for edge in graph.edges:
        style = ', style="dashed"' if edge.relation in DASHED else ""
        colour = COLOURS.get(edge.relation, "#777777")
        about = f'label="{edge.relation}", color="{colour}", fontcolor="{colour}"{style}'
        lines.append(f'  "{_dot(edge.later)}" -> "{_dot(edge.earlier)}" [{about}];')
    return "\n".join([*lines, "}"]) + "\n"


def mermaid_of(graph: Graph) -> str:
    """The graph as a Mermaid flowchart."""
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


def _mermaid(node: Node) -> str:
    """The words of a node in quotes, with what has a meaning for Mermaid or HTML as an entity code."""
    lines = []
    for line in (node.title, *node.lines):
        codes = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;"}
        lines.append("".join(codes.get(letter, letter) for letter in line))
    return json.dumps("<br/>".join(lines), ensure_ascii=False)
