"""Provenance documents as items of a run, for loggers that write none themselves.

They are made from the run folder as it is at the call, in a process of its own: that takes libraries which a
training process has no use for, and a second or two, which it has no time for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from stepwell.loggers.items.making import CannotKeep, Item

MAKE = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from stepwell.loggers.prov.document import document_of
from stepwell.loggers.prov.writing import documents_of
json.dump(documents_of(document_of(sys.argv[2], user_namespace=sys.argv[3])), sys.stdout)
"""
LONGEST = 120.0
"""Seconds that it may take."""
NAMESPACE = "www.example.org"


def documents(run_folder: Path, identifier: str, namespace: str = NAMESPACE) -> list[Item]:
    """The documents of the run so far, each a file in a folder of this name. Waits for them."""
    path = [place or os.getcwd() for place in sys.path if isinstance(place, str)]
    done = subprocess.run(
        [sys.executable, "-c", MAKE, json.dumps(path), str(run_folder), namespace],
        env={**os.environ, "STEPWELL_MODE": "off", "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LONGEST,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise CannotKeep(f"the documents cannot be made: {said[-1][:300] if said else 'no reason'}")
    return [
        Item(identifier, content=text.encode(), file=name, meta={"folder": True})
        for name, text in json.loads(done.stdout).items()
    ]
