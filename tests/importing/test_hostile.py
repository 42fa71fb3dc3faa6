"""Files that a stranger made: clear errors, bounded memory, nothing half-made left behind."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from stepwell._core.errors import StepwellError
from stepwell.importing import import_files, import_trace, run_writer, sources
from tests.importing.reading_back import depths_agree, imported, shape, spans_of, write_lines


def line(name: str, ts: Any, dur: Any, **more: Any) -> str:
    return json.dumps({"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, **more})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no records to import"),
        (b"\n \n", "no records to import"),
        (b"[]", "no records to import"),
        (b'{"traceEvents":[]}', "no records to import"),
        (b"hello", "does not begin as JSON"),
        (b"\x89PNG\r\n\x1a\n", "does not begin as JSON"),
        (b'{"a":1}', "neither a phase"),
        (b'{"a":', "no list traceEvents"),
        (b"[1,2,3]", "no records to import"),
        (b"[[[[[[", "no records to import"),
        (b'[{"ph":"s"}]', "flow arrow"),
        (gzip.compress(b"", mtime=0)[:5], "no records to import"),
    ],
)
def test_what_is_no_trace_is_refused_and_leaves_nothing(
    tmp_path: Path, content: bytes, message: str
) -> None:
    """The message names the file; there is no run, and no scratch folder."""
    file = tmp_path / "t.json"
    file.write_bytes(content)
    with pytest.raises(StepwellError, match=message) as error:
        import_trace(file, tmp_path / "runs")
    assert "t.json" in str(error.value)
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.pfw", "no such file"),
        ("nothing*.pfw", "no such file"),
        (".", "no traces in"),
    ],
)
def test_a_file_that_is_not_there(tmp_path: Path, path: str, message: str) -> None:
    with pytest.raises(StepwellError, match=message):
        import_trace(tmp_path / path, tmp_path / "runs")


def test_wrong_arguments(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "t.json", line("a", 1, 1))
    with pytest.raises(StepwellError, match="got 'perf'"):
        import_files([file], tmp_path / "runs", kind="perf")
    with pytest.raises(StepwellError, match="cannot be a run id"):
        import_files([file], tmp_path / "runs", run_id="../x")
    import_files([file], tmp_path / "runs", run_id="taken")
    with pytest.raises(StepwellError, match="already exists"):
        import_files([file], tmp_path / "runs", run_id="taken")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StepwellError, match="not a regular file"):
        import_files([tmp_path / "pipe"], tmp_path / "runs")


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    """Control-C while rows are written."""
    file = write_lines(tmp_path / "t.json", *[line("a", i, 1) for i in range(100)])

    def interrupt(what: str, done: int, total: int) -> None:
        if what == "writing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_files([file], tmp_path / "runs", progress=interrupt)
    assert list((tmp_path / "runs").iterdir()) == []


def test_numbers_that_no_clock_shows(tmp_path: Path) -> None:
    """Huge, endless, missing and wrong times are left out; huge values of attributes are kept as words."""
    file = write_lines(
        tmp_path / "t.json",
        line("good", 5, 1, args={"big": 10**40, "nan": float("nan"), "deep": 1e300}),
        line("far", 1e30, 1),
        line("farther", 10**400, 1),
        line("long", 1, 10**18),
        line("nan", float("nan"), 1),
        line("inf", 1, float("inf")),
        line("text", "12x", 1),
        line("list", [1], 1),
        line("before", -(10**15), 1),
        '{"ph":"X","name":"digits","pid":1,"tid":1,"ts":%s,"dur":1}' % ("9" * 5000),
        '{"ph":"X","name":"exponent","pid":1,"tid":1,"ts":1e999999999,"dur":1}',
        line("pids", 1, 1, pid=10**30, tid={"a": [1]}),
    )
    run, done = imported(tmp_path, file)
    assert sorted(row["name"] for row in spans_of(run)) == ["good", "pids"]
    assert sum(done.left_out.values()) == 10
    [good] = [row for row in spans_of(run) if row["name"] == "good"]
    assert good["attributes"]["nonfinite"] == {"nan": "nan"}


def test_invalid_utf_8_and_lone_surrogates(tmp_path: Path) -> None:
    """Names stay readable, and tables can hold them."""
    file = tmp_path / "t.json"
    first = line("XX", 1, 1).encode().replace(b"XX", b"caf\xe9\xff")
    file.write_bytes(first + b"\n" + line("a\ud800b", 2, 1, args={"k\udfff": "\ud800"}).encode())
    run, _ = imported(tmp_path, file)
    assert spans_of(run)[0]["name"] == "caf\ufffd\ufffd"
    assert len(spans_of(run)) == 2


def test_json_that_is_nested_deeply(tmp_path: Path) -> None:
    """A record that would exhaust the stack is passed over."""
    deep = "[" * 100_000
    file = write_lines(
        tmp_path / "t.json",
        line("a", 1, 1),
        '{"ph":"X","name":"deep","pid":1,"tid":1,"ts":1,"dur":1,"args":%s}' % deep,  # noqa: UP031
        line("b", 3, 1, args={"x": json.loads("[" * 300 + "]" * 300)}),
    )
    run, done = imported(tmp_path, file)
    assert [row["name"] for row in spans_of(run)] == ["a", "b"]
    assert done.left_out == {"invalid JSON": 1}


def test_spans_that_are_nested_deeply(tmp_path: Path) -> None:
    """Past a thousand levels they hang on their ancestor at that level, and it is said."""
    count = 3000
    lines = [line(f"n{i % 5}", i, 2 * (count - i)) for i in range(count)]
    run, done = imported(tmp_path, write_lines(tmp_path / "t.json", *lines))
    depths = [row["depth"] for row in spans_of(run)]
    assert depths == [min(i, run_writer.MAX_DEPTH) for i in range(count)]
    assert f"{count - run_writer.MAX_DEPTH} spans are nested deeper" in done.notes[0]
    assert depths_agree(run)


def test_a_record_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is passed over, what comes behind it is taken."""
    monkeypatch.setattr(sources, "MAX_OBJECT", 50_000)
    monkeypatch.setattr(sources, "CHUNK", 10_000)
    file = write_lines(
        tmp_path / "t.json",
        line("a", 1, 1),
        line("b", 2, 1, args={"x": "y" * 200_000}),
        line("c", 3, 1, args={"x": "y" * 30_000}),
        line("d", 4, 1),
    )
    run, done = imported(tmp_path, file)
    assert [row["name"] for row in spans_of(run)] == ["a", "c", "d"]
    assert sum(done.left_out.values()) == 1


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.95])
def test_a_cut_off_gzip_file_is_taken_as_far_as_it_goes(tmp_path: Path, keep: float) -> None:
    """The records before the cut are imported, and a note mentions the cut."""
    lines = [line(f"n{i}", i * 10, 5, args={"x": os.urandom(20).hex()}) for i in range(3000)]
    packed = gzip.compress("\n".join(["[", *lines]).encode())
    file = tmp_path / "t.pfw.gz"
    file.write_bytes(packed[: int(len(packed) * keep)])
    run, done = imported(tmp_path, file)
    names = [name for (name,) in shape(run, "name")]
    assert names == [f"n{i}" for i in range(len(names))]
    assert abs(len(names) - 3000 * keep) < 400
    assert any("the gzip data is cut off" in note for note in done.notes)


def test_damaged_gzip_data(tmp_path: Path) -> None:
    lines = [line(f"n{i}", i * 10, 5, args={"x": os.urandom(20).hex()}) for i in range(5000)]
    packed = bytearray(gzip.compress("\n".join(lines).encode()))
    packed[len(packed) // 2 : len(packed) // 2 + 40] = os.urandom(40)
    file = tmp_path / "t.pfw.gz"
    file.write_bytes(packed)
    run, done = imported(tmp_path, file)
    assert done.notes
    assert len(spans_of(run)) > 1000


def test_a_cut_off_document(tmp_path: Path) -> None:
    """A Chrome trace whose writer died has no end; it is taken as far as it goes."""
    text = '{"traceEvents":[\n' + ",\n".join(line("a", i, 1) for i in range(10))
    (tmp_path / "t.json").write_text(text[:-20])
    run, done = imported(tmp_path, tmp_path / "t.json")
    assert len(spans_of(run)) == 9
    assert "cut off" in done.notes[0]


def bomb(path: Path, unit: bytes, total: int) -> Path:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = unit * ((1 << 20) // len(unit))
    out = io.BytesIO()
    for _ in range(total >> 20):
        out.write(packer.compress(block))
    out.write(packer.flush())
    path.write_bytes(out.getvalue())
    return path


@pytest.mark.parametrize(
    "unit",
    [
        pytest.param(b" ", marks=pytest.mark.full),
        pytest.param(b"[", marks=pytest.mark.full),
        pytest.param(b'{"a":', marks=pytest.mark.full),
        pytest.param(b'"' + b"x" * 999, marks=pytest.mark.full),
    ],
)
def test_a_zip_bomb_is_refused(tmp_path: Path, unit: bytes) -> None:
    """A file that decompresses to hundreds of times its size is rejected, with little memory."""
    file = bomb(tmp_path / "t.json.gz", unit, 400 << 20)
    assert file.stat().st_size < 4 << 20
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n"
        "from stepwell.importing import import_trace\n"
        "from stepwell._core.errors import StepwellError\n"
        "try: import_trace(sys.argv[1], sys.argv[2])\n"
        "except StepwellError as error: print(error)\n"
        "print([l.split()[1] for l in open('/proc/self/status') if l.startswith('VmHWM')][0])\n"
    )
    command = [sys.executable, "-c", program, str(file), str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    message, peak = done.stdout.strip().splitlines()
    assert "trace" in message
    assert int(peak) < 300 << 10


def test_a_list_without_commas_or_lines(tmp_path: Path) -> None:
    """Objects right behind each other, with a byte order mark in front."""
    file = tmp_path / "t.json"
    file.write_bytes(b"\xef\xbb\xbf[" + b"".join(line("a", i, 1).encode() for i in range(3)))
    run, _ = imported(tmp_path, file)
    assert len(spans_of(run)) == 3
