"""A session of W&B, from ``wandb.init`` to ``finish``. On disk it is one *fragment* of a run.

A run that was interrupted has several fragments, which ``wandb sync`` uploads one after the other. W&B writes
to disk only now and then, and a killed process loses the rest. So each row has a number, and the next
fragment gets the rows that are not on disk.
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

from stepwell._core.errors import StepwellError
from stepwell._core.files import read_json, write_json
from stepwell.loggers.backends.wandb.fragments import (
    META,
    NUMBER,
    FragmentProgress,
    fragment_files,
    mark_uploaded,
)
from stepwell.loggers.backends.wandb.rows import STEP, Act, kept_as_file
from stepwell.loggers.delivery import files as backend_files

if TYPE_CHECKING:
    import wandb

OFFLINE, ONLINE, DISABLED = "offline", "online", "disabled"
INTERRUPTED = 1
MOST_BINS = 512
"""The largest number of bins of a histogram."""
INIT_TIMEOUT = 30.0
FINISH_TIMEOUT = 300.0
"""Seconds to wait for W&B's server. ``wandb sync`` uploads the rest."""
FLUSH = 20.0
"""Seconds to wait until W&B has written a finished run to disk."""


def mode_of(options: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the mode (online, offline or disabled), and a hint if it is offline without being requested."""
    requested = os.environ.get("WANDB_MODE", "").strip().lower()
    off = os.environ.get("WANDB_DISABLED", "").strip().lower() in ("true", "1", "yes")
    if requested == DISABLED or off:
        return DISABLED, None
    if options.get("offline_mode") or requested in (OFFLINE, "dryrun"):
        return OFFLINE, None
    if _has_key():
        return ONLINE, None
    return OFFLINE, (
        "there is no W&B API key, so the run is stored on this machine only. Upload it with `wandb sync`. "
        "Before the next run, set WANDB_API_KEY or run `wandb login`"
    )


def _has_key() -> bool:
    """Return whether there is an API key. W&B itself would prompt for one."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    name = os.environ.get("NETRC") or ("~/_netrc" if sys.platform == "win32" else "~/.netrc")
    try:
        return netrc.netrc(os.path.expanduser(name)).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


class OnDisk:
    """The progress of all fragments of a run on disk.

    Attributes:
        saved: the index of the last act of this process; -1 if there is none.
        highest: the highest number of any process.
    """

    def __init__(self, folder: Path, run_id: str, owner: str) -> None:
        self.saved = self.highest = -1
        for file in fragment_files(folder, run_id):
            meta = read_json(file.parent / META)
            progress = FragmentProgress(file)
            last = progress.last
            self.highest = max(self.highest, progress.highest)
            if meta is not None and meta.get("owner") == owner and last >= meta["base"]:
                self.saved = max(self.saved, meta["first"] + last - meta["base"])


class Session:
    """A fragment that is being written."""

    def __init__(self, run: wandb.Run, owner: str, first: int, base: int) -> None:
        self.run = run
        self.first = first
        self.base = base
        file = Path(run.settings.sync_file)
        self.folder = file.parent
        write_json(self.folder / META, {"owner": owner, "first": first, "base": base})
        self._rows = FragmentProgress(file)
        run.define_metric(STEP, hidden=True)
        run.define_metric("*", step_metric=STEP)

    def saved(self) -> int:
        """Return the index of the last act on disk; the index before the first act if there is none."""
        self._rows.look()
        return self.first + max(self._rows.last, self.base - 1) - self.base

    def finish(self, exit_code: int) -> int:
        """Finish the run and wait until it is on disk. Return the index of the last act on disk."""
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
        # W&B copies the files in run.log().
        with ExitStack() as stack:
            for key, kept in act["media"].items():
                path = None if kept["content"] is None else content(kept["content"])
                if path is None and kept["content"] is not None:
                    continue
                try:
                    row[key] = stack.enter_context(shown(kept, path))
                except (ValueError, ImportError) as error:
                    row[key] = f"cannot be shown: {error}"
                    self._log_artifact(kept_as_file(key, kept), number - 1, content)
            self.run.log(row, step=number, commit=True)

    def _log_artifact(
        self, act: dict[str, Any], number: int, content: Callable[[str], Path | None]
    ) -> None:
        import wandb

        artifact = wandb.Artifact(
            act["name"], act["type"], metadata={**act["metadata"], NUMBER: number}
        )
        for path, kept in act["files"].items():
            source = kept["text"].encode() if isinstance(kept, dict) else content(kept)
            if source is not None:
                with backend_files.named(source, "file") as file:
                    artifact.add_file(str(file), name=path, skip_cache=True)
        self.run.log_artifact(artifact, aliases=act["aliases"])

    def interrupt(self) -> None:
        """End the fragment; the run will be continued."""
        self.run.mark_preempting()
        self.finish(INTERRUPTED)


@contextmanager
def shown(kept: Mapping[str, Any], path: Path | None) -> Iterator[Any]:
    """Context manager: an item as an object of W&B. Raise ValueError if W&B cannot show it."""
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
        raise ValueError(f"W&B accepts 1 to {MOST_BINS} bins, got {len(counts)}")
    return wandb.Histogram(np_histogram=(counts, edges))


def _table(value: Any) -> Any:
    import wandb

    try:
        # By default, W&B refuses a column with mixed types.
        return wandb.Table(columns=value["columns"], data=value["data"], allow_mixed_types=True)
    except (KeyError, TypeError, AssertionError) as error:
        raise ValueError(f"this is not a table: {error}") from None


def _suffix(path: Path, media: str) -> str:
    from PIL import Image

    try:
        with Image.open(path) as picture:
            picture.verify()
    except Exception as error:  # PIL raises many types
        raise ValueError(f"this is not an image: {error}") from None
    return "." + media.rpartition("/")[2].replace("jpeg", "jpg")


def start(settings: Mapping[str, Any], folder: Path) -> wandb.Run:
    """Call ``wandb.init`` without output, and without touching another active run in this process."""
    # The service of another process would end with that process.
    os.environ.pop("WANDB_SERVICE", None)
    # By default, files that wait for their upload are in the user's home.
    os.environ.setdefault("WANDB_DATA_DIR", str(folder))
    try:
        import wandb
    except ImportError as error:
        raise StepwellError(
            f"W&B is needed here ({error}): pip install 'stepwell[wandb]'"
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    _wait_for_free_name(fragments_in(folder), settings["id"])
    quiet = wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        init_timeout=INIT_TIMEOUT,
        finish_timeout=FINISH_TIMEOUT,
        finish_timeout_raises=True,
        # These would describe this process, not the process that trains.
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
        silent=True,
    )
    run: wandb.Run = wandb.init(
        **settings, dir=str(_above(folder)), resume="allow", reinit="create_new", settings=quiet
    )
    return run


def _wait_for_free_name(fragments: Path, run_id: str) -> None:
    """Wait until the name of a new fragment is free: W&B names fragments by the second."""
    while any(fragments.glob(f"*run-{time.strftime('%Y%m%d_%H%M%S')}-{run_id}")):
        time.sleep(1 - time.time() % 1)


def fragments_in(folder: Path) -> Path:
    """Return the folder where W&B writes the fragments."""
    return _above(folder) / "wandb"


def _above(folder: Path) -> Path:
    """Return the folder for W&B's ``dir`` argument. W&B creates a folder ``wandb`` in it."""
    return folder.parent if folder.name == "wandb" else folder


def forget() -> None:
    """Reset W&B after its service process has died, so that it starts a new one."""
    import wandb

    try:
        wandb.teardown()
    except Exception:  # it tries to contact the process that has died
        pass
