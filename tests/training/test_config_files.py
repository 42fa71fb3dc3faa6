"""Overrides from YAML and JSON files, and the messages about wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.training.config import ApplicationConfig, CheckPointStrategy
from stepwell.training.resolved_config import merged, read_overrides
from tests.training.configs import OR_FUNCTION, WHOLE, message

YAML = """\
# a comment
session_tag: night
world_size: 8
telemetry_config:
  flops_per_sample: 6e9
  perf_tag: [a, b]
  save_checkpoint_strategy: async
custom_metadata:
  team: vision
  n: 3
"""

AS_JSON = """\
{
  "session_tag": "night",
  "world_size": 8,
  "telemetry_config": {
    "flops_per_sample": 6e9,
    "perf_tag": ["a", "b"],
    "save_checkpoint_strategy": "async"
  },
  "custom_metadata": {"team": "vision", "n": 3}
}
"""


@pytest.mark.parametrize(
    ("name", "text"), [("c.yaml", YAML), ("c.yml", YAML), ("c.json", AS_JSON), ("d.yaml", AS_JSON)]
)
def test_overrides_from_a_file(name: str, text: str, tmp_path: Path) -> None:
    """YAML and JSON files hold the same fields."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    config = merged(ApplicationConfig(world_size_or_fn=2), None, [read_overrides(tmp_path / name)])
    assert config.session_tag == "night"
    assert config.world_size == 8
    assert config.flops_per_sample == 6_000_000_000
    assert config.perf_tag == ["a", "b"]
    assert config.save_checkpoint_strategy is CheckPointStrategy.ASYNC
    assert config.custom_metadata == {"team": "vision", "n": 3}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            "c.yaml",
            "strict: true\ntelemetry_config:\n  seq_length: 3\n  global_batch: 4\n",
            "{}: line 4: telemetry_config.global_batch is not a field; "
            "did you mean global_batch_size_or_fn?",
        ),
        (
            "c.json",
            '{"strict": true,\n "telemetry_config": {\n  "seq_length": 0}}',
            f"{{}}: line 3: telemetry_config.seq_length {WHOLE}, got 0{OR_FUNCTION}",
        ),
        (
            "c.yaml",
            "world_size: 0\nstrict: maybe\n",
            f"{{}}: 2 problems\n- line 1: world_size {WHOLE}, got 0{OR_FUNCTION}\n"
            "- line 2: strict must be True or False, got 'maybe'",
        ),
        (
            "c.yaml",
            "seq_length: 3\n\nseq_length: 4\n",
            "{}, line 3: seq_length is given twice, first in line 1",
        ),
        (
            "c.json",
            '{"strict": true,\n"strict": false}',
            "{}, line 2: strict is given twice, first in line 1",
        ),
        (
            "c.yaml",
            "a: 1\nb: [1, 2\nc: 3\n",
            "{}, line 3: expected ',' or ']', but got ':'",
        ),
        ("c.json", '{"a": 1,\n}', None),
        ("c.json", '{"world_size": NaN}', None),
        ("c.yaml", "- a\n- b\n", "{}: the file must contain fields, such as session_tag: night"),
        ("c.json", "[1]", "{}: the file must contain fields, such as session_tag: night"),
        ("c.toml", "a = 1", "{}: the name must end in .yaml, .yml or .json"),
        ("c.yaml", "a: !!python/object:os.system {}\n", None),
    ],
)
def test_a_wrong_file_is_refused(name: str, text: str, says: str | None, tmp_path: Path) -> None:
    """The error names file, line and field."""
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    found = message(lambda: read_overrides(file))
    assert found.startswith(str(file))
    assert says is None or found == says.format(file)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"custom_metadata": {"strict": 1},\n "strict": 5}', 2),
        ('{"custom_metadata": [{"strict": 1}],\n "strict": 5,\n"custom_metadata_": 1}', 1),
        ('{"application_name": "\\"strict\\": {",\n"strict": 5}', 2),
    ],
)
def test_lines_in_json(text: str, line: int, tmp_path: Path) -> None:
    """A name that also occurs elsewhere, in lists or strings, does not mislead."""
    file = tmp_path / "c.json"
    file.write_text(text, encoding="utf-8")
    assert f"line {line}: " in message(lambda: read_overrides(file))


def test_an_empty_file_overrides_nothing(tmp_path: Path) -> None:
    """Neither does one that has comments alone."""
    for name, text in (("a.yaml", ""), ("b.yaml", "# nothing\n"), ("c.json", " \n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert read_overrides(tmp_path / name) == {}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, too large, or no text: each is said."""
    assert "missing.yaml cannot be read: No such file" in message(
        lambda: read_overrides(tmp_path / "missing.yaml")
    )
    (tmp_path / "large.yaml").write_bytes(b"#" * (2 << 20))
    assert "must have at most 1048576 bytes" in message(
        lambda: read_overrides(tmp_path / "large.yaml")
    )
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert "must be UTF-8 text" in message(lambda: read_overrides(tmp_path / "binary.yaml"))
