"""Where a log goes when it is forwarded: what the run folder says of that is shown first.

A run folder may come from somebody else, who would choose where your credentials are sent and where files
are written. So what stands in a folder of another user's is not followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stepwell.journal.errors import StepwellError, say
from stepwell.journal.journal import EVENTS
from stepwell.journal.values import shown
from stepwell.loggers.delivery.backend import FOLDER, Backend
from stepwell.loggers.delivery.state import kept_state, state_path

ROOT = 0


def show_places(folder: Path, backend: Backend, given: Mapping[str, Any]) -> None:
    """Say where it goes to as far as nobody but the run folder says so; another user's is refused."""
    path = state_path(folder, backend)
    places = backend.places(kept_state(path))
    stored = {
        name: place for name, place in places.items() if name not in given and not _in(place, given)
    }
    if not stored:
        return
    told = ", ".join(f"{name} {shown(place)}" for name, place in stored.items())
    owner = _another_owner((folder.parent, folder, folder / EVENTS, path))
    if owner is not None:
        asked = " ".join(f"--option {name}=…" for name in stored if name != FOLDER)
        raise StepwellError(
            f"{folder.parent} belongs to {owner}, and says where its log goes: {told}. Say yourself where "
            f"to{f', with {asked}' if asked else ''}; or, if you trust it, forward a copy of the folder"
        )
    say("%s goes to %s, as the run folder says", backend.name or type(backend).__name__, told)


def _in(place: str, given: Mapping[str, Any]) -> bool:
    """Whether a place is below a folder that was given."""
    folders = [
        Path(value).expanduser() for value in given.values() if isinstance(value, str) and value
    ]
    whole = Path(os.path.abspath(place))
    return any(whole.is_relative_to(os.path.abspath(folder)) for folder in folders)


def _another_owner(paths: Iterable[Path]) -> str | None:
    """Who else has one of these files; None: they are all ours, or the administrator's."""
    if not hasattr(os, "geteuid"):
        return None
    for path in paths:
        try:
            owner = path.lstat().st_uid
        except OSError:
            continue
        if owner not in (os.geteuid(), ROOT):
            return _called(owner)
    return None


def _called(user: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(user).pw_name
    except (ImportError, KeyError):
        return f"user {user}"
