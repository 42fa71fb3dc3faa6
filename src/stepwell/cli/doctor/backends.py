"""Are the trackers and collectors that are configured in the environment within reach?"""

from __future__ import annotations

import importlib.util
import netrc
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from stepwell.cli.doctor.check import Check
from stepwell.exporters.otlp_options import without_password
from stepwell.journal.errors import StepwellError
from stepwell.telemetry.exporter_loading import load_exporters

TIMEOUT = 3.0
PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306}
MLFLOW = "MLFLOW_TRACKING_URI"
OTLP = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
WANDB_HOST = "api.wandb.ai"


def check_backends(environ: Mapping[str, str]) -> Iterator[Check]:
    """MLflow, W&B and OpenTelemetry as their own variables say, and ``STEPWELL_EXPORTERS``."""
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
    """Whether somebody listens at an address; nothing is sent. A path or local database is left alone."""
    parts = urlsplit(address)
    shown = without_password(address)
    try:
        port = parts.port or PORTS.get(parts.scheme.partition("+")[0])
    except ValueError:
        return Check(name, "problem", f"{shown} has no valid port", "write http://host:port")
    if not parts.hostname or port is None:
        return Check(name, "ok", shown)
    try:
        socket.create_connection((parts.hostname, port), timeout=TIMEOUT).close()
    except OSError as error:
        advice = (
            "start it, or mend the address; training records meanwhile, `stepwell forward` delivers"
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
        advice = "`wandb login`, or WANDB_MODE=offline: until then runs stay offline"
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
    is_file = text.strip().endswith((".yaml", ".yml", ".json"))
    try:
        made = load_exporters(
            text.strip() if is_file else [name.strip() for name in text.split(",")]
        )
    except StepwellError as error:
        yield Check("STEPWELL_EXPORTERS", "problem", str(error), "mend it, or unset the variable")
        return
    names = ", ".join(str(getattr(one.exporter, "name", one.exporter)) for one in made)
    yield Check("exporters", "ok", names)
