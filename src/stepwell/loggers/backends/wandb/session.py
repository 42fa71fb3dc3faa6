"""W&B at work on one run, from ``wandb.init`` to ``finish``: one *fragment* on disk.

Of a run that was interrupted there are several, which ``wandb sync`` uploads one after the other. W&B puts
what it is given on disk only every now and then, and a killed process takes the rest with it; so each row has
a number of ours, and what is not on disk yet is given to the next fragment.
"""

from __future__ import annotations

import json
import netrc
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stepwell.journal.document import read_json, write_json
from stepwell.journal.errors import StepwellError
from stepwell.loggers.backends.wandb.file import NUMBER, Rows
from stepwell.loggers.backends.wandb.rows import STEP, Act, kept_as_file
from stepwell.loggers.backends.wandb.upload import ABOUT, fragment_files, mark_uploaded
from stepwell.loggers.delivery import files as backend_files

if TYPE_CHECKING:
    import wandb

OFFLINE, ONLINE, DISABLED = "offline", "online", "disabled"
INTERRUPTED = 1
MOST_BINS = 512
"""Of a histogram."""
INIT_TIMEOUT = 30.0
FINISH_TIMEOUT = 300.0
"""Seconds that W&B's server may take: what is not uploaded by then is by ``wandb sync``."""
FLUSH = 20.0
"""Seconds that W&B may take to put on disk what it has when a run is finished."""


def mode_of(options: Mapping[str, Any]) -> tuple[str, str | None]:
    """Whether to upload, and a word about it where that was not asked for in so many words."""
    asked = os.environ.get("WANDB_MODE", "").strip().lower()
    off = os.environ.get("WANDB_DISABLED", "").strip().lower() in ("true", "1", "yes")
    if asked == DISABLED or off:
        return DISABLED, None
    if options.get("offline_mode") or asked in (OFFLINE, "dryrun"):
        return OFFLINE, None
    if _has_key():
        return ONLINE, None
    return OFFLINE, (
        "there is no key for W&B, so its run stays on this machine: upload it with `wandb sync`, or set "
        "WANDB_API_KEY, or say `wandb login`, before the next one"
    )


def _has_key() -> bool:
    """Looked up by hand: W&B would ask for one on the terminal."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    name = os.environ.get("NETRC") or ("~/_netrc" if sys.platform == "win32" else "~/.netrc")
    try:
        return netrc.netrc(os.path.expanduser(name)).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


class OnDisk:
    """What the fragments of a run have on disk.

    Attributes:
        saved: the index of the last act of this process, -1 when there is none.
        highest: the highest number that any process used.
    """

    def __init__(self, folder: Path, run_id: str, owner: str) -> None:
        self.saved = self.highest = -1
        for file in fragment_files(folder, run_id):
            about = read_json(file.parent / ABOUT)
            last = Rows(file).last
            self.highest = max(self.highest, last)
            if about is not None and about.get("owner") == owner and last >= about["base"]:
                self.saved = max(self.saved, about["first"] + last - about["base"])


class Session:
    """A fragment that is being written."""

    def __init__(self, run: wandb.Run, owner: str, first: int, base: int) -> None:
        self.run = run
        self.first = first
        self.base = base
        file = Path(run.settings.sync_file)
        self.folder = file.parent
        write_json(self.folder / ABOUT, {"owner": owner, "first": first, "base": base})
        self._rows = Rows(file)
        run.define_metric(STEP, hidden=True)
        run.define_metric("*", step_metric=STEP)

    def saved(self) -> int:
        """The index of the last act that is on disk; that before the first one when none is."""
        self._rows.look()
        return self.first + max(self._rows.last, self.base - 1) - self.base

    def finish(self, exit_code: int) -> int:
        """End the run, and wait until that is on disk; returns what ``saved`` does then."""
        self.run.finish(exit_code=exit_code)
        deadline = time.monotonic() + FLUSH
        while not self._rows.ended and time.monotonic() < deadline:
            time.sleep(0.01)
            self._rows.look()
        if not self.run.offline:
            mark_uploaded(self.folder)
        return self.saved()

    def do(self, act: Act, content: Callable[[str], Path | None]) -> None:
        """Give W&B a row or an artifact."""
        number = self.base + act["index"] - self.first
        if "artifact" in act:
            self._log_artifact(act["artifact"], number, content)
            return
        row = dict(act["row"], _timestamp=act["time"] / 1e9)
        # W&B copies files when it is given the row.
        with ExitStack() as until_then:
            for key, kept in act["media"].items():
                path = None if kept["content"] is None else content(kept["content"])
                if path is None and kept["content"] is not None:
                    continue
                try:
                    row[key] = until_then.enter_context(shown(kept, path))
                except (ValueError, ImportError) as error:
                    row[key] = f"cannot be shown: {error}"
                    self._log_artifact(kept_as_file(key, kept), number - 1, content)
            self.run.log(row, step=number, commit=True)

    def _log_artifact(
        self, about: dict[str, Any], number: int, content: Callable[[str], Path | None]
    ) -> None:
        import wandb

        artifact = wandb.Artifact(
            about["name"], about["type"], metadata={**about["metadata"], NUMBER: number}
        )
        for path, kept in about["files"].items():
            source = kept["text"].encode() if isinstance(kept, dict) else content(kept)
            if source is not None:
                with backend_files.named(source, "file") as file:
                    artifact.add_file(str(file), name=path, skip_cache=True)
        self.run.log_artifact(artifact, aliases=about["aliases"])

    def interrupt(self) -> None:
        """Let go; the run is to be continued."""
        self.run.mark_preempting()
        self.finish(INTERRUPTED)


@contextmanager
def shown(kept: Mapping[str, Any], path: Path | None) -> Iterator[Any]:
    """An item as W&B shows it; what W&B cannot show raises ValueError."""
    import wandb

    if path is None or kept["kind"] in ("histogram", "table"):
        value = kept["value"] if path is None else json.loads(path.read_bytes())
        yield _table(value) if kept["kind"] == "table" else _histogram(value)
    elif kept["media"] == "text/html":
        yield wandb.Html(path.read_text(encoding="utf-8", errors="replace"), inject=False)
    else:
        with backend_files.named(path, "picture" + _suffix(path, kept["media"])) as named:
            yield wandb.Image(str(named), caption=kept["caption"])


def _histogram(value: Any) -> Any:
    import wandb

    try:
        counts, edges = value["counts"], value["edges"]
    except (KeyError, TypeError):
        raise ValueError("this is not a histogram") from None
    if not counts or len(counts) > MOST_BINS:
        raise ValueError(f"W&B takes 1 to {MOST_BINS} bins, not {len(counts)}")
    return wandb.Histogram(np_histogram=(counts, edges))


def _table(value: Any) -> Any:
    import wandb

    try:
        # Mixed types are allowed: W&B would refuse a column with both.
        return wandb.Table(columns=value["columns"], data=value["data"], allow_mixed_types=True)
    except (KeyError, TypeError, AssertionError) as error:
        raise ValueError(f"this is not a table: {error}") from None


def _suffix(path: Path, media: str) -> str:
    from PIL import Image

    try:
        with Image.open(path) as picture:
            picture.verify()
    except Exception as error:  # whatever is wrong with it
        raise ValueError(f"this is no picture: {error}") from None
    return "." + media.rpartition("/")[2].replace("jpeg", "jpg")


def start(settings: Mapping[str, Any], folder: Path) -> wandb.Run:
    """``wandb.init``, quiet, leaving alone whatever other run is active in this process."""
    # Of another process: it would end with that one.
    os.environ.pop("WANDB_SERVICE", None)
    # Else files that wait for their upload are in the user's home.
    os.environ.setdefault("WANDB_DATA_DIR", str(folder))
    try:
        import wandb
    except ImportError as error:
        raise StepwellError(
            f"W&B is needed here ({error}): pip install 'stepwell[wandb]'"
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    _wait_for_a_name(fragments_in(folder), settings["id"])
    quiet = wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        init_timeout=INIT_TIMEOUT,
        finish_timeout=FINISH_TIMEOUT,
        finish_timeout_raises=True,
        # What there is to say about this process is not about the one that trains.
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
        silent=True,
    )
    run: wandb.Run = wandb.init(
        **settings, dir=str(_above(folder)), resume="allow", reinit="create_new", settings=quiet
    )
    return run


def _wait_for_a_name(fragments: Path, run_id: str) -> None:
    """W&B names a fragment by the second, and two of the same second would be one."""
    while any(fragments.glob(f"*run-{time.strftime('%Y%m%d_%H%M%S')}-{run_id}")):
        time.sleep(1 - time.time() % 1)


def fragments_in(folder: Path) -> Path:
    """Where W&B puts the fragments when it is told this folder."""
    return _above(folder) / "wandb"


def _above(folder: Path) -> Path:
    """W&B makes a folder ``wandb`` in the one that it is given."""
    return folder.parent if folder.name == "wandb" else folder


def forget() -> None:
    """After W&B's own process has died: without this no other one would be started."""
    import wandb

    try:
        wandb.teardown()
    except Exception:  # it says goodbye to that process
        pass
