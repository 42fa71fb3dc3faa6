"""Locks on files of other users, and on file systems with few or no locks."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from stepwell._core.files import locked

real_open = os.open


@pytest.fixture
def others_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock file of another user, which can be read only."""

    def refuse(path: Any, flags: int, *mode: Any, **options: Any) -> int:
        if Path(path) == lock and flags & os.O_ACCMODE != os.O_RDONLY:
            raise PermissionError(errno.EACCES, "not yours", str(path))
        return real_open(path, flags, *mode, **options)

    lock = tmp_path / "delivery.lock"
    lock.touch()
    monkeypatch.setattr(os, "open", refuse)
    return lock


def fail_to_lock(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)


def test_a_file_of_another_user_is_locked(others_file: Path) -> None:
    with locked(others_file, wait=False) as first, locked(others_file, wait=False) as second:
        assert (first, second) == (True, False)


def test_a_file_of_another_user_on_nfs_is_not_acquired(
    others_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS locks a file exclusively only for those who may write it."""
    fail_to_lock(monkeypatch, errno.EBADF)
    with locked(others_file, wait=False) as is_mine:
        assert not is_mine
    with locked(others_file, wait=False, required=False) as is_mine:
        assert is_mine


def test_an_own_file_where_there_are_no_locks_is_acquired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_lock(monkeypatch, errno.ENOSYS)
    with locked(tmp_path / "lock", wait=False) as is_mine:
        assert is_mine


def test_a_folder_that_is_not_writable_is_named_as_such(others_file: Path) -> None:
    others_file.unlink()
    with pytest.raises(PermissionError), locked(others_file):
        pass


def test_a_link_is_never_opened(tmp_path: Path) -> None:
    """A lock that is not required does without."""
    lock = tmp_path / "lock"
    lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="lock") as caught, locked(lock):
        pass
    assert caught.value.errno == errno.ELOOP
    with locked(lock, required=False) as is_mine:
        assert is_mine
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(ValueError, match="of the block"), locked(lock, required=False):
        raise ValueError("of the block")
