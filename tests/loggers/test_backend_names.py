"""Names for backends: no two names become the same."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from stepwell.loggers.backends.mlflow.names import cut, key_of
from stepwell.loggers.delivery.files import escape, shortened


def is_simple(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "_")


@given(st.text(alphabet="_x7BF{}/aü ", max_size=20) | st.text(max_size=20))
@example("_x7{")
@example("{x7B_")
def test_an_escaped_name_can_be_read_back(name: str) -> None:
    escaped = escape(name, is_simple)
    assert all(map(is_simple, escaped))
    assert re.sub(r"_x([0-9A-F]{1,6})_", lambda match: chr(int(match[1], 16)), escaped) == name


@example(["", "_x_", "_x110000_", "\0", ".", "_x2E_"])
@given(st.lists(st.text(alphabet="/.a_x2EF", max_size=6), unique=True, max_size=8))
def test_different_names_stay_different_in_mlflow(names: list[str]) -> None:
    keys = [key_of(name) for name in names]
    assert len(set(keys)) == len(names)


@example("..0")
@example("..")
@example("../a")
@given(st.text(max_size=300))
def test_mlflow_itself_takes_every_key(name: str) -> None:
    import posixpath

    key = key_of(name)
    assert re.match(r"^[/\w.\- :]*$", key)
    assert posixpath.normpath(key) == key
    assert not key.startswith(("..", "/"))
    assert len(key) <= 250


def test_a_simple_name_stays_as_it_is() -> None:
    for name in ("loss", "train/loss", "lr-Adam/pg1", "pos_x", "x_x", "größe 1.5:2"):
        assert key_of(name) == name


def test_a_long_name_ends_with_a_hash_of_all_of_it() -> None:
    one, other = shortened("a" * 300, 250), shortened("a" * 299 + "b", 250)
    assert len(one) == len(other) == 250
    assert one != other


def test_a_long_text_says_that_it_was_cut() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("a" * 100, 50) == "a" * 27 + "… (cut: 100 characters)"
    assert len(cut("a" * 100, 50)) == 50
