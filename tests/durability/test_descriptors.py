"""File descriptors belong to the user's own files, however many threads record."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import stepwell
from tests.harness import run_script

AT_ONCE = """
import os, resource, threading
import stepwell

THREADS = 200
run = stepwell.init("x", dir={dir!r}, quiet=True)
with stepwell.span("first"):
    pass
few = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (few + 20, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
everybody = threading.Barrier(THREADS + 1)


def work(number):
    with stepwell.span("work", number=number):
        stepwell.log({{"value": number}})
        everybody.wait()
        everybody.wait()


threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
everybody.wait()
files = [open({file!r}) for _ in range(10)]
print(len(os.listdir("/proc/self/fd")) - len(files) - few)
everybody.wait()
for thread in threads:
    thread.join()
run.finish()
"""

POOLS = """
import os
from concurrent.futures import ThreadPoolExecutor
import stepwell

run = stepwell.init("x", dir={dir!r}, quiet=True)


def work(number):
    with stepwell.span("work", number=number):
        stepwell.log({{"value": number}})


with stepwell.span("first"):
    pass
few, most = len(os.listdir("/proc/self/fd")), 0
for batch in range(20):
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16 * batch, 16 * batch + 16)))
    most = max(most, len(os.listdir("/proc/self/fd")))
print(most - few)
run.finish()
"""


@pytest.mark.parametrize(
    ("script", "count"), [(AT_ONCE, 200), (POOLS, 320)], ids=["at once", "pools"]
)
def test_threads_that_record_hold_no_descriptors(tmp_path: Path, script: str, count: int) -> None:
    """Hundreds of threads need no more descriptors than one: the user's files open, nothing is dropped."""
    done = run_script(script.format(dir=str(tmp_path / "runs"), file=__file__))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 8, done.stdout
    run = stepwell.open_run(next((tmp_path / "runs").iterdir()))
    numbers = run.spans().filter(pl.col("name") == "work").select("attributes").collect()
    assert sorted(numbers["attributes"]) == sorted(f'{{"number":{i}}}' for i in range(count))
    values = run.metrics().filter(pl.col("name") == "value").collect()["value"]
    assert sorted(values) == list(range(count))
    assert run.processes().collect()["dropped"].to_list() == [0]
