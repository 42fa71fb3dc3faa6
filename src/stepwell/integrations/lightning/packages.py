"""The two packages ``lightning`` and ``pytorch_lightning``, whose classes are incompatible."""

from __future__ import annotations

import sys
from abc import ABCMeta
from importlib import import_module
from operator import attrgetter
from typing import Any

from stepwell._core.errors import StepwellError

WHERE = "lightning"
"""What reports of errors name."""
MODULES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
CALLBACK, LOGGER = "Callback", "loggers.Logger"
"""The base classes of callbacks and loggers in each package."""


def check_trainer_class(cls: type) -> None:
    """Raise StepwellError for a class that is not a Trainer of either package."""
    if not any(base.__module__.partition(".")[0] in MODULES for base in cls.__mro__):
        raise StepwellError(
            f"{cls.__name__} must be the Trainer of lightning or pytorch_lightning, or a subclass of it"
        )


def module_of(package: str) -> Any:
    """Return the module with Trainer and Callback."""
    return import_module(MODULES[package])


def loaded_packages() -> list[str]:
    """Return the packages that the program has imported; if none, the one that can be imported."""
    loaded = [package for package, module in MODULES.items() if module in sys.modules]
    return loaded or [_installed()]


def base_classes(name: str) -> list[Any]:
    """Return the base class ``CALLBACK`` or ``LOGGER`` of each package that the program has imported."""
    return [attrgetter(name)(module_of(package)) for package in loaded_packages()]


def join_packages(cls: type, name: str) -> None:
    """Make a class derive from the base classes of packages that were imported after it was defined."""
    for base in base_classes(name):
        if issubclass(cls, base):
            continue
        if isinstance(base, ABCMeta):
            base.register(cls)
            continue
        try:
            cls.__bases__ = (*cls.__bases__, base)
        except TypeError:
            # A subclass of the user has both bases already, in the other order.
            pass


def _installed() -> str:
    for package in MODULES:
        try:
            module_of(package)
        except ImportError:
            continue
        return package
    raise StepwellError(
        "Neither lightning nor pytorch_lightning is installed: pip install lightning"
    )
