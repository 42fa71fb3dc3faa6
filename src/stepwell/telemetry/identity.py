"""The identity of a run: host, Python, code, launch and configuration, as values for JSON.

Functions leave out what they cannot find. Only `config_to_dict` raises, for a value that is not a
configuration.
"""

from __future__ import annotations

import functools
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any

from stepwell._core import threads
from stepwell._core.masking import mask
from stepwell._core.system import boot_id

if TYPE_CHECKING:
    import subprocess

_GIT_SECONDS = 2.0
"""How long git may take to describe the code."""
_GIT_SECONDS_AT_END = 0.1
"""How long it may still take when the run has ended."""
_GIT_VALID_SECONDS = 2.0
"""Seconds for which further runs of the process reuse the description of the code."""
_DEEPEST = 32

_DISTRIBUTIONS = (
    "stepwell",
    "torch",
    "torchvision",
    "torchaudio",
    "lightning",
    "pytorch-lightning",
    "transformers",
    "accelerate",
    "datasets",
    "deepspeed",
    "peft",
    "jax",
    "flax",
    "tensorflow",
    "keras",
    "scikit-learn",
    "xgboost",
    "numpy",
    "pandas",
    "polars",
    "mlflow",
    "wandb",
    "tensorboard",
    "hydra-core",
    "omegaconf",
    "triton",
    "flash-attn",
    "zstandard",
    "msgspec",
)

_GIT_QUESTIONS = {
    "commit": ("rev-parse", "--verify", "HEAD"),
    "branch": ("symbolic-ref", "--short", "--quiet", "HEAD"),
    "remote": ("config", "--get", "remote.origin.url"),
    "changes": ("status", "--porcelain", "--untracked-files=no"),
}

_described: dict[Path, tuple[float, dict[str, Any]]] = {}
"""By folder: when its code was described, and how."""

_LAUNCH_VARIABLE = (
    "RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|LOCAL_SIZE|NODE_RANK|MASTER_ADDR|MASTER_PORT"
    "|(?:GROUP|ROLE)_(?:RANK|WORLD_SIZE|NAME)|CUDA_VISIBLE_DEVICES|OMP_NUM_THREADS"
    "|(?:TORCHELASTIC|SLURM|OMPI|PMI|PMIX|NCCL|TORCH_NCCL|STEPWELL)_.*"
)


@functools.cache
def warm_up() -> None:
    """Import everything that the functions below need, for a thread that may not import at any time."""
    import shutil  # noqa: F401
    import subprocess  # noqa: F401
    import tempfile  # noqa: F401

    # Looking up one version imports everything that the others need.
    _find_versions(("msgspec",))


def working_folder() -> str:
    """Return the current folder, also when it has been deleted."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def user_name() -> str | None:
    """Return the user of this process, None if the system has no name for it."""
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError, OSError):
        return os.environ.get("LOGNAME") or os.environ.get("USER") or os.environ.get("USERNAME")


def describe_host() -> dict[str, Any]:
    """Return hostname, operating system, kernel, machine, processors, memory and boot id."""
    import platform

    return _without_none(
        {
            "hostname": socket.gethostname(),
            "os": platform.system(),
            "kernel": platform.release(),
            "machine": platform.machine(),
            "cpu_count": os.cpu_count(),
            "cpu_usable": _count_usable_cpus(),
            "memory_bytes": _read_memory_bytes(),
            "boot_id": boot_id(),
        }
    )


def describe_python() -> dict[str, Any]:
    """Return the interpreter and the versions of the installed packages that matter to training.

    Nothing is imported to find them. They are looked up again only after packages were installed.
    """
    return {
        "version": ".".join(str(part) for part in sys.version_info[:3]),
        "implementation": sys.implementation.name,
        "executable": sys.executable,
        "packages": dict(_installed_versions(tuple(map(_modified, sys.path)))),
    }


def describe_code(cwd: Path, is_ending: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Return commit, branch, dirty flag and remote of the git repository around a folder.

    Omit facts that git does not return within 2 s, or within 0.1 s once ``is_ending()``. Return {}
    outside a repository. Untracked files do not make it dirty. Runs that start within 2 s of one
    another in the same folder share one description.
    """
    described, facts = _described.get(cwd, (-_GIT_VALID_SECONDS, {}))
    if time.monotonic() - described < _GIT_VALID_SECONDS:
        return dict(facts)
    answers = _ask_git(cwd, _GIT_QUESTIONS, is_ending)
    changes, remote = answers.get("changes"), answers.get("remote")
    facts = _without_none(
        {
            "commit": answers.get("commit"),
            "branch": answers.get("branch"),
            "dirty": None if changes is None else bool(changes),
            "remote": _strip_credentials(remote) if remote else None,
        }
    )
    if not ("commit" in facts or "branch" in facts):
        facts = {}
    if len(answers) == len(_GIT_QUESTIONS):
        _described[cwd] = time.monotonic(), facts
    return dict(facts)


def describe_launch_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that launchers and communication libraries use, secrets masked."""
    variables = {
        name: environ[name] for name in sorted(environ) if re.fullmatch(_LAUNCH_VARIABLE, name)
    }
    masked: dict[str, str] = mask(variables)
    return masked


def config_to_dict(config: object) -> dict[str, Any]:
    """Return a configuration as a dict with string keys; nested configurations are converted too.

    Takes a dict or other mapping, a Namespace, a dataclass or attrs instance, a pydantic model,
    an OmegaConf config, a named tuple, an object with to_dict() or the like, or one with plain
    attributes. None gives an empty dict; anything else raises TypeError.
    """
    if config is None:
        return {}
    items = _find_items(config)
    if items is None and not _is_plain_value(config):
        items = _public_attributes(config) or None
    if items is None:
        raise TypeError(
            "config must be a dict, an argparse.Namespace, a dataclass instance, or an object with to_dict() "
            f"or with attributes, got {_name_type(config)}"
        )
    return _convert_items(items, 0)


def _convert_items(items: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    converted: dict[str, Any] = {}
    for key in items:
        try:
            value = items[key]
        except Exception as error:
            # OmegaConf raises for a missing value.
            value = f"<{type(error).__name__}>"
        converted[str(key)] = _convert(value, depth + 1)
    return converted


def _convert(value: Any, depth: int) -> Any:
    if depth > _DEEPEST or _is_plain_value(value):
        return value
    if isinstance(value, (list, tuple)) and not hasattr(value, "_asdict"):
        return [_convert(item, depth + 1) for item in value]
    items = _find_items(value) if _is_structure(value) else None
    return value if items is None else _convert_items(items, depth)


def _is_structure(value: object) -> bool:
    """Return whether a nested value is a configuration; a model or tensor is not."""
    if isinstance(value, type):
        return False
    return (
        isinstance(value, Mapping)
        or _is_namespace(value)
        or is_dataclass(value)
        or any(hasattr(value, name) for name in ("model_dump", "_asdict", "__attrs_attrs__"))
    )


def _is_namespace(value: object) -> bool:
    # Such an object exists only if argparse was imported, which is slow.
    argparse = sys.modules.get("argparse")
    return isinstance(value, SimpleNamespace) or (
        argparse is not None and isinstance(value, argparse.Namespace)
    )


def _is_plain_value(value: object) -> bool:
    return value is None or isinstance(value, (str, bytes, bool, int, float, complex, type, Path))


def _find_items(config: object) -> Mapping[Any, Any] | None:
    """Return the fields of an object that has fields, or None."""
    if isinstance(config, type):
        return None
    if isinstance(config, Mapping):
        return config
    if _is_namespace(config):
        return vars(config)
    for name in ("model_dump", "to_dict", "as_dict", "_asdict", "dict"):
        items = _call(config, name)
        if isinstance(items, Mapping):
            return items
    if is_dataclass(config):
        return _read_attributes(config, (field.name for field in fields(config)))
    attrs = getattr(config, "__attrs_attrs__", None)
    if attrs is not None:
        return _read_attributes(config, (str(attribute.name) for attribute in attrs))
    pairs = _call(config, "items")
    return None if pairs is None else _make_dict(pairs)


def _call(config: object, name: str) -> Any:
    """Return the result of a method without arguments, None if it fails."""
    try:
        method = getattr(config, name, None)
        return method() if callable(method) else None
    except Exception:
        return None


def _make_dict(pairs: Any) -> dict[Any, Any] | None:
    try:
        return dict(pairs)
    except (TypeError, ValueError):
        return None


def _read_attributes(config: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(config, name) for name in names if hasattr(config, name)}


def _public_attributes(config: object) -> dict[str, Any]:
    attributes = getattr(config, "__dict__", {})
    return {name: value for name, value in attributes.items() if not name.startswith("_")}


def _name_type(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__} itself"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _count_usable_cpus() -> int | None:
    """Return the number of CPUs this process may use, which a job scheduler may have restricted."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    try:
        return len(os.sched_getaffinity(0))
    except OSError:
        return None


def _read_memory_bytes() -> int | None:
    try:
        match = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text("ascii"))
    except (OSError, ValueError):
        return None
    return int(match[1]) * 1024 if match else None


def _modified(folder: str) -> tuple[str, int]:
    """Return a folder of ``sys.path`` and when it last changed; installing a package changes it."""
    try:
        return str(folder), os.stat(folder or ".").st_mtime_ns
    except (OSError, TypeError, ValueError):
        return str(folder), 0  # ``sys.path`` may contain anything.


@functools.lru_cache(maxsize=1)
def _installed_versions(_: tuple[tuple[str, int], ...]) -> dict[str, str]:
    return _find_versions(_DISTRIBUTIONS)


def _find_versions(distributions: Iterable[str]) -> dict[str, str]:
    from importlib import metadata

    versions: dict[str, str] = {}
    for distribution in distributions:
        try:
            version = metadata.version(distribution)
        except Exception:
            # Not installed, or a damaged installation.
            continue
        if version:
            versions[distribution] = version
    return versions


def _ask_git(
    cwd: Path, questions: Mapping[str, tuple[str, ...]], is_ending: Callable[[], bool]
) -> dict[str, str | None]:
    """Return git's answers by name: None if git failed, no entry if it took too long."""
    with threads.forks_blocked():
        import shutil
        import subprocess
        import tempfile

    program = shutil.which("git")
    answers: dict[str, str | None] = {}
    if program is None:
        return answers
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    # A repository can configure a program that git runs to watch its files. It must not run here.
    command = [program, "-C", str(cwd), "-c", "core.fsmonitor=false"]
    asked: dict[str, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
    try:
        for name, words in questions.items():
            with threads.forks_blocked():  # tempfile takes a lock of its own.
                output: IO[bytes] = tempfile.TemporaryFile()
            # No pipe, and started with posix_spawn (hence no close_fds, no cwd), which uses none either: a
            # DataLoader worker forked at this moment would keep the other end open as long as it lives.
            asked[name] = (
                subprocess.Popen(
                    [*command, *words],
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.DEVNULL,
                    close_fds=False,
                ),
                output,
            )
        _wait_for_all([process for process, _ in asked.values()], is_ending)
        for name, (process, output) in asked.items():
            code = process.poll()
            if code is not None:
                output.seek(0)
                answers[name] = None if code else output.read().decode("utf-8", "replace").strip()
    except (OSError, ValueError, subprocess.SubprocessError):
        pass
    finally:
        for process, output in asked.values():
            if process.poll() is None:
                process.kill()
                process.wait()
            output.close()
    return answers


def _wait_for_all(
    processes: Iterable[subprocess.Popen[bytes]], is_ending: Callable[[], bool]
) -> None:
    """Wait for processes until their deadline, which is earlier once the run is ending."""
    now = time.monotonic()
    deadline = now + _GIT_SECONDS
    pause = 0.001
    while None in [process.poll() for process in processes] and now < deadline:
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
        now = time.monotonic()
        if is_ending():
            deadline = min(deadline, now + _GIT_SECONDS_AT_END)
            is_ending = bool  # Returns False from here on: the deadline is set.


def _strip_credentials(url: str) -> str:
    """Return a URL without user, password and query. The user of an ssh URL is needed, and not secret."""
    url = re.sub(r"[?#].*", "", url)
    url = re.sub(r"^(ssh://|git\+ssh://)([^\s/:@]*):[^\s/]*@", r"\1\2@", url)
    url = re.sub(r"^((?!ssh|git\+ssh)[a-zA-Z][\w+.-]*://)[^\s/]*@", r"\1", url)
    masked: str = mask(url)
    return masked


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
