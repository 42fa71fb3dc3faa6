"""Every command as a person runs it: in a terminal of 80 columns, piped, without colour, with mistakes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.cases import (
    COMMANDS,
    OF_A_RUN,
    USUAL,
    Place,
    cut_in_half,
    make_place,
    of_the_future,
    words,
)
from tests.cli.terminal import in_terminal
from tests.harness import CLI, environment, run_script, run_stepwell
from tests.harness.marks import others_in_full

DEFAULT = ("show", "compare", "query", "export", "forward")
"""The commands that the default suite tries each mistake with; the full set tries it with all."""
EACH_OF_A_RUN = [
    pytest.param(name, marks=() if name in DEFAULT else pytest.mark.full) for name in OF_A_RUN
]
COLOURS = re.compile(r"\x1b\[(?:\d+;)*(?:3\d|4\d|9\d|38;[\d;]+)m")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Runs of all kinds; nothing in them is changed by what is done here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPWELL_RUNTIME", "off")
        place = make_place(tmp_path_factory.mktemp("place"))
    cut_in_half(place.runs / "killed", place.path / "odd" / "cut")
    of_the_future(place.runs / "whole", place.path / "odd" / "future")
    (place.path / "empty").mkdir()
    (place.path / "out").mkdir()
    return place


def own(name: str, words: list[str] | tuple[str, ...], tmp_path: Path) -> list[str]:
    """The words of a command, what it writes below the folder of the test."""
    written = {"out": "out", "tables": "tables", "imported": "imported", "made": "made"}
    found = [str(tmp_path / written[word]) if word in written else word for word in words]
    if name == "forward":
        found[-1] = f"file_path={tmp_path / 'forwarded.json'}"
    (tmp_path / "out").mkdir(exist_ok=True)
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", others_in_full(COMMANDS, USUAL))
def test_in_a_terminal_no_line_is_wider_than_it(name: str, place: Place, tmp_path: Path) -> None:
    """80 columns, whatever the names in a run are; without NO_COLOR there may be colours."""
    shown = in_terminal(*own(name, COMMANDS[name], tmp_path), cwd=place.path)
    assert shown.code == 0, shown.text
    assert shown.lines
    wide = [line for line in shown.lines if len(line) > 80 and str(tmp_path) not in line]
    assert wide == []


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["ls", "report", "show", "stacks", "watch", "alert", "plot", "query"]
)
def test_no_color_is_heeded(name: str, place: Place, tmp_path: Path) -> None:
    """https://no-color.org: nothing that a command draws is coloured then."""
    shown = in_terminal(*own(name, COMMANDS[name], tmp_path), cwd=place.path, NO_COLOR="1")
    assert shown.code == 0, shown.text
    assert COLOURS.findall(shown.raw) == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", others_in_full(COMMANDS, USUAL))
def test_piped_there_is_plain_text_only(name: str, place: Place, tmp_path: Path) -> None:
    """No colours, no bars, nothing on stderr."""
    env = environment(TERM="xterm-256color")
    done = run_script(CLI, *own(name, COMMANDS[name], tmp_path), cwd=place.path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", others_in_full(COMMANDS, USUAL))
def test_json_for_scripts_is_strict(name: str, place: Place, tmp_path: Path) -> None:
    """Every command has --json, and nothing else is on stdout then."""

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    done = run_stepwell(*own(name, COMMANDS[name], tmp_path), "--json", cwd=place.path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout, parse_constant=refuse)


@pytest.mark.parametrize("name", EACH_OF_A_RUN)
def test_a_path_that_is_not_there(name: str, place: Place, tmp_path: Path) -> None:
    """One line that has the path, exit code 2."""
    done = run_stepwell(*own(name, words(name, "no/such/run"), tmp_path), cwd=place.path)
    assert done.returncode == 2
    assert done.stderr == "stepwell: there is no run folder 'no/such/run'\n"


@pytest.mark.parametrize("name", EACH_OF_A_RUN)
def test_an_id_that_is_not_there_has_the_near_ones_told(
    name: str, place: Place, tmp_path: Path
) -> None:
    """Somebody who mistypes a name is shown what it may have been."""
    shown = in_terminal(*own(name, words(name, "whoel"), tmp_path), cwd=place.path)
    assert shown.code == 2
    assert "No run named 'whoel' in runs/. Did you mean 'whole'?" in shown.text
    assert shown.widest <= 80


@pytest.mark.parametrize("name", EACH_OF_A_RUN)
def test_an_empty_folder(name: str, place: Place, tmp_path: Path) -> None:
    """There is no run; the message says how to name the folder of runs."""
    more = ["--dir", "empty"]
    done = run_stepwell(*own(name, words(name, "whole"), tmp_path), *more, cwd=place.path)
    assert done.returncode == 2
    assert "No runs in empty/." in done.stderr
    assert "STEPWELL_DIR" in done.stderr


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", EACH_OF_A_RUN)
def test_a_run_that_was_written_half(name: str, place: Place, tmp_path: Path) -> None:
    """Every file but the documents cut in two: what is there is shown, and nothing breaks."""
    cut_in_half(place.runs / "killed", tmp_path / "runs" / "cut")
    said = own(name, words(name, str(tmp_path / "runs/cut")), tmp_path)
    if name == "compare":
        said[-1] = str(place.runs / "whole")
    shown = in_terminal(*said, cwd=tmp_path)
    # Of a run that was killed, watch tells so by its code.
    assert shown.code == int(name == "watch"), shown.text
    assert "Traceback" not in shown.text


@pytest.mark.parametrize("name", EACH_OF_A_RUN)
def test_a_run_of_the_next_format(name: str, place: Place, tmp_path: Path) -> None:
    """It is refused, with what to upgrade."""
    folder = str(place.path / "odd" / "future")
    done = run_stepwell(*own(name, words(name, folder), tmp_path), cwd=place.path)
    assert done.returncode == 2
    assert "is in format 2, and this stepwell reads 1" in done.stderr
    assert "pip install -U stepwell" in done.stderr


def test_ls_and_gc_go_on_beside_a_run_of_the_next_format(place: Place) -> None:
    """One such run takes nothing from the others."""
    listed = run_stepwell("ls", "--dir", "odd", cwd=place.path).stdout
    assert re.search(r"format 2 +future", listed)
    assert re.search(r"killed .* killed", listed)
    kept = json.loads(
        run_stepwell("gc", "--keep", "0", "--dir", "odd", "--json", cwd=place.path).stdout
    )
    assert kept["spared"] == {"future": "a newer stepwell recorded it"}


def test_places_that_are_no_folder_of_runs(place: Place) -> None:
    """A file, an empty folder, and none."""
    done = run_stepwell("ls", "--dir", "empty", cwd=place.path)
    assert (done.returncode, done.stdout.startswith("No runs in empty.")) == (0, True)
    done = run_stepwell("ls", "--dir", "nowhere", cwd=place.path)
    assert (done.returncode, done.stderr.startswith("stepwell: No folder nowhere.")) == (2, True)
    done = run_stepwell("show", "./trace.json", cwd=place.path)
    assert (done.returncode, "no run folder 'trace.json'" in done.stderr) == (2, True)
    done = run_stepwell("show", "./empty", cwd=place.path)
    assert (done.returncode, "'empty' is not a run folder" in done.stderr) == (2, True)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("command", sorted({words[0] for words in COMMANDS.values()}))
def test_help_fits_the_terminal(command: str, place: Place) -> None:
    """Each command explains itself in 80 columns."""
    shown = in_terminal(command, "--help", cwd=place.path)
    assert shown.code == 0
    assert shown.widest <= 80
    assert "--json" in shown.text


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("report", "reading whole"),
        ("show", "reading whole"),
        ("compare", "comparing"),
        ("query", "reading"),
        ("export", "writing whole as chrome"),
        ("export tables", "writing whole as parquet"),
        ("forward", "whole to file"),
        ("simulate", "made"),
    ],
)
def test_what_takes_long_shows_how_far_it_is(
    name: str, words: str, place: Place, tmp_path: Path
) -> None:
    """In a terminal, here with no patience at all; it is gone when the answer is there."""
    code = CLI.replace("main()", "import stepwell.cli.progress as w; w.PATIENCE = 0; main()")
    shown = in_terminal(*own(name, COMMANDS[name], tmp_path), cwd=place.path, code=code)
    assert shown.code == 0, shown.text
    # Drawn, and wiped away: the cursor goes up or the line is erased.
    assert words.split()[0] in shown.text
    assert "\x1b[2K" in shown.raw
    assert [line for line in shown.lines if len(line) > 80 and str(tmp_path) not in line] == []


def test_a_reader_that_has_enough_is_no_error_to_look_at(place: Place) -> None:
    """``stepwell query … | head -1`` ends quietly."""
    sql = "SELECT a.* FROM spans AS a CROSS JOIN metrics AS b"
    done = subprocess.run(
        f'"{sys.executable}" -c "$CODE" query "{sql}" whole --csv | head -1',
        shell=True,
        cwd=place.path,
        env=environment(CODE=CLI),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.startswith("run,attempt,rank")
    assert done.stderr == ""
