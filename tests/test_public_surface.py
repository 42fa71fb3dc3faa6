"""The names that users import, and the types they see."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import stepwell
from tests.harness import REPOSITORY, run_script

EXPORTED = [
    "__version__",
    "active_run",
    "artifact",
    "event",
    "finish",
    "flush",
    "Histogram",
    "Image",
    "init",
    "list_runs",
    "log",
    "open_run",
    "Run",
    "set_step",
    "span",
    "StepwellError",
    "Table",
    "Text",
    "watch",
]


def test_exported_names() -> None:
    """A name joins or leaves the public surface only on purpose."""
    assert sorted(stepwell.__all__, key=str.lower) == EXPORTED


def test_every_exported_name_is_there() -> None:
    """Each exported name can be had, the lazily imported ones too, and `dir` shows it."""
    assert [name for name in EXPORTED if not hasattr(stepwell, name)] == []
    assert set(EXPORTED) - set(dir(stepwell)) == set()


def test_version_is_the_installed_one() -> None:
    """`__version__` and the package's metadata agree."""
    assert stepwell.__version__ == importlib.metadata.version("stepwell")


def test_type_checkers_see_the_types() -> None:
    """The package has the marker of PEP 561. ``make lint`` checks users' programs in tests/typing."""
    assert Path(stepwell.__file__).with_name("py.typed").is_file()


def test_a_users_file_runs(tmp_path: Path) -> None:
    """A program whose types are checked does at run time what they promise."""
    run_script(REPOSITORY / "tests" / "typing" / "recording.py", cwd=tmp_path, check=True)
