"""Stand-ins for launchers: processes that start ranks with the environment a launcher sets."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness import environment, start_script

DATED = r"\d{8}-\d{6}-[a-z2-9]{6}"
"""How the end of an id looks that time and chance have made."""

RANK = """
import json, os, sys
from pathlib import Path
from stepwell.telemetry.launch import claim_attempt, find_launch
from stepwell.telemetry.rank_info import find_rank_info
root = Path(os.environ["TEST_ROOT"])
place = find_rank_info(os.environ)
for turn in range(int(os.environ.get("TEST_INITS", "1"))):
    found = find_launch(
        root, place, run_id=None, name=os.environ.get("TEST_NAME"), environ=os.environ,
        argv=sys.argv,
    )
    attempt = claim_attempt(root / found.run_id, found.token)
    # In one piece, because all ranks of a torchrun write to the same pipe.
    os.write(1, json.dumps([place.rank, found.run_id, attempt]).encode() + b"\\n")
"""

# Stands for torchrun, mpirun or a script: starts ranks as its children, once for every line. They are
# forked, but for those below a wrapper, which is found by what the system knows of its environment.
AGENT = """
import json, os, subprocess, sys, traceback
code, *_ = sys.argv[1:]

def start(command, environ, arguments):
    if command:
        words = [*command, sys.executable, "-c", code, *arguments]
        return subprocess.Popen(words, env=environ, stdout=subprocess.PIPE).stdout
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.dup2(writing, 1)
        os.environ.clear()
        os.environ.update(environ)
        sys.argv = ["-c", *arguments]
        try:
            exec(code, {})
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    return open(reading, "rb")

for line in sys.stdin:
    outputs = [start(*rank) for rank in json.loads(line)]
    print(json.dumps("".join(output.read().decode() for output in outputs)), flush=True)
"""


@dataclass(frozen=True)
class Seat:
    """The launch and attempt that one rank determined."""

    rank: int
    run: str
    attempt: int


class Agent:
    """A launcher process of its own, as torchrun is on each node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.process = start_script(
            AGENT,
            RANK,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def launch(
        self,
        *environs: Mapping[str, str],
        command: Sequence[str] = (),
        arguments: Sequence[str] = (),
    ) -> list[Seat]:
        """Start one process for each environment, all at once, and return what they found."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        common = environment(TEST_ROOT=str(self.root))
        ranks = [(command, {**common, **environ}, arguments) for environ in environs]
        self.process.stdin.write(json.dumps(ranks) + "\n")
        self.process.stdin.flush()
        return read_seats(json.loads(self.process.stdout.readline()))


def read_seats(output: str) -> list[Seat]:
    """The seats of ranks that wrote to one stream: each rank's own in the order it found them."""
    return sorted(
        (Seat(*json.loads(line)) for line in output.splitlines()), key=lambda seat: seat.rank
    )


def runs_of(seats: Sequence[Seat]) -> set[str]:
    return {seat.run for seat in seats}


def attempts_of(seats: Sequence[Seat]) -> set[int]:
    return {seat.attempt for seat in seats}


def torchrun(rank: int, world: int, local: int, **more: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank % local),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(rank // local),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "MASTER_ADDR": "node-a",
        "MASTER_PORT": "29500",
        **more,
    }


def slurm_step(rank: int, tasks: int, **more: str) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(tasks),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": "0",
        **more,
    }


def slurm_batch(**more: str) -> dict[str, str]:
    """A batch script of a job for four tasks: one process, although the variables say four."""
    return {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", **more}
