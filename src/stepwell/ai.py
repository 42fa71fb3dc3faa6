"""``from stepwell import ai``: importing this module returns the root of the annotation tree."""

from __future__ import annotations

import sys
from typing import Any

from stepwell.annotations.tree import ai

_modules: dict[str, Any] = sys.modules
_modules[__name__] = ai
