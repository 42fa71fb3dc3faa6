"""Some minutes of ``python -m tests.fuzz`` in short, and the damage that it once found."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.journal.recovery import recover_process
from tests.fuzz.__main__ import Fuzz, fuzzing
from tests.fuzz.readers import recover
from tests.fuzz.samples import make_runs

SLOW = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def fuzz() -> Iterator[Fuzz]:
    with fuzzing() as made:
        yield made


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was killed."""
    return make_runs(tmp_path_factory.mktemp("killed"))[0]


@pytest.fixture
def run(killed: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(killed, tmp_path / "runs" / killed.name))


def check(fuzz: Fuzz, file: str, reader: str, seed: int) -> None:
    kind = fuzz.round(file, reader, seed)
    assert not kind.bad, kind.bad.pop()


@pytest.mark.full
def test_each_reader_with_each_kind_of_file(fuzz: Fuzz) -> None:
    """None raises anything but StepwellError, dies, hangs, or needs a gigabyte."""
    for file, reader in random.sample(fuzz.pairs, 40):
        check(fuzz, file, reader, random.getrandbits(32))


@pytest.mark.full
@SLOW
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_any_damage(fuzz: Fuzz, data: st.DataObject, seed: int) -> None:
    """Whatever file it is, and whatever happened to it."""
    check(fuzz, *data.draw(st.sampled_from(fuzz.pairs)), seed)


@pytest.mark.parametrize(
    ("pattern", "old", "new"),
    [
        ("rank-*/spans-*.live", b'"spans"', b"[]     "),
        ("rank-*/spans-*.live", b'"seq": ', b'"seq": 1'),
        ("rank-*/process.json", b'"start": ', b'"start": "x", "y": '),
        ("rank-*/process.json", b'"interval": ', b'"interval": 1e400, "y": '),
    ],
)
def test_recovering_a_damaged_run(run: Path, pattern: str, old: bytes, new: bytes) -> None:
    """It does not fail, and what could be read before can be read afterwards."""
    damaged = list(run.glob(pattern))
    assert damaged
    for path in damaged:
        data = path.read_bytes()
        assert old in data
        path.write_bytes(data.replace(old, new, 1))
    recover(run)


def test_a_segment_without_a_header_is_kept(run: Path) -> None:
    """Nobody can read it yet; recovering the rest does not remove it."""
    path = sorted(run.glob("rank-*/spans-*.live"))[0]
    path.write_bytes(b"x" + path.read_bytes()[1:])
    recover_process(path.parent)
    assert path.exists()
    assert not list(path.parent.glob("metrics-*.live"))
