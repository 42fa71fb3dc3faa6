"""The string table: every name reaches its file, also when writing fails for a while."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from stepwell.journal import names as module
from stepwell.journal.format import METRIC, SPAN
from stepwell.journal.names import NameTable
from stepwell.reading.process import _names


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "names.jsonl"


def opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def written(path: Path) -> dict[int, tuple[str, str, str]]:
    """Parse the file independently: the last complete line of each id."""
    names = {}
    for line in path.read_bytes().split(b"\n"):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        names[entry["id"]] = (entry["kind"], entry["category"], entry["name"])
    return names


class Faulty:
    """An ``os.write`` that accepts this many bytes at each call, or raises."""

    def __init__(self, *steps: int | OSError | None) -> None:
        self.steps = list(steps)
        self.write = os.write

    def __call__(self, fd: int, data: bytes) -> int:
        step = self.steps.pop(0) if self.steps else None
        if isinstance(step, OSError):
            raise step
        return self.write(fd, data if step is None else data[:step])


def test_a_name_keeps_its_id(path: Path) -> None:
    """The same kind, category and name have one id; any difference makes another."""
    table = NameTable()
    first = table.intern(SPAN, "a")
    assert table.intern(SPAN, "a") == first
    others = {table.intern(METRIC, "a"), table.intern(SPAN, "a", "c"), table.intern(SPAN, "b")}
    assert len(others | {first}) == 4
    assert table.key(first) == (SPAN, "", "a")


def test_names_from_before_and_after_attaching_are_written(path: Path) -> None:
    """An attached file gets all names, and each new name before its id is used."""
    table = NameTable()
    before = table.intern(SPAN, "before")
    table.attach(opened(path))
    assert written(path)[before] == (SPAN, "", "before")
    after = table.intern(METRIC, "after\u2028\n\0", "cat")
    assert written(path)[after] == (METRIC, "cat", "after\u2028\n\0")
    assert _names(path.read_text()) == written(path)


@pytest.mark.parametrize("torn_at", [0, 1, 30, 60])
def test_a_short_write_is_made_good(
    path: Path, monkeypatch: pytest.MonkeyPatch, torn_at: int
) -> None:
    """``retry`` writes a line that was cut off again, on a new line, with all later ones."""
    table = NameTable()
    table.attach(opened(path))
    monkeypatch.setattr(os, "write", Faulty(torn_at))
    first = table.intern(SPAN, "first name that is torn")
    second = table.intern(SPAN, "second")
    table.retry()
    names_read = written(path)
    assert names_read[first] == (SPAN, "", "first name that is torn")
    assert names_read[second] == (SPAN, "", "second")
    assert _names(path.read_text()) == names_read


def test_a_full_disk_is_made_good_by_retry(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that could not be written raise nothing, keep their ids, and are written later."""
    table = NameTable()
    table.attach(opened(path))
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(os, "write", Faulty(full, 10, full, 5))
    ids = [table.intern(SPAN, f"name {i}") for i in range(4)]
    for _ in range(3):
        assert not set(ids) & set(written(path))
        table.retry()
    assert not set(ids) & set(written(path))
    table.retry()
    assert [written(path)[i] for i in ids] == [(SPAN, "", f"name {i}") for i in range(4)]
    assert _names(path.read_text()) == written(path)
    size = path.stat().st_size
    table.retry()
    assert path.stat().st_size == size


def test_a_pipe_that_takes_little_at_a_time_gets_everything() -> None:
    """Short writes of a real descriptor, not a patched one, are made good as well."""
    import fcntl

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    fcntl.fcntl(writer, 1031, 4096)  # F_SETPIPE_SZ
    table = NameTable()
    table.attach(writer)
    received = b""
    for i in range(200):
        table.intern(SPAN, f"{i} " + "x" * 90)
        if i % 40 == 39:
            received += os.read(reader, 1 << 20)
            table.retry()
    for _ in range(50):
        table.retry()
        try:
            received += os.read(reader, 1 << 20)
        except BlockingIOError:
            break
    names_read = {entry[2] for entry in _names(received.decode()).values()}
    assert names_read >= {f"{i} " + "x" * 90 for i in range(40)}
    os.close(reader)
    os.close(writer)


def test_another_file_gets_all_names_again(tmp_path: Path) -> None:
    """Ids belong to the process: the next run's file is complete by itself."""
    table = NameTable()
    table.attach(opened(tmp_path / "one"))
    table.intern(SPAN, "a")
    table.detach()
    table.intern(SPAN, "between")
    table.attach(opened(tmp_path / "two"))
    table.intern(SPAN, "b")
    assert len(written(tmp_path / "one")) == 3
    assert [entry[2] for entry in written(tmp_path / "two").values()][2:] == ["a", "between", "b"]


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the limit new names share an id per kind, and known ones keep theirs."""
    table = NameTable()
    number = table.intern(SPAN, "known")
    monkeypatch.setattr(module, "MAX_NAMES", 4)
    last = table.intern(SPAN, "last")
    over = {table.intern(SPAN, f"over {i}") for i in range(10)}
    assert [table.key(i)[2] for i in over] == ["(too many names)"]
    assert table.key(table.intern(METRIC, "over"))[0] == METRIC
    assert (table.intern(SPAN, "known"), table.intern(SPAN, "last")) == (number, last)


def test_threads_agree_on_ids(path: Path) -> None:
    """Eight threads that meet the same thousand names at once get the same ids, each written once."""
    table = NameTable()
    table.attach(opened(path))
    results: list[list[int]] = []
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        results.append([table.intern(SPAN, f"n{i}") for i in range(1000)])

    threads: list[Any] = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(result == results[0] for result in results)
    assert len(set(results[0])) == 1000
    assert path.read_bytes().count(b"\n") == 1002


def test_an_id_is_not_given_out_before_its_name_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second thread that meets the name at the moment of its write waits for the write."""
    table = NameTable()
    table.attach(opened(path))
    seen: list[tuple[int, bool]] = []

    def meet() -> None:
        number = table.intern(SPAN, "both")
        seen.append((number, number in written(path)))

    second = threading.Thread(target=meet)
    write = os.write

    def slow(fd: int, data: bytes) -> int:
        second.start()
        second.join(0.2)
        return write(fd, data)

    monkeypatch.setattr(module.os, "write", slow)
    first = table.intern(SPAN, "both")
    second.join()
    assert seen == [(first, True)]


def test_a_handler_that_names_the_same_in_the_midst_of_a_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both get the same id, and its name is in the file."""
    table = NameTable()
    table.attach(opened(path))
    write = os.write
    inner: list[int] = []

    def interrupted(fd: int, data: bytes) -> int:
        monkeypatch.setattr(module.os, "write", write)
        inner.append(table.intern(SPAN, "both"))
        return write(fd, data)

    monkeypatch.setattr(module.os, "write", interrupted)
    assert [table.intern(SPAN, "both")] == inner
    assert written(path)[inner[0]] == (SPAN, "", "both")
