"""The work of a process, as the operating system reports it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from stepwell.telemetry.os_process import is_held_up, measure_work, process_family
from tests.harness import Program, start_script, wait_until

CODE = """
import subprocess, sys, threading, time

def spin():
    until = time.process_time() + 0.5
    while time.process_time() < until: pass

def start():
    global child
    child = subprocess.Popen(["sleep", "60"])

print(flush=True)
for line in sys.stdin:
    exec(line)
    print(flush=True)
child.kill()
child.wait()
"""


def do(program: Program, code: str) -> float:
    """Have it done; returns the work that it took."""
    assert program.stdin is not None
    assert program.stdout is not None
    before = measure_work(program.pid)
    program.stdin.write(code + "\n")
    program.stdin.flush()
    program.stdout.readline()
    after = measure_work(program.pid)
    assert before is not None
    assert after is not None
    return after - before


def test_work_tells_a_busy_process_from_one_that_waits(tmp_path: Path) -> None:
    """Half a second of CPU time is 2.5 units, 3 MiB are 3, and to sleep is next to nothing."""
    file = tmp_path / "file"
    file.write_bytes(bytes(3 << 20))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with start_script(CODE, text=True, **pipes) as program:
        assert program.stdout is not None
        program.stdout.readline()
        assert do(program, "time.sleep(0.3)") < 0.5
        assert do(program, "spin()") >= 2.4
        assert do(program, f"open({str(file)!r}, 'rb').read()") >= 3
        do(program, "start()")
        assert len(process_family(program.pid)) == 2
    assert measure_work(2**22 + 1) is None
    assert process_family(os.getpid())[0] == os.getpid()


def test_a_process_that_wants_a_processor_is_held_up() -> None:
    """Also where a thread of it does; one that sleeps is not."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with start_script(CODE, text=True, **pipes) as program:
        assert program.stdout is not None
        program.stdout.readline()
        wait_until(lambda: not is_held_up(program.pid))
        do(program, "threading.Thread(target=spin).start()")
        assert is_held_up(program.pid)
        wait_until(lambda: not is_held_up(program.pid))
        do(program, "start()")
    assert not is_held_up(2**22 + 1)
