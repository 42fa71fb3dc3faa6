"""The graph of a provenance document: what is drawn, and that nothing is drawn over something else."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stepwell.loggers.prov.graph import Edge, Graph, GraphNode, graph_of, reachable
from stepwell.loggers.prov.graph_files import dot_of, mermaid_of, svg_of
from stepwell.loggers.prov.layout import Box, lay_out
from stepwell.loggers.prov.statements import Name, Statements

HOSTILE = '</text><script>alert(1)</script>"]; evil -> \\ | # ` &amp; ü'


def document(metrics: int = 2, attempts: int = 1, name: str = "net") -> dict[str, Any]:
    """A small document, of the kinds of things that there are."""
    say = Statements({"run": "http://www.example.org/x/"})
    say.activity("run:run", 0, None, prov_type=Name("stepwell:Run"), prov_label="run x")
    user = say.agent("run:agent/user/me", prov_type=Name("prov:Person"), prov_label="me")
    for number in range(attempts):
        attempt = f"run:attempt-{number}"
        loop = f"{attempt}/training_loop"
        phase = [Name("stepwell:Phase"), Name("stepwell:training_loop")]
        say.activity(
            attempt, 0, 9, prov_type=Name("stepwell:Attempt"), prov_label=f"attempt {number}"
        )
        say.activity(loop, 1, 8, prov_type=phase, dcterms_isPartOf=Name(attempt))
        part = f"{loop}-1"
        say.activity(part, 1, 8, prov_type=phase, dcterms_isPartOf=Name(loop))
        say.relate("wasStartedBy", attempt, "run:run")
        say.relate("wasStartedBy", loop, attempt)
        say.relate("wasAssociatedWith", loop, user)
        data = say.entity("run:dataset/d", prov_type=Name("stepwell:Dataset"), prov_label="d")
        say.relate("used", loop, data)
        model = say.entity(f"run:model/{number}", prov_type=Name("stepwell:Model"), prov_label=name)
        say.relate("wasGeneratedBy", model, part)
        say.relate("wasDerivedFrom", model, data)
        for i in range(metrics):
            metric = say.entity(
                f"run:metric/{number}/{i}",
                prov_type=Name("stepwell:Metric"),
                prov_label=f"m{i}",
                prov_value=0.123456789,
                stepwell_count=1,
            )
            say.relate("wasGeneratedBy", metric, loop)
        say.entity(f"run:parameter/{number}", prov_type=Name("stepwell:Parameter"))
    return say.to_json()


def test_a_graph_has_what_matters_and_says_nothing_twice() -> None:
    graph = graph_of(document())
    assert list(graph.nodes) == [
        "run:run",
        "run:attempt-0",
        "run:attempt-0/training_loop",
        "run:dataset/d",
        "run:model/0",
        "run:metric/0/0",
        "run:metric/0/1",
        "run:agent/user/me",
    ]
    loop = "run:attempt-0/training_loop"
    assert set(graph.edges) == {
        Edge("run:attempt-0", "run:run", "wasStartedBy"),
        Edge(loop, "run:attempt-0", "wasStartedBy"),
        Edge(loop, "run:dataset/d", "used"),
        # The part of the loop that made it is drawn as the loop; that it came from the data shows from there.
        Edge("run:model/0", loop, "wasGeneratedBy"),
        Edge("run:metric/0/0", loop, "wasGeneratedBy"),
        Edge("run:metric/0/1", loop, "wasGeneratedBy"),
    }
    assert graph.nodes["run:metric/0/0"].lines == ["0.123457 (1 value)"]


def test_many_things_alike_are_drawn_as_one() -> None:
    graph = graph_of(document(metrics=40))
    (node,) = [node for id, node in graph.nodes.items() if "/metric/" in id or "metric" in id]
    assert (node.title, node.lines) == ("40 × metric", ["m0 …", "m39"])


def test_only_the_last_attempts_are_drawn() -> None:
    graph = graph_of(document(attempts=50))
    attempts = [id for id in graph.nodes if re.fullmatch(r"run:attempt-\d+", id)]
    assert attempts == [f"run:attempt-{n}" for n in range(44, 50)]
    assert {edge.later for edge in graph.edges} | {e.earlier for e in graph.edges} <= set(
        graph.nodes
    )


# The picture


def overlap(one: Box, other: Box) -> bool:
    return (
        abs(one.x - other.x) < (one.width + other.width) / 2
        and abs(one.y - other.y) < (one.height + other.height) / 2
    )


@pytest.mark.parametrize(("metrics", "attempts"), [(0, 1), (3, 1), (4, 6), (30, 3)])
def test_nothing_lies_on_something_else(metrics: int, attempts: int) -> None:
    layout = lay_out(graph_of(document(metrics, attempts)))
    boxes = list(layout.boxes.values())
    for number, box in enumerate(boxes):
        assert not any(overlap(box, other) for other in boxes[:number])
        assert box.width / 2 <= box.x <= layout.width - box.width / 2 + 0.01
        assert box.height / 2 - 0.01 <= box.y <= layout.height - box.height / 2 + 0.01


def test_what_was_earlier_is_to_the_left_and_lines_pass_between_the_boxes() -> None:
    layout = lay_out(graph_of(document(3, 4)))
    for edge, path in layout.paths.items():
        later, earlier = layout.boxes[edge.later], layout.boxes[edge.earlier]
        assert earlier.x + earlier.width / 2 < later.x - later.width / 2
        assert path == sorted(path, key=lambda point: point[0])
        for x, y in path[1:-1]:
            for box in layout.boxes.values():
                inside = abs(x - box.x) < box.width / 2 - 1 and abs(y - box.y) < box.height / 2
                assert not inside


def test_a_ladder_is_drawn_without_crossings() -> None:
    """Two rows of nodes, given in the worst order: an order with no crossing exists, and is found."""
    top = [Edge(f"a{i + 1}", f"a{i}", "used") for i in range(4)]
    bottom = [Edge(f"b{i + 1}", f"b{i}", "used") for i in range(4)]
    names = ["a0", "b0", "b1", "a1", "a2", "b2", "b3", "a3", "a4", "b4"]
    layout = lay_out(Graph({n: GraphNode(n, "entity", n) for n in names}, [*top, *bottom]))
    above = {layout.boxes[f"a{i}"].y < layout.boxes[f"b{i}"].y for i in range(5)}
    assert len(above) == 1


def test_a_circle_in_a_strangers_document_is_no_endless_loop() -> None:
    nodes = {name: GraphNode(name, "entity", name) for name in "abc"}
    edges = [Edge("a", "b", "used"), Edge("b", "c", "used"), Edge("c", "a", "used")]
    assert len(lay_out(Graph(nodes, edges)).boxes) == 3


def test_the_svg_is_well_formed_and_text_stays_text() -> None:
    picture = svg_of(graph_of(document(name=HOSTILE)), HOSTILE)
    root = ElementTree.fromstring(picture)
    assert "script" not in {element.tag.rpartition("}")[2] for element in root.iter()}
    words = " ".join(element.text or "" for element in root.iter())
    assert "</text><script>alert(1)</scri" in words
    assert float(root.attrib["width"]) > 100
    ids = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
    assert set(re.findall(r"url\(#(\w+)\)", picture)) <= ids


def test_only_nodes_with_several_parents_are_searched_for_detours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long chain takes linear time and memory."""
    searched: list[str] = []

    def search(start: str, steps: Mapping[str, set[str]]) -> set[str]:
        searched.append(start)
        return reachable(start, steps)

    say = Statements({"run": "http://www.example.org/x/"})
    models = [say.entity(f"run:model/{i}", prov_type=Name("stepwell:Model")) for i in range(20)]
    for later, earlier in itertools.pairwise(reversed(models)):
        say.relate("wasDerivedFrom", later, earlier)
    monkeypatch.setattr("stepwell.loggers.prov.graph.reachable", search)
    chain = graph_of(say.to_json())
    assert len(chain.edges) == 19
    assert searched == []
    # The last model has two parents now: the way over the model before it makes this edge superfluous.
    say.relate("wasDerivedFrom", models[19], models[0])
    assert graph_of(say.to_json()).edges == chain.edges
    assert sorted(searched) == sorted({models[0], models[18]})


def test_an_empty_document_can_be_drawn() -> None:
    graph = graph_of({"prefix": {}})
    ElementTree.fromstring(svg_of(graph))
    assert dot_of(graph).startswith("digraph")
    assert mermaid_of(graph).startswith("flowchart")


# The texts


def test_dot_has_every_node_and_edge_with_quotes_kept_apart() -> None:
    graph = graph_of(document(name=HOSTILE))
    text = dot_of(graph)
    strings = r'"(?:[^"\\]|\\.)*"'
    nodes = re.findall(rf"^  ({strings}) \[label={strings}", text, re.M)
    edges = re.findall(rf"^  ({strings}) -> ({strings}) \[", text, re.M)
    assert len(nodes) == len(graph.nodes)
    assert len(edges) == len(graph.edges)
    assert all(end in nodes for edge in edges for end in edge)


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz")
def test_graphviz_takes_the_dot(tmp_path: Path) -> None:
    (tmp_path / "g.dot").write_text(dot_of(graph_of(document(name=HOSTILE))))
    subprocess.run(["dot", "-Tsvg", "-o", tmp_path / "g.svg", tmp_path / "g.dot"], check=True)


def test_mermaid_has_every_node_and_edge_with_nothing_that_it_would_take_for_its_own() -> None:
    graph = graph_of(document(name=HOSTILE))
    lines = mermaid_of(graph).splitlines()
    nodes = [
        line
        for line in lines
        if re.fullmatch(r'  n\d+(\(\[|\[/?)"[^"]*"(\]\)|\\?\])::: ?\w+', line)
    ]
    edges = [line for line in lines if re.fullmatch(r"  n\d+ -\.?->\|\w+\| n\d+", line)]
    assert (len(nodes), len(edges)) == (len(graph.nodes), len(graph.edges))
    assert "<script" not in "".join(lines)


@pytest.mark.full
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_a_browser_shows_the_picture(tmp_path: Path) -> None:
    (tmp_path / "g.svg").write_text(svg_of(graph_of(document(3, 2))))
    shot = tmp_path / "g.png"
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--screenshot={shot}"]
    command = ["chromium", *options, f"--user-data-dir={tmp_path}/profile", str(tmp_path / "g.svg")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert shot.read_bytes()[:4] == b"\x89PNG"
    assert shot.stat().st_size > 5000
