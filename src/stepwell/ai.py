"""``from stepwell import ai``: this module is the root of the tree of annotations."""

from __future__ import annotations

import sys
from typing import Any

from stepwell.annotations.tree import ai

_modules: dict[str, Any] = sys.modules
_modules[__name__] = ai
