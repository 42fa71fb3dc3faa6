"""Provenance of real runs, as PROV documents."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell.journal.state import current_journal
from stepwell.loggers.prov import document_of
from stepwell.loggers.prov.statements import encoded, literal, local_name, namespace_of
from stepwell.telemetry.artifacts import store
from tests.harness import Program, environment, run_script, start_script
from tests.loggers.prov_checking import check, pairs, things, types, value

pytest.importorskip("prov")

PROGRAM = Path(__file__).parent / "prov_program.py"


def trained(folder: Path, run: str, *more: str, **ranks: str) -> Program:
    # The code that is run is a repository of its own, so that the document tells of it.
    return start_script(PROGRAM, folder, run, *more, cwd=folder / "code", env=environment(**ranks))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prov")
    code = folder / "code"
    code.mkdir()
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "x", "--allow-empty"]):
        subprocess.run(["git", *words], cwd=code, check=True)
    return folder


@pytest.fixture(scope="module")
def restarted(place: Path) -> dict[str, Any]:
    """The document of a run with two attempts."""
    for more in ([], ["resume"]):
        assert trained(place, "one", *more).wait(120) == 0
    return document_of(place / "runs" / "one")


@pytest.fixture(scope="module")
def parallel(place: Path) -> dict[str, Any]:
    """The document of a run with two ranks."""
    running = [trained(place, "two", RANK=str(rank), WORLD_SIZE="2") for rank in (0, 1)]
    assert [process.wait(120) for process in running] == [0, 0]
    return document_of(place / "runs" / "two")


# The whole of it


@pytest.mark.full
def test_documents_hold_up_to_the_constraints(
    restarted: dict[str, Any], parallel: dict[str, Any]
) -> None:
    check(restarted)
    check(parallel)


def test_the_same_folder_gives_the_same_document(place: Path, restarted: dict[str, Any]) -> None:
    assert document_of(place / "runs" / "one") == restarted


def test_names_are_below_the_namespace_of_the_user(place: Path) -> None:
    document = document_of(
        place / "runs" / "one", user_namespace="lab.example.com/x", experiment="é 1"
    )
    check(document)
    assert document["prefix"]["run"] == "http://lab.example.com/x/%C3%A9%201/one/"


# Activities


def test_attempts_and_phases_are_activities(restarted: dict[str, Any]) -> None:
    assert set(things(restarted, "stepwell:Run")) == {"run:run"}
    assert set(things(restarted, "stepwell:Attempt")) == {"run:attempt-0", "run:attempt-1"}
    first = {id for id in things(restarted, "stepwell:Phase") if "attempt-0" in id}
    names = ["model_initialization", "data_loader_initialization", "training_loop", "testing_loop"]
    for name in ("validation_loop", "checkpoint_save_sync"):
        names += [name, f"{name}-1", f"{name}-2"]
    assert first == {f"run:attempt-0/{name}" for name in names}
    about = restarted["activity"]["run:attempt-0/validation_loop"]
    assert value(about["stepwell:times"]) == "2"
    assert value(about["dcterms:isPartOf"]) == "run:attempt-0/training_loop"
    run = restarted["activity"]["run:run"]
    assert (run["stepwell:status"], value(run["stepwell:attempts"])) == ("finished", "2")


def test_phases_were_informed_by_what_they_took_something_from(restarted: dict[str, Any]) -> None:
    training, attempt = "run:attempt-1/training_loop", "run:attempt-1"
    assert pairs(restarted, "wasInformedBy") >= {
        ("run:attempt-1", "run:attempt-0"),
        (training, f"{attempt}/model_initialization"),
        (training, f"{attempt}/data_loader_initialization"),
        (training, f"{attempt}/checkpoint_load"),
        (f"{attempt}/validation_loop", training),
        (f"{attempt}/testing_loop", training),
        (f"{attempt}/checkpoint_save_sync", training),
    }


def test_ranks_are_activities_and_do_their_phases_together(parallel: dict[str, Any]) -> None:
    ranks = things(parallel, "stepwell:Rank")
    assert set(ranks) == {"run:attempt-0/rank-0", "run:attempt-0/rank-1"}
    assert {value(about["stepwell:rank"]) for about in ranks.values()} == {"0", "1"}
    training = parallel["activity"]["run:attempt-0/training_loop"]
    assert value(training["stepwell:ranks"]) == "2"
    loss = parallel["entity"]["run:metric/attempt-0/train%2Floss"]
    assert (value(loss["stepwell:count"]), value(loss["stepwell:ranks"])) == ("12", "2")


# Agents


def test_a_program_did_it_on_behalf_of_a_user(restarted: dict[str, Any]) -> None:
    import getpass

    (user,) = things(restarted, "prov:Person")
    software = things(restarted, "prov:SoftwareAgent")
    assert restarted["agent"][user]["foaf:name"] == getpass.getuser()
    assert {about["prov:label"].split()[0] for about in software.values()} == {
        "prov_program.py",
        "stepwell",
    }
    program = "run:agent/program/prov_program.py"
    assert pairs(restarted, "actedOnBehalfOf") == {(program, user)}
    for activity in restarted["activity"]:
        assert (activity, user) in pairs(restarted, "wasAssociatedWith")
    plans = {
        about["prov:plan"]
        for about in restarted["wasAssociatedWith"].values()
        if about["prov:agent"] == program
    }
    assert plans == set(things(restarted, "stepwell:Code"))


# What was used


def test_code_and_environment_were_used(place: Path, restarted: dict[str, Any]) -> None:
    ((code, about),) = things(restarted, "stepwell:Code").items()
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=place / "code", check=True, capture_output=True, text=True
    ).stdout.strip()
    assert about["stepwell:commit"] == commit
    assert value(about["stepwell:dirty"]) == "false"
    ((environment, about),) = things(restarted, "stepwell:Environment").items()
    assert about["stepwell:python"] == ".".join(map(str, sys.version_info[:3]))
    assert any(package.startswith("polars==") for package in about["stepwell:package"])
    for attempt in ("run:attempt-0", "run:attempt-1"):
        assert {(attempt, code), (attempt, environment)} <= pairs(restarted, "used")


def test_parameters_are_a_collection_that_was_used(restarted: dict[str, Any]) -> None:
    (collection,) = things(restarted, "stepwell:Parameters")
    found = {
        about["prov:label"]: about["prov:value"]
        for about in things(restarted, "stepwell:Parameter").values()
    }
    assert found == {
        "lr": {"$": "0.1", "type": "xsd:double"},
        "opt.name": "sgd",
        "opt.momentum": {"$": "0.9", "type": "xsd:double"},
        "epochs": {"$": "2", "type": "xsd:int"},
        "seed": {"$": "7", "type": "xsd:int"},
    }
    assert {c for c, _ in pairs(restarted, "hadMember")} == {collection}
    assert ("run:attempt-0/training_loop", collection) in pairs(restarted, "used")
    assert not any(entity == collection for entity, _ in pairs(restarted, "wasGeneratedBy"))


def test_datasets_were_used_by_the_phase_they_were_for(
    place: Path, restarted: dict[str, Any]
) -> None:
    found = {about["prov:label"]: id for id, about in things(restarted, "stepwell:Dataset").items()}
    assert set(found) == {"train", "val"}
    used = pairs(restarted, "used")
    assert ("run:attempt-0/training_loop", found["train"]) in used
    assert ("run:attempt-0/validation_loop", found["val"]) in used
    about = restarted["entity"][found["train"]]
    assert about["stepwell:sha256"] == hashlib.sha256((place / "data.csv").read_bytes()).hexdigest()
    assert value(about["prov:location"]) == (place / "data.csv").as_uri()
    derived = pairs(restarted, "wasDerivedFrom")
    models = things(restarted, "stepwell:Model")
    assert all((model, found["train"]) in derived for model in models)
    assert not any(earlier == found["val"] for _, earlier in derived)


# What was made


def test_models_have_their_sum_and_what_they_are_a_revision_of(
    place: Path, restarted: dict[str, Any]
) -> None:
    models = {
        id: about for id, about in things(restarted, "stepwell:Model").items() if "attempt-0" in id
    }
    assert [value(about["stepwell:step"]) for about in models.values()] == ["3", "6"]
    for id, about in models.items():
        path = place / "runs" / "one" / "artifacts" / about["stepwell:sha256"]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == about["stepwell:sha256"]
        assert value(about["prov:location"]) == path.as_uri()
        assert (id, "run:attempt-0/training_loop") in pairs(restarted, "wasGeneratedBy")
    first, second = models
    (revision,) = [
        about
        for about in restarted["wasDerivedFrom"].values()
        if about["prov:generatedEntity"] == second and about["prov:usedEntity"] == first
    ]
    assert types(revision) == ["prov:Revision"]


def test_checkpoints_were_made_by_their_saves(restarted: dict[str, Any]) -> None:
    made = pairs(restarted, "wasGeneratedBy")
    for attempt in (0, 1):
        for number, step in ((1, 3), (2, 6)):
            entity = f"run:checkpoint/attempt-{attempt}/step-{step}"
            assert (entity, f"run:attempt-{attempt}/checkpoint_save_sync-{number}") in made
    about = restarted["entity"]["run:checkpoint/attempt-0/step-6"]
    assert value(about["stepwell:size"]) == "106"
    derived = pairs(restarted, "wasDerivedFrom")
    assert ("run:checkpoint/attempt-0/step-6", "run:checkpoint/attempt-0/step-3") in derived


def test_a_load_used_the_checkpoint_that_it_names(restarted: dict[str, Any]) -> None:
    load = ("run:attempt-1/checkpoint_load", "run:checkpoint/attempt-0/step-6")
    assert load in pairs(restarted, "used")


def test_metrics_were_made_by_the_phase_they_were_logged_in(restarted: dict[str, Any]) -> None:
    made = dict(pairs(restarted, "wasGeneratedBy"))
    expected = {"train%2Floss": "training_loop", "val%2Faccuracy": "validation_loop"}
    for name, phase in {**expected, "test%2Faccuracy": "testing_loop"}.items():
        assert made[f"run:metric/attempt-1/{name}"] == f"run:attempt-1/{phase}"
    about = restarted["entity"]["run:metric/attempt-0/train%2Floss"]
    lines = "".join(f"0,{i},{1 / (1 + i)!r}\n" for i in range(6))
    assert about["stepwell:sha256"] == hashlib.sha256(lines.encode()).hexdigest()
    assert about["prov:value"] == {"$": repr(1 / 6), "type": "xsd:double"}
    assert value(about["stepwell:count"]) == "6"
    # The same numbers in the other attempt: the same sum.
    other = restarted["entity"]["run:metric/attempt-1/train%2Floss"]
    assert other["stepwell:sha256"] == about["stepwell:sha256"]


# Odd runs


def item(run: stepwell.Run, kind: str, name: str, data: bytes | None = None, **more: Any) -> None:
    """Log an item as a logger does."""
    if data is not None:
        more["content"], more["size"] = store(run.path, data)
    journal = current_journal()
    assert journal is not None
    journal.write_event("item", name, {"item": kind, "audience": [1], **more})


def test_a_run_that_goes_on_has_no_end(tmp_path: Path) -> None:
    with stepwell.init("open", dir=tmp_path) as run:
        stepwell.log({"a": 1.0})
        document = document_of(run.path)
        check(document)
        about = document["activity"]["run:run"]
        assert about["stepwell:status"] == "running"
        assert "prov:endTime" not in about
        process = next(path.name for path in run.path.iterdir() if path.name.startswith("rank"))
        ended = {process: ("failed", 2_000_000_000_000_000_000)}
        told = document_of(run.path, ended=ended)["activity"]["run:run"]
        assert told["stepwell:status"] == "failed"
        assert told["prov:endTime"].startswith("2033-05-18T")


def test_an_empty_run_has_a_document(tmp_path: Path) -> None:
    with stepwell.init("empty", dir=tmp_path) as run:
        pass
    check(document_of(run.path))


def test_a_killed_run_ended_when_it_was_last_seen(tmp_path: Path) -> None:
    program = (
        "import os, stepwell, sys, time\n"
        "run = stepwell.init('killed', dir=sys.argv[1], run_id='k')\n"
        "span = stepwell.span('training_loop'); span.__enter__()\n"
        "stepwell.log({'loss': 1.0}); os.kill(os.getpid(), 9)\n"
    )
    assert run_script(program, tmp_path).returncode == -9
    document = document_of(tmp_path / "k")
    check(document)
    for id in ("run:run", "run:attempt-0"):
        assert document["activity"][id]["stepwell:status"] == "killed"
        assert "prov:endTime" in document["activity"][id]
    loop = document["activity"]["run:attempt-0/training_loop"]
    assert (loop["stepwell:status"], "prov:endTime" in loop) == ("open", True)


NAMES = [
    "größe/ä 🙂",
    "a b",
    "a:b",
    "..",
    "a/../b",
    "50%",
    "'\"\\",
    "a\nb",
    ".",
    "x.",
    "<b>&",
    "",
    "\x07",
]


def test_any_name_and_number_makes_a_right_document(tmp_path: Path) -> None:
    numbers = [math.inf, -math.inf, 1e300, 5e-324, -0.0]
    with stepwell.init("odd", dir=tmp_path, config={n: n for n in NAMES}) as run:
        for name in NAMES:
            stepwell.log({name or "empty": 1.0})
            item(run, "artifact", name, name.encode(), file=name, media="x/y")
            item(run, "dataset", name, value={"path": name, "length": 1 << 70})
            item(run, "param", f"p{name}", value=[name, None, True])
            item(run, "text", name, value=name, **{"odd key ü": name})
        for i, number in enumerate(numbers):
            stepwell.log({f"number {i}": number})
        item(run, "param", "large", value=1 << 40)
        item(run, "param", "huge", value=1 << 80)
    document = document_of(run.path)
    check(document)
    found = {a["prov:label"]: a["prov:value"] for a in things(document, "stepwell:Metric").values()}
    assert [found[f"number {i}"]["$"] for i in range(5)] == [
        "INF",
        "-INF",
        "1e+300",
        "5e-324",
        "-0.0",
    ]
    params = {
        a["prov:label"]: a["prov:value"] for a in things(document, "stepwell:Parameter").values()
    }
    assert params["large"]["type"] == "xsd:long"


ODD: list[Any] = [None, 7, "text", [1, "a"], {"a": [None]}, True, 1.5, "\ud800", {}]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_a_strangers_run_makes_a_right_document(tmp_path: Path, odd: Any) -> None:
    """Wrong types of values do no harm."""
    with stepwell.init("odd", dir=tmp_path) as run:
        for kind in ("artifact", "dataset", "param", "system", "model", "text", "torch"):
            names = (
                "value",
                "content",
                "size",
                "file",
                "media",
                "step",
                "epoch",
                "folder",
                "context",
            )
            item(run, kind, "x", **dict.fromkeys(names, odd))
            item(run, kind, "y", value={"sha256": odd, "path": odd, "length": odd, "dataset": odd})
        with stepwell.span("checkpoint_save_sync"):
            names = ("current_iteration", "checkpoint_size", "checkpoint_directory")
            stepwell.event("save_checkpoint_success", **dict.fromkeys(names, odd))
    about = json.loads((run.path / "run.json").read_text())
    for key in (
        "argv",
        "cwd",
        "config",
        "code",
        "python",
        "host",
        "user",
        "launcher",
        "world_size",
    ):
        about["attempts"][0][key] = odd
    for key in ("branch", "commit", "remote", "dirty"):
        about["attempts"][0]["code"] = {"commit": odd, key: odd}
    about |= {"tags": odd, "config": odd, "name": odd}
    (run.path / "run.json").write_text(json.dumps(about))
    (run.path / "backends").mkdir()
    (run.path / "backends" / "prov-checkpoints-x.json").write_text(json.dumps({"a": odd}))
    check(document_of(run.path))


def test_not_a_number_has_its_own_word(tmp_path: Path) -> None:
    with stepwell.init("nan", dir=tmp_path) as run:
        stepwell.log({"a": math.nan})
    document = document_of(run.path)
    check(document)
    (about,) = things(document, "stepwell:Metric").values()
    assert about["prov:value"] == {"$": "NaN", "type": "xsd:double"}


def test_a_phase_that_repeats_very_often_is_one_activity(tmp_path: Path) -> None:
    with stepwell.init("many", dir=tmp_path) as run:
        for _ in range(150):
            with stepwell.span("validation_loop"):
                stepwell.log({"val": 1.0})
    document = document_of(run.path)
    check(document)
    (about,) = things(document, "stepwell:Phase").values()
    assert value(about["stepwell:times"]) == "150"


def test_the_ai_tree_names_the_same_phases(tmp_path: Path) -> None:
    from stepwell import ai

    with stepwell.init("ai", dir=tmp_path) as run, ai.pipeline.train, ai.pipeline.evaluate:
        pass
    found = set(things(document_of(run.path), "stepwell:Phase"))
    assert found == {"run:attempt-0/training_loop", "run:attempt-0/validation_loop"}


@pytest.mark.full
def test_ten_thousand_metrics_are_ten_thousand_entities(tmp_path: Path) -> None:
    """However many there are; recorded elsewhere, as the names of a process are in all its runs."""
    code = (
        "import sys, stepwell\n"
        "with stepwell.init('wide', dir=sys.argv[1]) as run:\n"
        "    for step in range(3):\n"
        "        stepwell.log({f'm/{i}': float(i) for i in range(10_000)}, step=step)\n"
    )
    run_script(code, tmp_path, check=True)
    (run,) = stepwell.list_runs(tmp_path)
    assert len(things(document_of(run.path), "stepwell:Metric")) == 10_000


# Pieces


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("www.example.org", "http://www.example.org/"),
        ("https://a.b/c#", "https://a.b/c#"),
        ("https://a.b/c", "https://a.b/c/"),
        ("localhost:8080/x", "http://localhost:8080/x/"),
        ("urn:lab:", "urn:lab:"),
        ("", "http://www.example.org/"),
        ("a b/ü", "http://a%20b/%C3%BC/"),
    ],
)
def test_namespaces_are_absolute(given: str, expected: str) -> None:
    assert namespace_of(given) == expected


def test_values_have_the_types_of_xml_schema() -> None:
    assert literal(True) == {"$": "true", "type": "xsd:boolean"}
    assert literal(2**31 - 1)["type"] == "xsd:int"
    assert literal(2**31)["type"] == "xsd:long"
    assert literal(-(2**63) - 1)["type"] == "xsd:integer"
    assert literal("a\x00b") == "a\ufffdb"
    assert encoded({"stepwell_last_step": 1, "prov_type": None}) == {
        "stepwell:last_step": {"$": "1", "type": "xsd:int"}
    }
    assert local_name(["a b", "..", ""]) == "a%20b/%2E%2E"


def test_a_document_is_made_without_the_prov_package(tmp_path: Path) -> None:
    with stepwell.init("alone", dir=tmp_path) as run:
        pass
    program = (
        "import sys; sys.modules['prov'] = None\n"
        "from stepwell.loggers.prov import document_of; print(len(document_of(sys.argv[1])))"
    )
    command = [sys.executable, "-c", program, os.fspath(run.path)]
    assert subprocess.run(command, capture_output=True, check=True).stdout.strip().isdigit()
