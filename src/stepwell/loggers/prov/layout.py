"""The layout of a graph in columns, earlier nodes to the left, with few crossings.

A layered (Sugiyama) layout in four steps: columns by the longest path, dummy nodes where an edge crosses a
column, the order in each column by the mean of the neighbours, and vertical positions by the same, without
overlap.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from stepwell.loggers.prov.graph import Edge, Graph, GraphNode, reachable

LINE = 15
"""Pixels from one line of text to the next."""
LETTER = 6.7
TITLE_LETTER = 7.3
PADDING = 12
GAP = 16
"""Space between the nodes of a column."""
COLUMN_GAP = 70
THIN = 8
"""The height of a dummy node."""
SWEEPS = 24


@dataclass
class Box:
    """The centre and the size of a node. ``node`` is None for a dummy node."""

    node: GraphNode | None
    column: int
    width: float
    height: float
    x: float = 0.0
    y: float = 0.0


@dataclass
class GraphLayout:
    """Boxes by id, the points of each edge from left to right, and the size of the graph."""

    boxes: dict[str, Box]
    paths: dict[Edge, list[tuple[float, float]]]
    width: float
    height: float


def lay_out(graph: Graph) -> GraphLayout:
    """Compute the position of every node."""
    return _LayeredLayout(graph).result()


class _LayeredLayout:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.edges = _forward(graph)
        columns = _columns(graph, self.edges)
        self.boxes = {id: _box(node, columns[id]) for id, node in graph.nodes.items()}
        self.chains: dict[Edge, list[str]] = {}
        self.right: dict[str, list[str]] = defaultdict(list)
        self.left: dict[str, list[str]] = defaultdict(list)
        self._add_dummies()
        self.columns: list[list[str]] = [[] for _ in range(max(columns.values(), default=-1) + 1)]
        for id, box in self.boxes.items():
            self.columns[box.column].append(id)

    def result(self) -> GraphLayout:
        """Return the layout."""
        self._order()
        width = self._set_x()
        height = self._set_y()
        paths = {edge: self._path(edge) for edge in self.edges}
        shown = {id: box for id, box in self.boxes.items() if box.node is not None}
        return GraphLayout(shown, paths, width, height)

    def _add_dummies(self) -> None:
        """Add a dummy node in each column that an edge crosses, to reserve space for the edge."""
        for number, edge in enumerate(self.edges):
            first, last = self.boxes[edge.earlier].column, self.boxes[edge.later].column
            chain = [edge.earlier]
            for column in range(first + 1, last):
                id = f"{number} {column}"
                self.boxes[id] = Box(None, column, 0, THIN)
                chain.append(id)
            chain.append(edge.later)
            self.chains[edge] = chain
            for left, right in pairwise(chain):
                self.right[left].append(right)
                self.left[right].append(left)

    def _order(self) -> None:
        """Sort each column by the mean of the neighbours, in both directions, and keep the best order."""
        best, fewest = [list(column) for column in self.columns], self._crossings()
        for sweep in range(SWEEPS):
            leftward = sweep % 2 == 1
            neighbours = self.right if leftward else self.left
            order = range(len(self.columns))
            for number in reversed(order) if leftward else order:
                places = self._places()
                column = self.columns[number]
                column.sort(key=lambda id: _middle([places[n] for n in neighbours[id]], places[id]))
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(column) for column in self.columns], crossings
        self.columns = best

    def _places(self) -> dict[str, float]:
        """Return the relative position of each node in its column, from 0 (top) to 1."""
        return {
            id: (number + 0.5) / len(column)
            for column in self.columns
            for number, id in enumerate(column)
        }

    def _crossings(self) -> int:
        places = {id: number for column in self.columns for number, id in enumerate(column)}
        total = 0
        for column in self.columns:
            pairs = sorted((places[a], places[b]) for a in column for b in self.right[a])
            ends: list[int] = []
            for _, end in pairs:
                total += len(ends) - bisect_right(ends, end)
                insort(ends, end)
        return total

    def _set_x(self) -> float:
        x = 0.0
        for column in self.columns:
            width = max((self.boxes[id].width for id in column), default=0)
            for id in column:
                box = self.boxes[id]
                box.x = x + width / 2
                if box.node is None:
                    # As wide as the column, so that the edge is straight there.
                    box.width = width
            x += width + COLUMN_GAP
        return max(0.0, x - COLUMN_GAP)

    def _set_y(self) -> float:
        """Move each node towards its neighbours, as far as the other nodes of its column allow."""
        for column in self.columns:
            self._spread(column, [0.0] * len(column))
        for sweep in range(SWEEPS):
            order = range(len(self.columns))
            for number in order if sweep % 2 else reversed(order):
                column = self.columns[number]
                wishes = [self._wish(id) for id in column]
                self._spread(column, wishes)
        top = min((box.y - box.height / 2 for box in self.boxes.values()), default=0)
        for box in self.boxes.values():
            box.y -= top
        return max((box.y + box.height / 2 for box in self.boxes.values()), default=0)

    def _wish(self, id: str) -> float:
        near = self.left[id] + self.right[id]
        # Dummy nodes have more weight, so that long edges become straight.
        weights = [
            4 if self.boxes[n].node is None and self.boxes[id].node is None else 1 for n in near
        ]
        if not near:
            return self.boxes[id].y
        total = sum(self.boxes[n].y * w for n, w in zip(near, weights, strict=True))
        return total / sum(weights)

    def _spread(self, column: list[str], wishes: list[float]) -> None:
        """Place nodes as close to the wishes as possible, in their order and without overlap.

        Nodes that would overlap form a block, which is placed at the mean of the wishes of its members.
        """
        blocks: list[tuple[list[str], list[float], float]] = []
        for id, wish in zip(column, wishes, strict=True):
            ids, wanted = [id], [wish - self.boxes[id].height / 2]
            top = wanted[0]
            while blocks and blocks[-1][2] + self._length(blocks[-1][0]) > top:
                before, earlier, _ = blocks.pop()
                shift = self._length(before)
                wanted = earlier + [w - shift for w in wanted]
                ids = before + ids
                top = sum(wanted) / len(wanted)
            blocks.append((ids, wanted, top))
        for ids, _, top in blocks:
            for id in ids:
                self.boxes[id].y = top + self.boxes[id].height / 2
                top += self.boxes[id].height + GAP

    def _length(self, ids: list[str]) -> float:
        return sum(self.boxes[id].height + GAP for id in ids)

    def _path(self, edge: Edge) -> list[tuple[float, float]]:
        boxes = [self.boxes[id] for id in self.chains[edge]]
        first, last = boxes[0], boxes[-1]
        inner = [(box.x + side * box.width / 2, box.y) for box in boxes[1:-1] for side in (-1, 1)]
        return [(first.x + first.width / 2, first.y), *inner, (last.x - last.width / 2, last.y)]


def _box(node: GraphNode, column: int) -> Box:
    letters = max([len(node.title) * TITLE_LETTER, *(len(line) * LETTER for line in node.lines)])
    more = 26 if node.kind == "entity" else 8
    height = LINE * (1 + len(node.lines)) + 2 * PADDING
    return Box(node, column, letters + more + 2 * PADDING, height)


def _forward(graph: Graph) -> list[Edge]:
    """Return the edges without those that would close a cycle."""
    kept: list[Edge] = []
    after: dict[str, set[str]] = defaultdict(set)
    for edge in graph.edges:
        if edge.later != edge.earlier and edge.earlier not in reachable(edge.later, after):
            kept.append(edge)
            after[edge.earlier].add(edge.later)
    return kept


def _columns(graph: Graph, edges: list[Edge]) -> dict[str, int]:
    """Return the column of each node: right of all earlier nodes. Nodes without earlier ones are in the
    column before the first node that needs them.
    """
    earlier: dict[str, list[str]] = defaultdict(list)
    later: dict[str, list[str]] = defaultdict(list)
    for edge in edges:
        earlier[edge.later].append(edge.earlier)
        later[edge.earlier].append(edge.later)
    columns = dict.fromkeys(graph.nodes, 0)
    waiting = {id: len(earlier[id]) for id in graph.nodes}
    ready = [id for id, count in waiting.items() if count == 0]
    while ready:
        id = ready.pop()
        for other in later[id]:
            columns[other] = max(columns[other], columns[id] + 1)
            waiting[other] -= 1
            if waiting[other] == 0:
                ready.append(other)
    for id in graph.nodes:
        if not earlier[id] and later[id]:
            columns[id] = min(columns[other] for other in later[id]) - 1
    return columns


def _middle(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
