"""The graph of a provenance document, condensed for people.

Repeated phases are one node, and so are many metrics or checkpoints of one activity. Parameters are shown as
their collection. Agents are connected with attempts only, since they are the same everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from stepwell._core import text
from stepwell.loggers.prov.statements import RELATIONS

MOST_ALIKE = 4
"""Up to this number, the metrics (or checkpoints, …) of one activity are separate nodes."""
MAX_LINE = 34
REDUCED = ("used", "wasInformedBy", "wasDerivedFrom", "wasStartedBy")
"""Relations that are left out if a path of other relations leads to the same node."""
MOST_ATTEMPTS = 6
"""The graph has only the last attempts, up to this number."""
HIDDEN = ("stepwell:Parameter", "stepwell:Rank")


@dataclass
class GraphNode:
    """An element of the document, or several that are shown as one. ``kind`` is entity, activity or agent."""

    id: str
    kind: str
    title: str
    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Edge:
    """A relation from a later to an earlier element."""

    later: str
    earlier: str
    relation: str


@dataclass
class Graph:
    """Nodes by id, in the order of the document, and edges without duplicates."""

    nodes: dict[str, GraphNode]
    edges: list[Edge]


def graph_of(document: dict[str, Any]) -> Graph:
    """Return the graph of a PROV-JSON document that ``document_of`` created."""
    return _Condensed(document).graph


class _Condensed:
    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.shown_as: dict[str, str | None] = {}
        self.graph = Graph({}, [])
        self._activities()
        self._entities()
        for id, element in document.get("agent", {}).items():
            lines = ["person" if "prov:Person" in _types(element) else "software"]
            self._add(id, "agent", _label(element, id), lines)
        self._edges()

    def _add(self, id: str, kind: str, title: str, lines: list[str]) -> None:
        self.shown_as[id] = id
        self.graph.nodes[id] = GraphNode(id, kind, _short(title), [_short(line) for line in lines])

    def _activities(self) -> None:
        """Add activities. Parts of an activity of the same name are shown as that activity."""
        activities = self.document.get("activity", {})
        attempts = [
            id for id, element in activities.items() if "stepwell:Attempt" in _types(element)
        ]
        left_out = set(attempts[:-MOST_ATTEMPTS])
        for id, element in activities.items():
            if id.partition("/")[0] in left_out:
                self.shown_as[id] = None
                continue
            whole = _text(element.get("dcterms:isPartOf"))
            parent = activities.get(whole, {})
            if _hidden(element) or set(_types(element)) & set(_types(parent)) - {"stepwell:Phase"}:
                self.shown_as[id] = whole
                continue
            self._add(id, "activity", _label(element, id), _activity_lines(element))

    def _entities(self) -> None:
        """Add entities. Many entities of one type from one activity are shown as one."""
        sources = {
            r["prov:entity"]: self.shown_as.get(r["prov:activity"])
            for r in self.document.get("wasGeneratedBy", {}).values()
        }
        alike: dict[tuple[str | None, str], list[str]] = defaultdict(list)
        entities = self.document.get("entity", {})
        for id, element in entities.items():
            if _hidden(element) or (id in sources and sources[id] is None):
                self.shown_as[id] = None
            else:
                alike[sources.get(id), _types(element)[-1] if _types(element) else ""].append(id)
        for (activity, type), ids in alike.items():
            if activity is None or len(ids) <= MOST_ALIKE:
                for id in ids:
                    self._add(id, "entity", _label(entities[id], id), _entity_lines(entities[id]))
                continue
            first, last = _label(entities[ids[0]], ids[0]), _label(entities[ids[-1]], ids[-1])
            name = type.rpartition(":")[2].lower()
            self._add(ids[0], "entity", f"{len(ids)} × {name}", [f"{first} …", last])
            self.shown_as |= dict.fromkeys(ids, ids[0])

    def _edges(self) -> None:
        edges: dict[Edge, None] = {}
        for relation, (first, second) in RELATIONS.items():
            for element in self.document.get(relation, {}).values():
                later = self.shown_as.get(element[first])
                earlier = self.shown_as.get(element[second])
                if later and earlier and later != earlier:
                    edges[Edge(later, earlier, relation)] = None
        self.graph.edges = _reduced([edge for edge in edges if _is_informative(edge)])


def _is_informative(edge: Edge) -> bool:
    """Return whether an edge is not the same for all activities or entities."""
    if edge.relation == "wasAssociatedWith":
        of_run = edge.later == "run:run"
        return of_run if "/user/" in edge.earlier else "/" not in edge.later
    return edge.relation != "wasAttributedTo"


def _reduced(edges: list[Edge]) -> list[Edge]:
    """Return the edges without those that a path of other edges replaces."""
    earlier: dict[str, set[str]] = defaultdict(set)
    for edge in edges:
        earlier[edge.later].add(edge.earlier)

    @cache
    def before(id: str) -> set[str]:
        return reachable(id, earlier)

    def has_detour(edge: Edge) -> bool:
        others = earlier[edge.later] - {edge.earlier}
        return any(edge.earlier in before(other) for other in others)

    return [edge for edge in edges if edge.relation not in REDUCED or not has_detour(edge)]


def reachable(start: str, steps: Mapping[str, set[str]]) -> set[str]:
    """Return all nodes that one or more steps lead to."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = steps.get(waiting.pop(), set()) - seen
        seen |= new
        waiting += new
    return seen


# Texts


def _label(element: dict[str, Any], id: str) -> str:
    return _text(element.get("prov:label")) or id.partition(":")[2]


def _activity_lines(element: dict[str, Any]) -> list[str]:
    start, end = element.get("prov:startTime"), element.get("prov:endTime")
    lines = [f"{_moment(start)} – {_moment(end, start) if end else 'now'}"] if start else []
    status, ranks = _text(element.get("stepwell:status")), _text(element.get("stepwell:ranks"))
    if status and status != "ok":
        lines.append(status)
    if ranks and ranks != "1":
        lines.append(f"{ranks} ranks")
    return lines


def _entity_lines(element: dict[str, Any]) -> list[str]:
    lines = []
    value, count = _text(element.get("prov:value")), _text(element.get("stepwell:count"))
    if "stepwell:Metric" in _types(element):
        lines.append(f"{_number(value)} ({count} value{'' if count == '1' else 's'})")
    samples, size = _text(element.get("stepwell:samples")), _text(element.get("stepwell:size"))
    step = _text(element.get("stepwell:step"))
    if samples:
        lines.append(f"{samples} samples")
    if step and "stepwell:Checkpoint" not in _types(element):
        lines.append(f"step {step}")
    if size:
        lines.append(text.size(int(size)))
    sha256 = _text(element.get("stepwell:sha256"))
    if sha256 and "stepwell:Metric" not in _types(element):
        lines.append(f"sha256 {sha256[:12]}…")
    return lines


def _moment(time: str | None, day: str | None = None) -> str:
    """Return a time to the second, without the date if it is the same as ``day``."""
    moment = (time or "")[:19].replace("T", " ")
    return moment[11:] if day is not None and day[:10] == moment[:10] else moment


def _number(value: str | None) -> str:
    try:
        return f"{float(value or ''):.6g}"
    except ValueError:
        return value or ""


def _short(line: str) -> str:
    line = " ".join(line.split())
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 1]}…"


def _hidden(element: dict[str, Any]) -> bool:
    return any(type in HIDDEN for type in _types(element))


def _types(element: dict[str, Any]) -> list[str]:
    types = element.get("prov:type", [])
    return [_text(each) or "" for each in (types if isinstance(types, list) else [types])]


def _text(value: Any) -> str | None:
    """Return a literal without its type."""
    inner = value.get("$") if isinstance(value, dict) else value
    return None if inner is None else str(inner)
