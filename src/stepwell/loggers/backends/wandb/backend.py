"""The Weights & Biases backend: the log of a run as a W&B run, uploaded, or on disk for ``wandb sync``.

The metrics, texts, images and HTML pages of one step are one row. Parameters become the configuration of the
W&B run; everything else is an artifact. Each rank that logs has its own run, all in one group.
"""

from __future__ import annotations

import secrets
import string
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from stepwell.loggers.backends.wandb.fragments import upload_unfinished
from stepwell.loggers.backends.wandb.rows import Act, WandBBatch, as_files, named_in
from stepwell.loggers.backends.wandb.session import (
    DISABLED,
    ONLINE,
    OnDisk,
    Session,
    forget,
    fragments_in,
    mode_of,
    start,
)
from stepwell.loggers.delivery.backend import Backend, LogRecord, Source
from stepwell.loggers.delivery.feed import tags_of

DEFAULT_PROJECT = "unnamed-experiment"
DEFAULT_SAVEDIR = "mllogs/wandb"
EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 130, "killed": 137}
LONGEST_TAG = 64
ID_LETTERS = string.ascii_lowercase + string.digits


class WandBBackend(Backend):
    """Delivers to W&B.

    Options: ``project_name``, ``entity``, ``group``, ``job_type``, ``tags``, ``notes``, ``offline_mode``,
    ``run_id`` of a run to continue, ``savedir``. ``WANDB_MODE`` applies. Without an API key it works offline.
    """

    name: ClassVar[str] = "wandb"

    def open(self, source: Source, state: dict[str, Any]) -> None:
        """Start a fragment. First it gets the rows that an earlier fragment has not written to disk."""
        self.state = state
        self.source = source
        self._session: Session | None = None
        self._sent = -1
        savedir = state.get("savedir") or self.options.get("savedir") or DEFAULT_SAVEDIR
        self.folder = Path(str(savedir)).expanduser().absolute()
        mode, hint = mode_of(self.options)
        if not state:
            state.update(self._identity(), savedir=str(self.folder))
            state.update(next=0, number=-1, unsaved=[], config={}, notes={})
        state["mode"] = mode
        if hint is not None:
            self.warn("mode", hint)
        if not state.get("ended"):
            self._ready()

    def deliver(self, records: list[LogRecord], again: bool) -> None:
        """Give W&B the rows that it does not have."""
        state = self.state
        batch = WandBBatch(state["next"], self.warn)
        batch.take(records)
        session = self._ready()
        if session is None:
            return
        if batch.params:
            self._guarded(
                session, lambda run: run.config.update(batch.params, allow_val_change=True)
            )
        self._do(session, batch.acts)
        if batch.summary:
            self._guarded(session, lambda run: run.summary.update(batch.summary))
        saved = session.saved()
        state["unsaved"] = [act for act in state["unsaved"] + batch.acts if act["index"] > saved]
        state["next"] = batch.next
        state["number"] = session.base + batch.next - 1 - session.first
        state["config"].update(batch.params)
        state.pop("ended", None)

    def finish(self, status: str) -> None:
        """Finish the W&B run. Only then everything is on disk, or uploaded."""
        session, self._session = self._ready(), None
        if session is not None:
            saved = self._guarded(session, lambda _: session.finish(EXIT_CODES.get(status, 1)))
            if saved < self.state["next"] - 1:
                raise OSError(f"W&B has not written the whole run to {self.folder}")
        self.state["unsaved"] = []
        self.state["ended"] = status

    def close(self) -> None:
        """End the fragment. A run that is not finished is *preempted* in W&B until it continues."""
        session, self._session = self._session, None
        if session is not None:
            session.interrupt()

    # The run

    def _identity(self) -> dict[str, Any]:
        """Return the id and the project of the run, the same for all attempts."""
        key = f"wandb-{self.number or 'forward'}-rank-{self.rank}"
        given = self.options.get("run_id")
        fresh = "".join(secrets.choice(ID_LETTERS) for _ in range(8))
        shared = self.shared(key)
        if shared is None:
            shared = self.publish(key, {"run_id": str(given) if given and self.is_first else fresh})
        return {"run_id": shared["run_id"], "project": self._project()}

    def _project(self) -> str:
        name = str(self.options.get("project_name") or DEFAULT_PROJECT)
        return "".join("-" if c in "/\\#?%:" else c for c in name)[:128]

    def _settings(self) -> dict[str, Any]:
        """Return the arguments of ``wandb.init``."""
        name = self.run_name or self.source.application
        several = self.source.world_size > 1 if self.ranks is None else len(self.ranks) > 1
        options = {key: self.options.get(key) for key in ("entity", "job_type", "tags", "notes")}
        if self.number is None and options["tags"] is None:
            options["tags"] = [tag[:LONGEST_TAG] for tag in tags_of(self.run_folder)] or None
        return {
            **{key: value for key, value in options.items() if value is not None},
            "id": self.state["run_id"],
            "project": self.state["project"],
            "name": name if self.is_first else f"{name} rank {self.rank}",
            "group": self.options.get("group") or (self.source.run if several else None),
            "config": self.state["config"],
            "mode": self.state["mode"],
        }

    # Session

    def _ready(self) -> Session | None:
        """Return the fragment to write to; None if W&B is disabled."""
        if self._session is None and self.state["mode"] != DISABLED:
            state = self.state
            owner = f"{self.source.process} {self.number}"
            if state["mode"] == ONLINE:
                upload_unfinished(fragments_in(self.folder), state["run_id"])
            disk = OnDisk(fragments_in(self.folder), state["run_id"], owner)
            waiting: list[Act] = state["unsaved"]
            # Uploaded fragments may have been removed from the disk.
            uploaded = waiting[0]["index"] - 1 if waiting else state["next"] - 1
            saved = max(disk.saved, uploaded)
            run = start(self._settings(), self.folder)
            base = max(disk.highest + 1, state["number"] + 1, int(run.starting_step))
            session = Session(run, owner, saved + 1, base)
            self._sent = saved
            self._do(session, waiting)
            self._session = session
        return self._session

    def _do(self, session: Session, acts: list[Act]) -> None:
        for act in acts:
            if act["index"] > self._sent:
                self._guarded(session, partial(self._do_one, session, act))
                self._sent = act["index"]

    def _do_one(self, session: Session, act: Act, run: Any) -> None:
        try:
            session.do(act, self._content)
        except (ValueError, TypeError, ImportError) as error:
            # W&B would refuse it the next time too, and other rows wait behind it.
            files = as_files(act)
            self.warn(
                "refused", f"W&B does not accept {named_in(act)}; it is stored as files: {error}"
            )
            session.do(files, self._content)

    def _guarded(self, session: Session, call: Any) -> Any:
        """Call W&B. If the call fails, the next attempt starts a new fragment."""
        try:
            return call(session.run)
        except BaseException:
            self._session = None
            forget()
            raise

    def _content(self, sha256: str) -> Path | None:
        path = self.content_path(sha256)
        if path.is_file():
            return path
        self.warn("content", f"{path} was removed and is not in W&B; others may be missing too")
        return None
