"""Is stepwell installed as it should be, with versions that fit, and are its settings understood?"""

from __future__ import annotations

import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

import stepwell
from stepwell.cli.doctor.check import Check
from stepwell.journal.settings import PREFIX, unknown_setting

EXTRAS = (
    *("torch", "lightning", "transformers", "accelerate", "mlflow", "wandb", "tensorboard", "otlp"),
    *("pandas", "plots", "dask", "nvml"),
)
"""The extras whose packages are looked for, in this order."""


def check_installation(environ: Mapping[str, str]) -> Iterator[Check]:
    """Python, stepwell itself, the packages that it works with, and the settings."""
    python = f"Python {platform.python_version()}, {platform.platform()}"
    yield Check("python", "ok", python)
    yield _check_command()
    yield from _check_packages()
    yield from _check_settings(environ)


def _check_command() -> Check:
    """The command on the path must be that of this installation."""
    text = f"stepwell {stepwell.__version__} in {Path(stepwell.__file__).parent}"
    command = shutil.which("stepwell")
    if command is None:
        return Check("stepwell", "note", text, "`stepwell` is not on the PATH: python -m stepwell")
    own = Path(sys.executable).parent
    if Path(command).parent.resolve() != own.resolve():
        advice = f"`stepwell` is {command}, of another Python: activate one environment"
        return Check("stepwell", "note", f"{text}, Python {sys.executable}", advice)
    return Check("stepwell", "ok", text)


def _check_packages() -> Iterator[Check]:
    """The versions of what is installed, those that do not fit, and how to install the rest."""
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
    yield Check("packages", "ok", ", ".join(fitting) or "none of those that are optional")
    if missing:
        extras = ",".join(dict.fromkeys(missing))
        yield Check("not installed", "ok", extras, f"pip install 'stepwell[{extras}]'")


def _requirements() -> Iterator[tuple[str, str]]:
    """Extra and requirement, such as ``("mlflow", "mlflow<3.18,>=3.0")``, each package once."""
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
    """Whether a version is among those that are asked for; True where nobody can tell."""
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
