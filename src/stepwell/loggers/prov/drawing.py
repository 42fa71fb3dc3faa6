"""The graph of a provenance document as an SVG picture, with nothing needed to draw it."""

from __future__ import annotations

from html import escape

from stepwell.loggers.prov.graph import Edge, Graph
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
    """The picture. Arrows lead from what was later to what was earlier, as PROV's relations do."""
    layout = lay_out(graph)
    relations = [name for name in COLOURS if any(e.relation == name for e in graph.edges)]
    legend = _legend(relations)
    width = max(layout.width, sum(map(_legend_width, relations))) + 2 * MARGIN
    height = layout.height + LEGEND + 2 * MARGIN
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0f}' height='{height:.0f}' "
        f"viewBox='0 0 {width:.0f} {height:.0f}' {FONT}>",
        f"<title>{_text(title)}</title>",
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
    lines = [f"<g><title>{_text(node.id)}</title>{_shape(box, node.kind, style)}"]
    top = box.y - LINE * len(node.lines) / 2 + 4
    lines.append(
        f"<text x='{box.x:.1f}' y='{top:.1f}' text-anchor='middle' font-size='12.5' "
        f"font-weight='bold'>{_text(node.title)}</text>"
    )
    for number, line in enumerate(node.lines, 1):
        lines.append(
            f"<text x='{box.x:.1f}' y='{top + number * LINE:.1f}' text-anchor='middle' "
            f"font-size='11' fill='#444'>{_text(line)}</text>"
        )
    return "".join([*lines, "</g>"])


def _shape(box: Box, kind: str, style: str) -> str:
    """PROV's own shapes: an oval, a rectangle, a house."""
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
    """A smooth line through the points, with its arrow at the left end."""
    (x, y), *rest = path
    curve = [f"M{x + 6:.1f},{y:.1f}"]
    x += 6
    for next_x, next_y in rest:
        middle = (x + next_x) / 2
        curve.append(f"C{middle:.1f},{y:.1f} {middle:.1f},{next_y:.1f} {next_x:.1f},{next_y:.1f}")
        x, y = next_x, next_y
    colour = COLOURS.get(edge.relation, "#777777")
    dashes = " stroke-dasharray='5 4'" if edge.relation in DASHED else ""
    told = f"{graph.nodes[edge.later].title} {edge.relation} {graph.nodes[edge.earlier].title}"
    return (
        f"<path d='{' '.join(curve)}' fill='none' stroke='{colour}' stroke-width='1.4'{dashes} "
        f"marker-start='url(#{edge.relation})'><title>{_text(told)}</title></path>"
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
            f"<path d='M{x + 6:.0f},8 h30' stroke='{COLOURS[name]}' stroke-width='1.6' fill='none'"
            f"{dashes} marker-start='url(#{name})'/>"
            f"<text x='{x + 42:.0f}' y='12' font-size='11' fill='#333'>{name}</text>"
        )
        x += _legend_width(name)
    return "".join(parts)


def _legend_width(name: str) -> float:
    return 66 + len(name) * 6.6


def _text(text: str) -> str:
    return escape(text, quote=True)
