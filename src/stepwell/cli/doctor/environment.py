"""Checks of the environment: installation, settings, limits of the machine, reachable backends."""

from __future__ import annotations

import importlib.util
import netrc
import os
import platform
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

import stepwell
from stepwell._core.environment import PREFIX, unknown_setting
from stepwell._core.errors import StepwellError
from stepwell._core.masking import without_password
from stepwell._core.text import size
from stepwell.cli.doctor.check import Check
from stepwell.journal.format import SIZES
from stepwell.telemetry.exporter_config import load_exporters

EXTRAS = (
    *("torch", "lightning", "transformers", "accelerate", "mlflow", "wandb", "tensorboard", "otlp"),
    *("pandas", "plots", "dask", "nvml"),
)
"""Extras whose packages are checked, in this order."""


def check_installation(environ: Mapping[str, str]) -> Iterator[Check]:
    """Check Python, stepwell, optional packages and settings."""
    python = f"Python {platform.python_version()}, {platform.platform()}"
    yield Check("python", "ok", python)
    yield _check_command()
    yield from _check_packages()
    yield from _check_settings(environ)


def _check_command() -> Check:
    """Check that the command on the PATH belongs to this installation."""
    text = f"stepwell {stepwell.__version__} in {Path(stepwell.__file__).parent}"
    command = shutil.which("stepwell")
    if command is None:
        return Check(
            "stepwell", "note", text, "`stepwell` is not on the PATH: use python -m stepwell"
        )
    own = Path(sys.executable).parent
    if Path(command).parent.resolve() != own.resolve():
        advice = (
            f"`stepwell` is {command}, which belongs to another Python: activate one environment"
        )
        return Check("stepwell", "note", f"{text}, Python {sys.executable}", advice)
    return Check("stepwell", "ok", text)


def _check_packages() -> Iterator[Check]:
    """Check installed versions, and list packages that are not installed."""
    fitting, missing = [], []
    for extra, requirement in _requirements():
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(extra)
            continue
        if _fits(requirement, version):
            fitting.append(f"{name} {version}")
        else:
            yield Check(name, "problem", version, f"pip install '{requirement}'")
    yield Check("packages", "ok", ", ".join(fitting) or "no optional packages")
    if missing:
        extras = ",".join(dict.fromkeys(missing))
        yield Check("not installed", "ok", extras, f"pip install 'stepwell[{extras}]'")


def _requirements() -> Iterator[tuple[str, str]]:
    """Yield extra and requirement, such as ``("mlflow", "mlflow<3.18,>=3.0")``, each package once."""
    seen = set()
    try:
        requirements = metadata.requires("stepwell") or []
    except metadata.PackageNotFoundError:
        return
    for extra in EXTRAS:
        for line in requirements:
            requirement, _, marker = line.partition(";")
            requirement = requirement.strip()
            is_wanted = f'extra == "{extra}"' in marker.replace("'", '"')
            if is_wanted and requirement not in seen and not requirement.startswith("stepwell"):
                seen.add(requirement)
                yield extra, requirement


def _fits(requirement: str, version: str) -> bool:
    """Return whether a version meets a requirement; True if ``packaging`` is missing."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return True
    return Requirement(requirement).specifier.contains(version, prereleases=True)


def _check_settings(environ: Mapping[str, str]) -> Iterator[Check]:
    for name in sorted(environ):
        if not name.startswith(PREFIX):
            continue
        hint = unknown_setting(name)
        if hint is None:
            yield Check(name, "ok", environ[name])
        else:
            yield Check(
                name, "problem", f"is not a setting of stepwell{hint}", "unset or rename it"
            )


LEAST_DESCRIPTORS = 256
LEAST_PROCESSES = 64
SHARED = Path("/dev/shm")
LEAST_SHARED = 1 << 30
EARLIEST = 1_700_000_000
"""Earliest plausible time, in seconds since the epoch."""


def check_machine() -> Iterator[Check]:
    """Check limits, shared memory and the clock."""
    if sys.platform != "win32":
        yield from _check_limits()
    if SHARED.is_dir():
        yield _check_shared_memory()
    yield check_clock(time.time())


def _check_limits() -> Iterator[Check]:
    import resource

    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield check_limit(
        "open files",
        files,
        LEAST_DESCRIPTORS,
        "raise it with `ulimit -n 4096`: data loaders need many",
    )
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    yield check_limit(
        "processes", processes, LEAST_PROCESSES, "raise it with `ulimit -u`: threads count too"
    )
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    need = max(SIZES.values())
    yield check_limit(
        "file size",
        largest,
        need,
        f"raise it with `ulimit -f`: recording needs files of {size(need)}",
    )


def check_limit(name: str, limit: int, least: int, advice: str) -> Check:
    """Check that a limit of the process is high enough. Negative means no limit."""
    if limit < 0:
        return Check(name, "ok", "no limit")
    if limit >= least:
        return Check(name, "ok", f"limit {limit:,}")
    return Check(name, "problem", f"limit {limit:,}", advice)


def _check_shared_memory() -> Check:
    total = shutil.disk_usage(SHARED).total
    text = f"{size(total)} in {SHARED}"
    if total >= LEAST_SHARED:
        return Check("shared memory", "ok", text)
    advice = "DataLoader workers may die with a bus error: start the container with --shm-size=8g"
    return Check("shared memory", "note", text, advice)


def check_clock(now: float) -> Check:
    """Check that a time (seconds since the epoch) is plausible."""
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < EARLIEST:
        return Check("clock", "problem", text, "set the clock: the times of runs would be wrong")
    return Check("clock", "ok", text)


TIMEOUT = 3.0
PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306}
MLFLOW = "MLFLOW_TRACKING_URI"
OTLP = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
WANDB_HOST = "api.wandb.ai"


def check_backends(environ: Mapping[str, str]) -> Iterator[Check]:
    """Check MLflow, W&B and OpenTelemetry as set in their variables, and ``STEPWELL_EXPORTERS``."""
    if environ.get(MLFLOW):
        yield check_address("mlflow", environ[MLFLOW])
    for name in OTLP:
        if environ.get(name):
            yield check_address("otlp", environ[name])
            break
    if importlib.util.find_spec("wandb") is not None:
        yield _check_wandb(environ)
    yield from _check_exporters(environ.get("STEPWELL_EXPORTERS", ""))


def check_address(name: str, address: str) -> Check:
    """Check that an address accepts connections. Nothing is sent; paths and local databases are skipped."""
    parts = urlsplit(address)
    shown = without_password(address)
    try:
        port = parts.port or PORTS.get(parts.scheme.partition("+")[0])
    except ValueError:
        return Check(name, "problem", f"{shown} has no valid port", "use http://host:port")
    if not parts.hostname or port is None:
        return Check(name, "ok", shown)
    try:
        socket.create_connection((parts.hostname, port), timeout=TIMEOUT).close()
    except OSError as error:
        advice = (
            "start it or correct the address. Runs are recorded meanwhile; deliver them with `stepwell "
            "forward`"
        )
        return Check(name, "problem", f"{shown} does not answer: {error}", advice)
    return Check(name, "ok", f"{shown} answers")


def _check_wandb(environ: Mapping[str, str]) -> Check:
    mode = environ.get("WANDB_MODE", "").lower()
    if mode in ("offline", "dryrun", "disabled"):
        return Check("wandb", "ok", f"WANDB_MODE={mode}: nothing is uploaded")
    base = environ.get("WANDB_BASE_URL") or f"https://{WANDB_HOST}"
    reached = check_address("wandb", base)
    if not _has_key(environ, urlsplit(base).hostname or ""):
        advice = "run `wandb login`, or set WANDB_MODE=offline; until then runs stay offline"
        return Check("wandb", "note", "no API key", advice)
    return reached


def _has_key(environ: Mapping[str, str], host: str) -> bool:
    if environ.get("WANDB_API_KEY"):
        return True
    path = Path(environ.get("NETRC") or os.path.expanduser("~/.netrc"))
    try:
        return netrc.netrc(path).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _check_exporters(text: str) -> Iterator[Check]:
    if not text.strip():
        return
    try:
        exporters = load_exporters(text.strip())
    except StepwellError as error:
        yield Check("STEPWELL_EXPORTERS", "problem", str(error), "correct or unset the variable")
        return
    names = ", ".join(str(getattr(item.exporter, "name", item.exporter)) for item in exporters)
    yield Check("exporters", "ok", names)
