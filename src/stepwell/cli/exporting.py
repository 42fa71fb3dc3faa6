"""``stepwell export``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stepwell.analysis.export import EXPORTS
from stepwell.cli.output import print_json
from stepwell.cli.waiting import Bar, waiting
from stepwell.exporters.chrome_export import export_chrome
from stepwell.exporters.dftracer_export import export_dftracer
from stepwell.exporters.otlp_export import export_otlp
from stepwell.exporters.trace_json import parse_ranks, parse_steps
from stepwell.exporters.trace_run import Written
from stepwell.journal.errors import StepwellError
from stepwell.reading import RecordedRun

TRACES = {
    "chrome": (".json", ".json.gz"),
    "dftracer": (".pfw", ".pfw.gz"),
    "otlp": (".jsonl", ".jsonl.gz"),
}
"""Kinds of traces, and how the names of their files may end; the last one where none is given."""


@dataclass(frozen=True)
class Choice:
    """What to write of a run, as it was typed."""

    to: str
    output: Path | None
    steps: str | None
    ranks: str | None
    dialect: str | None


def check_choice(choice: Choice) -> None:
    """Refuse what does not go together."""
    known = (*EXPORTS, *TRACES)
    if choice.to not in known:
        raise StepwellError(f"--to is {choice.to!r}: write one of {', '.join(known)}")
    if choice.dialect is not None and choice.to != "dftracer":
        raise StepwellError("--dialect is for --to dftracer")
    if choice.steps and choice.to not in ("chrome", "dftracer"):
        raise StepwellError("--steps is for --to chrome or dftracer")
    if choice.ranks and choice.to not in TRACES:
        raise StepwellError(f"--ranks is for traces: --to {' or '.join(TRACES)}")


def export_run(run: RecordedRun, choice: Choice, as_json: bool = False) -> None:
    """Write a run in another format, and say what was written."""
    if choice.to in TRACES:
        with waiting(f"writing {run.id} as {choice.to}"):
            done = _trace(choice)(run, _file(run, choice))
        print_json(done) if as_json else _say(done)
        return
    target = choice.output or Path(f"{run.id}-{choice.to}")
    with Bar(f"writing {run.id} as {choice.to}") as bar:
        files = EXPORTS[choice.to](run, target, bar.update)
    if as_json:
        print_json({"files": files})
    else:
        print(f"{len(files)} files in {target}")


def _trace(choice: Choice) -> Callable[[RecordedRun, Path], Written]:
    steps, ranks = parse_steps(choice.steps), parse_ranks(choice.ranks)
    if choice.to == "chrome":
        return lambda run, path: export_chrome(run, path, steps, ranks)
    if choice.to == "otlp":
        return lambda run, path: export_otlp(run, path, ranks)
    dialect = choice.dialect or "new"
    return lambda run, path: export_dftracer(run, path, steps, ranks, dialect)


def _file(run: RecordedRun, choice: Choice) -> Path:
    endings = TRACES[choice.to]
    if choice.output is None:
        return Path(f"{run.id}{endings[-1]}")
    if choice.output.is_dir():
        return choice.output / f"{run.id}{endings[-1]}"
    if not choice.output.name.endswith(endings):
        raise StepwellError(f"-o is {str(choice.output)!r}: end the name in {' or '.join(endings)}")
    return choice.output


def _say(done: Written) -> None:
    counts = {"spans": done.spans, "events": done.events, "values": done.metrics}
    text = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    for path in done.files:
        print(path)
    print(f"{text} in {len(done.files)} {'file' if len(done.files) == 1 else 'files'}")
