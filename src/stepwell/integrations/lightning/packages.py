"""Which Lightning: ``lightning`` and ``pytorch_lightning`` have the same classes twice, and do not mix."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from stepwell.journal.errors import StepwellError

MODULES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def package_of(trainer_cls: type) -> str:
    """The package that a Trainer class comes from, also one of the user's own."""
    for base in trainer_cls.__mro__:
        name = base.__module__.partition(".")[0]
        if name in MODULES:
            return name
    raise StepwellError(
        f"{trainer_cls.__name__} is no Trainer of lightning or pytorch_lightning, nor derived from one"
    )


def module_of(package: str) -> Any:
    """The module that has Trainer and Callback."""
    return import_module(MODULES[package])


def loaded_packages() -> list[str]:
    """Those that the program has imported; when none, the one that can be imported."""
    found = [package for package, module in MODULES.items() if module in sys.modules]
    return found or [_installed()]


def _installed() -> str:
    for package in MODULES:
        try:
            module_of(package)
        except ImportError:
            continue
        return package
    raise StepwellError(
        "neither lightning nor pytorch_lightning is installed: pip install lightning"
    )
