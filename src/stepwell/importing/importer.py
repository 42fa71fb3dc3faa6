"""Importing files: detects their format, and writes a run folder that appears when it is complete."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from stepwell._core import clock
from stepwell._core.checks import one_of
from stepwell._core.errors import StepwellError
from stepwell.importing import chrome, dftracer, one_logger
from stepwell.importing.rows import RowSorter, TraceRows
from stepwell.importing.run_writer import RunWriter
from stepwell.importing.sources import SUFFIXES, Progress, TraceObjects, TraceSource, find_files
from stepwell.telemetry.run_names import check_run_id, make_run_id, make_slug

KIND = one_of(dftracer.KIND, chrome.KIND, one_logger.KIND)
KINETO = "torch profiler"
LOOKED_AT = 50
"""Records to read to detect the format of a file."""


@dataclass
class Imported:
    """A finished import: the run folder, the numbers of records taken and left out (by reason), and notes."""

    path: Path
    kinds: list[str]
    taken: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def import_trace(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    dir: str | os.PathLike[str] | None = None,
    name: str | None = None,
    *,
    kind: str | None = None,
    run_id: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Import a trace and return the run folder; see ``import_files``."""
    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    return import_files(paths, dir, name, kind=kind, run_id=run_id, progress=progress).path


def import_files(
    paths: Sequence[str | os.PathLike[str]],
    dir: str | os.PathLike[str] | None = None,
    name: str | None = None,
    *,
    kind: str | None = None,
    run_id: str | None = None,
    progress: Progress | None = None,
) -> Imported:
    """Import files, folders or patterns of files into one run in ``dir``.

    ``kind`` is "dftracer", "chrome" or "nv-one-logger"; by default it is detected for each file. The
    default of ``dir`` is ``STEPWELL_DIR`` or ``./runs``. Raise StepwellError if there is nothing to import.
    """
    kind = KIND.or_none("kind", kind)
    files = list(dict.fromkeys(file for path in paths for file in find_files(path)))
    if not files:
        raise StepwellError("no files to import: pass the path of at least one")
    title = name or _title(files[0])
    root = Path(dir or os.environ.get("STEPWELL_DIR") or "runs").expanduser()
    try:
        identity = check_run_id(run_id) if run_id else make_run_id(make_slug(title))
    except ValueError as error:
        raise StepwellError(str(error)) from None
    target = root / identity
    if target.exists():
        raise StepwellError(f"run {identity!r} already exists in {str(root)!r}")
    root.mkdir(parents=True, exist_ok=True)
    # Readers do not take it for a run while it grows: its content is one level deeper.
    work = root / f".importing-{make_run_id()}"
    work.mkdir()
    try:
        done = _import(files, kind, work, identity, title, progress or _ignore)
        os.rename(work / "run", target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    done.path = target
    return done


def _import(
    files: list[Path], kind: str | None, work: Path, identity: str, title: str, progress: Progress
) -> Imported:
    rows = TraceRows(RowSorter(work))
    kinds = _read(files, kind, rows, progress)
    if not rows.sorter.count:
        why = "; ".join(f"{reason} ({n})" for reason, n in rows.left_out.most_common(5))
        raise StepwellError(f"no records to import in {_shown(files)}{': ' if why else ''}{why}")
    done = Imported(work, kinds, notes=rows.notes)
    writer = RunWriter(work / "run", identity, rows)
    (work / "run").mkdir()
    writer.write(lambda done, total: progress("writing", done, total))
    done.taken, done.left_out = dict(rows.taken), dict(rows.left_out)
    writer.close(title, _imported_from(files, done, rows))
    return done


def _read(files: list[Path], kind: str | None, rows: TraceRows, progress: Progress) -> list[str]:
    """Read all files; return their formats."""
    sources = [TraceSource(path) for path in files]
    total = sum(source.size for source in sources)
    hashes = dftracer.Hashes()
    rows.resolve = hashes.resolve_encoded
    kinds: list[str] = []
    before = 0
    for number, source in enumerate(sources):
        detected = kind or find_kind(source)
        reader = _reader(detected, rows, source, number, hashes)
        reader.read(lambda: progress("reading", before + source.done, total))  # noqa: B023
        if isinstance(reader, chrome.ChromeReader) and reader.is_kineto:
            detected = KINETO
        if detected not in kinds:
            kinds.append(detected)
        if source.damage:
            rows.notes.append(f"{source.path.name}: {source.damage}; the part before is imported")
        before += source.size
    progress("reading", total, total)
    for process in rows.processes.values():
        host = process.info.get("hhash")
        process.host = process.host or hashes.hosts.get(str(host), "")
    return kinds


def _reader(
    kind: str, rows: TraceRows, source: TraceSource, number: int, hashes: dftracer.Hashes
) -> chrome.ChromeReader | one_logger.OneLoggerReader:
    if kind == dftracer.KIND:
        return dftracer.DftracerReader(rows, source, number, hashes)
    if kind == one_logger.KIND:
        return one_logger.OneLoggerReader(rows, source, number)
    return chrome.ChromeReader(rows, source, number)


def find_kind(source: TraceSource) -> str:
    """Return the format of a file, from its first records."""
    objects = TraceObjects(source, Counter())
    first = list(islice(objects, LOOKED_AT))
    if any("ph" not in record and record.get("type") in one_logger.TYPES for record in first):
        return one_logger.KIND
    own = any(r.get("cat") == dftracer.OWN or type(r.get("ph")) is int for r in first)
    if own or ".pfw" in source.path.name.lower():
        return dftracer.KIND
    if any("ph" in record for record in first) or objects.document or not first:
        return chrome.KIND
    raise StepwellError(
        f"{str(source.path)!r} is not a supported trace: its records have neither a phase (ph), as in "
        "dftracer and Chrome traces, nor a type, as in nv-one-logger"
    )


def _imported_from(files: list[Path], done: Imported, rows: TraceRows) -> dict[str, Any]:
    origin: dict[str, Any] = {
        "kind": ", ".join(done.kinds),
        "files": [file.name for file in files[:100]],
        "file_count": len(files),
        "bytes": sum(file.stat().st_size for file in files),
        "time": clock.wall(),
        "taken": done.taken,
        "left_out": dict(rows.left_out.most_common(50)),
        "notes": done.notes[:100],
    }
    versions = {process.info.get("version") for process in rows.processes.values()}
    names = sorted(str(version) for version in versions if version)
    if names:
        origin["tool_version"] = ", ".join(names[:5])
    return origin


def _title(path: Path) -> str:
    name = path.name
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if name.lower().endswith(suffix):
            return name[: -len(suffix)] or "imported"
    return path.stem or "imported"


def _shown(files: list[Path]) -> str:
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{str(files[0])!r}{more}"


def _ignore(what: str, done: int, total: int) -> None:
    pass
