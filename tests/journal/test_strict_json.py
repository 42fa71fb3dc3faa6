"""Every JSON file and line of a run folder is strict JSON."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest

from stepwell import Run, open_run
from tests.journal.readback import json_texts, parse_strictly

ODD: dict[str, Any] = {
    "nan": math.nan,
    "inf": np.float32(math.inf),
    "deep": {"list": [math.nan, {"x": -math.inf}]},
    "surrogate\ud800": "\udc00",
    "zero": "\0",
    "big": 10**300,
    "text": 'quote " newline \n \u2028',
    "key\n": {1: 2, None: 3},
}


def record_odd_things(run: Run) -> None:
    run.set_step(1, epoch=0)
    for name in ("plain", "quote\"'", "new\nline", "\ud800", "\u2028", "\0"):
        with run.span(name, **ODD) as span:
            span.set(more=math.nan)
            run.event(name, **ODD)
            run.log({name: math.nan, "text": "NaN", "none": None, "odd": [math.nan]})
        run.artifact(name.encode("utf-8", "replace"), name, **ODD)
    try:
        with run.span("fails"):
            raise ValueError("NaN \ud800 \n")
    except ValueError:
        pass
    thread = threading.Thread(target=run.event, args=("e",), name='t"\ud800\n')
    thread.start()
    thread.join()


@pytest.mark.parametrize("ended", [False, True])
def test_every_json_text_of_a_run_folder_is_strict(recorded: Run, ended: bool) -> None:
    """No NaN, Infinity or half a character, in the files of a live run and of a finished one."""
    record_odd_things(recorded)
    if ended:
        recorded.finish()
    else:
        recorded.flush()
    texts = json_texts(recorded.path)
    assert len(texts) > 20
    for text in texts:
        parse_strictly(text)


def test_every_attribute_of_every_table_is_strict(recorded: Run) -> None:
    """What readers hand out is strict JSON as well."""
    record_odd_things(recorded)
    tables = open_run(recorded.path)
    for table in (tables.spans(), tables.events(), tables.artifacts()):
        texts = table.collect()["attributes"].drop_nulls().to_list()
        assert len(texts) >= 6
        for text in texts:
            parse_strictly(text)
