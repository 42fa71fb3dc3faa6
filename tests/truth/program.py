"""Runs the script of a case: ``python -m tests.truth.program FAMILY SCRIPT``, in the folder of its runs."""

import importlib
import os
import sys
from pathlib import Path

import torch

from tests.truth import kit
from tests.truth.case import Case


def main() -> None:
    """Run the script, with the clock and the side channel that the environment asks for."""
    family, script = sys.argv[1:]
    case: Case = vars(importlib.import_module(f"tests.truth.{family}"))[script]
    torch.manual_seed(0)
    if os.environ.get("TRUTH_CLOCK") != "real":
        kit.clock.use_virtual()
    kit.truth.open(Path(f"truth-{kit.RANK}.jsonl"))
    try:
        case.script()
    finally:
        kit.truth.write()


if __name__ == "__main__":
    main()
