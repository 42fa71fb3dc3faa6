"""Where a log goes when it is forwarded, if the run folder alone says so.

A run folder may come from somebody else, who would choose where your credentials are sent and where files
are written. So an address on the network must be confirmed, a folder or local database is shown first, and
what stands in a folder of another user's is not followed at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stepwell.journal.errors import StepwellError, say
from stepwell.journal.journal import EVENTS
from stepwell.journal.values import shown
from stepwell.loggers.delivery.backend import FOLDER, Backend
from stepwell.loggers.delivery.state import kept_state, state_path

ROOT = 0
LOCAL = ("file", "sqlite")


def check_places(folder: Path, backend: Backend, given: Mapping[str, Any]) -> None:
    """Refuse what needs to be confirmed, and show the rest. ``given`` are the options that the user wrote."""
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
    address = next((place for place in stored.values() if is_remote(place)), None)
    if address is not None:
        written = shown(address)[1:-1] if "@" not in address else "ADDRESS"
        raise StepwellError(
            f"only the run folder says where its log goes: {told}. Your credentials would be sent there. If "
            f"you trust it, write: stepwell forward {folder.parent} --to {backend.name}={written}"
        )
    say("%s goes to %s, as the run folder says", backend.name or type(backend).__name__, told)


def is_remote(place: str) -> bool:
    """Whether it is an address on the network, not a path or a local database."""
    scheme = urlsplit(place).scheme
    # A single letter is a drive of Windows.
    return len(scheme) > 1 and scheme not in LOCAL


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
