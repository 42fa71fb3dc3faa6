"""A provenance document as a graph for people: the same statements, with the many made few.

Phases that repeat are one node, and so are many metrics or checkpoints of one activity; parameters are in
their collection; who did it is drawn for attempts only, since it is the same everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from stepwell.loggers.prov.statements import RELATIONS

MOST_ALIKE = 4
"""So many metrics, checkpoints, … of one activity are drawn one by one."""
MAX_LINE = 34
REDUCED = ("used", "wasInformedBy", "wasDerivedFrom", "wasStartedBy")
"""Relations that are not drawn where others lead to the same."""
MOST_ATTEMPTS = 6
"""So many attempts are drawn: the last ones."""
HIDDEN = ("stepwell:Parameter", "stepwell:Rank")


@dataclass
class Node:
    """One thing, or several that are drawn as one. ``kind`` is entity, activity or agent."""

    id: str
    kind: str
    title: str
    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Edge:
    """A relation, from the later to the earlier."""

    later: str
    earlier: str
    relation: str


@dataclass
class Graph:
    """Nodes by their ids, in the order of the document, and edges, each once."""

    nodes: dict[str, Node]
    edges: list[Edge]


def graph_of(document: dict[str, Any]) -> Graph:
    """The graph of a PROV-JSON document that ``document_of`` made."""
    return _Condensed(document).graph


class _Condensed:
    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.shown_as: dict[str, str | None] = {}
        self.graph = Graph({}, [])
        self._activities()
        self._entities()
        for id, about in document.get("agent", {}).items():
            self._add(id, "agent", _label(about, id), _agent_lines(about))
        self._edges()

    def _add(self, id: str, kind: str, title: str, lines: list[str]) -> None:
        self.shown_as[id] = id
        self.graph.nodes[id] = Node(id, kind, _short(title), [_short(line) for line in lines])

    def _activities(self) -> None:
        """Those that are a part of one of the same name are drawn as that one."""
        activities = self.document.get("activity", {})
        attempts = [id for id, about in activities.items() if "stepwell:Attempt" in _types(about)]
        left_out = set(attempts[:-MOST_ATTEMPTS])
        for id, about in activities.items():
            if id.partition("/")[0] in left_out:
                self.shown_as[id] = None
                continue
            whole = _text(about.get("dcterms:isPartOf"))
            parent = activities.get(whole, {})
            if _hidden(about) or set(_types(about)) & set(_types(parent)) - {"stepwell:Phase"}:
                self.shown_as[id] = whole
                continue
            self._add(id, "activity", _label(about, id), _activity_lines(about))

    def _entities(self) -> None:
        """Those of one type that one activity made are drawn as one where they are many."""
        made_by = {
            r["prov:entity"]: self.shown_as.get(r["prov:activity"])
            for r in self.document.get("wasGeneratedBy", {}).values()
        }
        alike: dict[tuple[str | None, str], list[str]] = defaultdict(list)
        entities = self.document.get("entity", {})
        for id, about in entities.items():
            if _hidden(about) or (id in made_by and made_by[id] is None):
                self.shown_as[id] = None
            else:
                alike[made_by.get(id), _types(about)[-1] if _types(about) else ""].append(id)
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
        found: dict[Edge, None] = {}
        for relation, (first, second) in RELATIONS.items():
            for about in self.document.get(relation, {}).values():
                later = self.shown_as.get(about[first])
                earlier = self.shown_as.get(about[second])
                if later and earlier and later != earlier:
                    found[Edge(later, earlier, relation)] = None
        self.graph.edges = _reduced([edge for edge in found if _is_telling(edge)])


def _is_telling(edge: Edge) -> bool:
    """Whether an edge says something that is not the same everywhere."""
    if edge.relation == "wasAssociatedWith":
        of_run = edge.later == "run:run"
        return of_run if "/user/" in edge.earlier else "/" not in edge.later
    return edge.relation != "wasAttributedTo"


def _reduced(edges: list[Edge]) -> list[Edge]:
    """The edges without those that lead where a way over others leads to."""
    earlier: dict[str, set[str]] = defaultdict(set)
    for edge in edges:
        earlier[edge.later].add(edge.earlier)
    reach: dict[str, set[str]] = {}
    kept = []
    for edge in edges:
        others = earlier[edge.later] - {edge.earlier}
        detour = any(edge.earlier in _before(other, earlier, reach) for other in others)
        if not detour or edge.relation not in REDUCED:
            kept.append(edge)
    return kept


def _before(id: str, earlier: dict[str, set[str]], known: dict[str, set[str]]) -> set[str]:
    """All that was before a node."""
    if id not in known:
        seen: set[str] = set()
        waiting = [id]
        while waiting:
            new = earlier.get(waiting.pop(), set()) - seen
            seen |= new
            waiting += new
        known[id] = seen
    return known[id]


# Words


def _label(about: dict[str, Any], id: str) -> str:
    return _text(about.get("prov:label")) or id.partition(":")[2]


def _activity_lines(about: dict[str, Any]) -> list[str]:
    start, end = about.get("prov:startTime"), about.get("prov:endTime")
    lines = [f"{_moment(start)} – {_moment(end, start) if end else 'now'}"] if start else []
    status, ranks = _text(about.get("stepwell:status")), _text(about.get("stepwell:ranks"))
    if status and status != "ok":
        lines.append(status)
    if ranks and ranks != "1":
        lines.append(f"{ranks} ranks")
    return lines


def _entity_lines(about: dict[str, Any]) -> list[str]:
    lines = []
    value, count = _text(about.get("prov:value")), _text(about.get("stepwell:count"))
    if "stepwell:Metric" in _types(about):
        lines.append(f"{_number(value)} ({count} value{'' if count == '1' else 's'})")
    samples, size = _text(about.get("stepwell:samples")), _text(about.get("stepwell:size"))
    step = _text(about.get("stepwell:step"))
    if samples:
        lines.append(f"{samples} samples")
    if step and "stepwell:Checkpoint" not in _types(about):
        lines.append(f"step {step}")
    if size:
        lines.append(_bytes(int(size)))
    sha256 = _text(about.get("stepwell:sha256"))
    if sha256 and "stepwell:Metric" not in _types(about):
        lines.append(f"sha256 {sha256[:12]}…")
    return lines


def _agent_lines(about: dict[str, Any]) -> list[str]:
    return ["person" if "prov:Person" in _types(about) else "software"]


def _moment(time: str | None, day: str | None = None) -> str:
    """A time to the second, without the day where that is told already."""
    text = (time or "")[:19].replace("T", " ")
    return text[11:] if day is not None and day[:10] == text[:10] else text


def _number(text: str | None) -> str:
    try:
        return f"{float(text or ''):.6g}"
    except ValueError:
        return text or ""


def _bytes(size: int) -> str:
    value, units = float(size), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.4g} {units[0]}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_LINE else f"{text[: MAX_LINE - 1]}…"


def _hidden(about: dict[str, Any]) -> bool:
    return any(type in HIDDEN for type in _types(about))


def _types(about: dict[str, Any]) -> list[str]:
    found = about.get("prov:type", [])
    return [_text(one) or "" for one in (found if isinstance(found, list) else [found])]


def _text(value: Any) -> str | None:
    """A literal without its type."""
    inner = value.get("$") if isinstance(value, dict) else value
    return None if inner is None else str(inner)
