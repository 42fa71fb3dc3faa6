"""Weights & Biases: the log of a run as a W&B run, uploaded, or on disk for ``wandb sync``.

Metrics of one step are one row; texts, pictures and pages are in it too. Parameters are the run's
configuration, everything else is an artifact. Each rank that logs has a run of its own, in one group.
"""

from __future__ import annotations

import secrets
import string
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from stepwell.journal.errors import warn_once
from stepwell.loggers.backends.wandb.rows import Act, Plan, as_files, named_in
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
from stepwell.loggers.backends.wandb.upload import upload_what_was_left
from stepwell.loggers.delivery.backend import Backend, LogRecord, Source
from stepwell.loggers.delivery.run_facts import tags_of

DEFAULT_PROJECT = "unnamed-experiment"
DEFAULT_SAVEDIR = "mllogs/wandb"
EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 130, "killed": 137}
LONGEST_TAG = 64
ID_LETTERS = string.ascii_lowercase + string.digits


class WandBBackend(Backend):
    """Delivers to W&B.

    Options: ``project_name``, ``entity``, ``group``, ``job_type``, ``tags``, ``notes``, ``offline_mode``,
    ``run_id`` to go on with a run, ``savedir``. ``WANDB_MODE`` counts; without a key it is offline.
    """

    name: ClassVar[str] = "wandb"

    def open(self, source: Source, state: dict[str, Any]) -> None:
        """Begin a fragment; what an earlier one has not on disk comes first."""
        self.state = state
        self.source = source
        self._session: Session | None = None
        self._sent = -1
        savedir = state.get("savedir") or self.options.get("savedir") or DEFAULT_SAVEDIR
        self.folder = Path(str(savedir)).expanduser().absolute()
        mode, word = mode_of(self.options)
        if not state:
            state.update(self._identity(), savedir=str(self.folder))
            state.update(next=0, number=-1, unsaved=[], config={}, notes={})
        state["mode"] = mode
        if word is not None:
            self._say("mode", word)
        if not state.get("ended"):
            self._ready()

    def deliver(self, records: list[LogRecord], again: bool) -> None:
        """Give W&B the rows that it does not have."""
        state = self.state
        plan = Plan(state["next"], self._say)
        plan.take(records)
        session = self._ready()
        if session is None:
            return
        if plan.params:
            self._guarded(
                session, lambda run: run.config.update(plan.params, allow_val_change=True)
            )
        self._do(session, plan.acts)
        if plan.summary:
            self._guarded(session, lambda run: run.summary.update(plan.summary))
        saved = session.saved()
        state["unsaved"] = [act for act in state["unsaved"] + plan.acts if act["index"] > saved]
        state["next"] = plan.next
        state["number"] = session.base + plan.next - 1 - session.first
        state["config"].update(plan.params)
        state.pop("ended", None)

    def finish(self, status: str) -> None:
        """Say how it ended. Only then everything is on disk, or uploaded."""
        session, self._session = self._ready(), None
        if session is not None:
            saved = self._guarded(session, lambda _: session.finish(EXIT_CODES.get(status, 1)))
            if saved < self.state["next"] - 1:
                raise OSError(f"W&B has not put all of the run into {self.folder}")
        self.state["unsaved"] = []
        self.state["ended"] = status

    def close(self) -> None:
        """Let go; a run that was not finished is *preempted* in W&B until it goes on."""
        session, self._session = self._session, None
        if session is not None:
            session.interrupt()

    # The run

    def _identity(self) -> dict[str, Any]:
        """Which run: the same one for all attempts."""
        key = f"wandb-{self.number or 'forward'}-rank-{self.rank}"
        given = self.options.get("run_id")
        fresh = "".join(secrets.choice(ID_LETTERS) for _ in range(8))
        about = self.shared(key)
        if about is None:
            about = self.publish(key, {"run_id": str(given) if given and self.is_first else fresh})
        return {"run_id": about["run_id"], "project": self._project()}

    def _project(self) -> str:
        name = str(self.options.get("project_name") or DEFAULT_PROJECT)
        return "".join("-" if c in "/\\#?%:" else c for c in name)[:128]

    def _settings(self) -> dict[str, Any]:
        """What ``wandb.init`` is told."""
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

    # At work

    def _ready(self) -> Session | None:
        """A fragment to write to; None when W&B is switched off."""
        if self._session is None and self.state["mode"] != DISABLED:
            state = self.state
            owner = f"{self.source.process} {self.number}"
            if state["mode"] == ONLINE:
                upload_what_was_left(fragments_in(self.folder), state["run_id"])
            disk = OnDisk(fragments_in(self.folder), state["run_id"], owner)
            waiting: list[Act] = state["unsaved"]
            # Fragments that were uploaded may have been removed.
            kept = waiting[0]["index"] - 1 if waiting else state["next"] - 1
            saved = max(disk.saved, kept)
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
            # W&B will not take this one the next time either, and others wait behind it.
            kept = as_files(act)
            self._say("refused", f"W&B does not take {named_in(act)} as it is: {error}")
            session.do(kept, self._content)

    def _guarded(self, session: Session, call: Any) -> Any:
        """A call to W&B; when it fails, the next try begins a new fragment."""
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
        self._say("content", f"{path} is gone, and so is not in W&B; likewise for others")
        return None

    def _say(self, key: str, message: str) -> None:
        """Once for each logger; ``state`` keeps it, since a sidecar has nobody to talk to."""
        if key not in self.state["notes"]:
            self.state["notes"][key] = message
            warn_once(f"wandb {self.state['run_id']} {key}", "%s", message)
