"""The runtime watch: what the process and its machine are busy with, beside the training."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest

import stepwell
from stepwell import Run
from stepwell._core import errors
from stepwell.journal import pump
from stepwell.telemetry.runtime.gpu import GpuReading
from stepwell.telemetry.runtime.machine import (
    CpuEnergy,
    EstimatedEnergy,
    Memory,
    NodeReading,
    ProcessReading,
    descendants,
    read_memory,
)
from stepwell.telemetry.runtime.sampler import ASKED_SHARE, SamplerSettings
from tests.harness import environment, run_script
from tests.telemetry.fake_nvml import FakeNvml
from tests.telemetry.pump_clock import PumpClock

GB = 1 << 30


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> PumpClock:
    """The clock of pumps, which tests put forward."""
    clock = PumpClock()
    monkeypatch.setattr(pump, "time", clock)
    return clock


@pytest.fixture
def run(clock: PumpClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that is sampled every half second, on a stopped clock."""
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    monkeypatch.setenv("STEPWELL_RUNTIME", "0.5")
    return stepwell.init("w", dir=tmp_path)


def metrics_of(run: Run) -> pl.DataFrame:
    """Finish the run; return its metrics."""
    run.finish()
    return stepwell.open_run(run.path).metrics().collect()


# Settings


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, SamplerSettings(5.0, 1.0, None)),
        ({"STEPWELL_RUNTIME": "off"}, SamplerSettings(None, None, None, ASKED_SHARE)),
        (
            {"STEPWELL_RUNTIME": " OFF ", "STEPWELL_GC_PAUSES": "3"},
            SamplerSettings(None, 3.0, None, ASKED_SHARE),
        ),
        ({"STEPWELL_RUNTIME": "0.5"}, SamplerSettings(0.5, 1.0, None, ASKED_SHARE)),
        ({"STEPWELL_GC_PAUSES": "off"}, SamplerSettings(5.0, None, None)),
        ({"STEPWELL_GC_PAUSES": "0"}, SamplerSettings(5.0, 0.0, None)),
        ({"STEPWELL_TDP_WATTS": "65"}, SamplerSettings(5.0, 1.0, 65.0)),
    ],
)
def test_the_environment_says_what_is_watched(
    environ: dict[str, str], expected: SamplerSettings
) -> None:
    assert SamplerSettings.from_environment(environ) == expected


@pytest.mark.parametrize("text", ["often", "nan", "-1", "0", "inf", "5s"])
def test_a_setting_that_makes_no_sense_is_a_warning(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    errors.counts.clear()
    assert SamplerSettings.from_environment({"STEPWELL_RUNTIME": text}) == SamplerSettings()
    assert "STEPWELL_RUNTIME" in caplog.text
    assert text in caplog.text


# The process and the machine


CHILDREN = """
import subprocess, sys
import psutil
from stepwell.telemetry.runtime.machine import ProcessReading
reading = ProcessReading(psutil)
alone = reading.read()["system/processes"]
burn = "import time\\nwhile time.process_time() < 0.4: pass\\nprint('x', flush=True); input()"
child = subprocess.Popen(
    [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
child.stdout.readline()
while_it_runs = reading.read()
before = reading.cpu_seconds
assert while_it_runs["system/processes"] == alone + 1
assert while_it_runs["system/memory_rss_bytes"] > psutil.Process().memory_info().rss
child.communicate("\\n")
after = reading.read()
assert after["system/processes"] == alone
assert before >= 0.38
# Ending costs something too; what was counted is not lost.
assert before - 0.02 <= reading.cpu_seconds <= before + 0.5
"""


def test_processor_time_of_children_counts_also_when_they_have_ended() -> None:
    """A child that burns 0.4 s of processor time is in the sum while it runs and after it ended."""
    run_script(CHILDREN, check=True)


BUSY = """
import time, types
import psutil
from stepwell.telemetry.runtime import machine
# By this clock the only core there is does nothing else.
machine.time = types.SimpleNamespace(monotonic=time.process_time)
reading = machine.ProcessReading(psutil)
end = time.process_time() + 0.5
while time.process_time() < end:
    pass
print(reading.read()["system/cpu_percent"])
"""


def test_processor_use_is_100_percent_for_one_busy_core() -> None:
    done = run_script(BUSY, check=True)
    assert float(done.stdout) == pytest.approx(100, rel=0.1)


def test_bytes_on_disk_are_counted_from_the_beginning(tmp_path: Path) -> None:
    if not hasattr(psutil.Process(), "io_counters"):
        pytest.skip("this system does not count them")
    reading = ProcessReading(psutil)
    with open(tmp_path / "file", "wb") as file:
        file.write(b"x" * (8 << 20))
        file.flush()
        os.fsync(file.fileno())
    assert 0 <= reading.read()["system/disk_write_bytes"] < 64 << 20


def test_descendants_come_from_the_lists_of_the_kernel(tmp_path: Path) -> None:
    """Children of all threads, and their children."""
    for pid, task, text in [
        (1, 1, "10 11"),
        (1, 2, "12 "),
        (10, 10, "100"),
        (11, 11, ""),
        (12, 12, ""),
        (100, 100, ""),
    ]:
        folder = tmp_path / str(pid) / "task" / str(task)
        folder.mkdir(parents=True)
        (folder / "children").write_text(text)
    assert sorted(descendants(1, tmp_path) or []) == [10, 11, 12, 100]


def test_without_such_lists_there_are_none(tmp_path: Path) -> None:
    (tmp_path / "1" / "task" / "1").mkdir(parents=True)
    assert descendants(1, tmp_path) is None


def test_the_machine_is_read() -> None:
    values = NodeReading(psutil).read()
    assert 0 <= values["system/node_cpu_percent"] <= 100
    assert 0 < values["system/memory_available_bytes"] <= values["system/memory_total_bytes"]
    assert values["system/network_sent_bytes"] >= 0


# Containers


def group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_the_limit_of_a_container_is_found(tmp_path: Path) -> None:
    """Version 2: the group's own limit, its file cache not counted as used."""
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    proc.write_text("0::/pod/container\n")
    group(root, cgroup__controllers="memory")
    group(root / "pod", memory__max="max", memory__current=9 * GB)
    stat = f"anon {3 * GB}\ninactive_file {GB}"
    group(root / "pod/container", memory__max=8 * GB, memory__current=4 * GB, memory__stat=stat)
    assert read_memory(proc, root) == Memory(8 * GB, 3 * GB)


def test_a_group_above_may_be_tighter(tmp_path: Path) -> None:
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    proc.write_text("0::/job/step\n")
    group(root, cgroup__controllers="memory")
    group(root / "job", memory__max=6 * GB, memory__current=5 * GB)
    group(root / "job/step", memory__max=8 * GB, memory__current=4 * GB)
    assert read_memory(proc, root) == Memory(6 * GB, 5 * GB)


def test_inside_of_a_container_the_path_may_be_the_hosts(tmp_path: Path) -> None:
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    proc.write_text("0::/kubepods/pod-1/abc\n")
    group(root, cgroup__controllers="memory", memory__max=2 * GB, memory__current=GB)
    assert read_memory(proc, root) == Memory(2 * GB, GB)


def test_the_first_version_of_control_groups(tmp_path: Path) -> None:
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    proc.write_text("5:devices:/\n4:memory:/docker/abc\n0::/\n")
    group(root / "memory", memory__limit_in_bytes=9223372036854771712)
    group(
        root / "memory/docker/abc",
        memory__limit_in_bytes=4 * GB,
        memory__usage_in_bytes=3 * GB,
        memory__stat=f"total_inactive_file {GB}",
    )
    assert read_memory(proc, root) == Memory(4 * GB, 2 * GB)


@pytest.mark.parametrize("text", ["", "garbage\n", "0::/\n", "0::/../..\n", "4:memory:/x\n"])
def test_no_limit_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "proc").write_text(text)
    assert read_memory(tmp_path / "proc", tmp_path / "cgroup") is None
    assert read_memory(tmp_path / "nowhere", tmp_path / "cgroup") is None


# Energy


def package(root: Path, name: str, energy: int, most: int = 1000) -> Path:
    folder = root / name
    folder.mkdir()
    (folder / "energy_uj").write_text(str(energy))
    (folder / "max_energy_range_uj").write_text(str(most))
    return folder / "energy_uj"


def test_energy_is_summed_over_packages_and_across_their_overflow(tmp_path: Path) -> None:
    first = package(tmp_path, "intel-rapl:0", 900_000_000, 1_000_000_000)
    second = package(tmp_path, "intel-rapl:1", 0, 1_000_000_000)
    package(tmp_path, "intel-rapl:0:0", 5)
    energy = CpuEnergy(tmp_path)
    first.write_text("100000000")  # 100 J up to the range, then 100 J more
    second.write_text("50000000")
    assert energy.read() == {"system/energy_cpu_measured_joules": 250.0}
    second.write_text("60000000")
    assert energy.read() == {"system/energy_cpu_measured_joules": 260.0}


def test_without_counters_no_energy_is_claimed(tmp_path: Path) -> None:
    assert not CpuEnergy(tmp_path)
    assert not CpuEnergy(tmp_path / "nowhere")


def test_an_estimate_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 s on one of 4 cores of 80 W: 10 × 20 J."""
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    energy = EstimatedEnergy(lambda: 10.0, 80.0)
    assert energy.read() == {"system/energy_cpu_estimated_joules": 200.0}


# GPUs


def test_gpus_are_read_and_what_they_lack_is_left_out() -> None:
    nvml = FakeNvml()
    reading = GpuReading(nvml, True, {})
    reading.read()
    nvml.energy += 1_250_000
    assert reading.read() == {
        "system/gpu_0/utilization_percent": 70.0,
        "system/gpu_0/memory_used_bytes": 3.0 * GB,
        "system/gpu_0/memory_total_bytes": 16.0 * GB,
        "system/gpu_0/power_watts": 250.5,
        "system/gpu_0/temperature_celsius": 60.0,
        "system/gpu_0/energy_measured_joules": 1250.0,
        "system/gpu_1/utilization_percent": 71.0,
        "system/gpu_1/memory_used_bytes": 3.0 * GB,
        "system/gpu_1/memory_total_bytes": 16.0 * GB,
        "system/gpu_1/temperature_celsius": 61.0,
    }
    assert nvml.asked == ["power 0", "power 1", "power 0"]


@pytest.mark.parametrize(
    ("visible", "records_node", "indices"),
    [
        (None, True, [0, 1]),
        (None, False, []),
        ("1", True, [1]),
        ("1", False, [1]),
        ("0,1", False, []),
        ("GPU-b12", False, [1]),
        ("", True, []),
        ("-1", True, []),
        ("0,7", True, [0]),
    ],
)
def test_each_gpu_is_recorded_by_one_rank(
    visible: str | None, records_node: bool, indices: list[int]
) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    values = GpuReading(FakeNvml(), records_node, environ).read()
    assert sorted({int(name.split("/")[1][4:]) for name in values}) == indices


# Whole runs


def test_a_run_is_watched_by_itself(run: Run, clock: PumpClock) -> None:
    """Values come from the pump's thread, at the step under way, after the first second."""
    run.set_step(7, epoch=2)
    clock.pass_seconds(run, 3)
    metrics = metrics_of(run)
    names = set(metrics["name"])
    assert {
        "system/cpu_percent",
        "system/memory_rss_bytes",
        "system/memory_available_bytes",
        "system/disk_read_bytes",
        "system/network_sent_bytes",
        "system/node_cpu_percent",
    } <= names
    assert not [name for name in names if "estimated" in name]
    assert set(metrics["thread"]) == {"stepwell-pump"}
    assert set(metrics["step"]) == {7}
    assert set(metrics["epoch"]) == {2}
    # Begun after 1 s, and then every half second.
    assert metrics.filter(name="system/cpu_percent").height == 4


def test_the_second_rank_of_a_node_leaves_the_node_to_the_first(
    tmp_path: Path, clock: PumpClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "STEPWELL_RUN_ID": "x"}
    for name, value in {**environ, "STEPWELL_RUNTIME": "0.5"}.items():
        monkeypatch.setenv(name, value)
    run = stepwell.init("w", dir=tmp_path)
    clock.pass_seconds(run, 2)
    names = set(metrics_of(run)["name"])
    assert "system/cpu_percent" in names
    assert "system/node_cpu_percent" not in names


def test_gpus_of_a_run_are_watched(
    run: Run, clock: PumpClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    clock.pass_seconds(run, 2)
    power = metrics_of(run).filter(name="system/gpu_0/power_watts")["value"].to_list()
    assert power
    assert set(power) == {250.5}


PSUTIL = """
import gc, sys
import stepwell
from tests.telemetry.pump_clock import stop_clock
assert "psutil" not in sys.modules
clock = stop_clock()
run = stepwell.init("w", dir=".")
clock.pass_seconds(run, float(sys.argv[1]))
gc.collect()
run.finish()
print("psutil" in sys.modules)
"""


@pytest.mark.parametrize(
    ("setting", "seconds", "is_imported"), [("off", 3, False), ("5", 0, False), ("0.5", 3, True)]
)
def test_psutil_is_imported_when_it_is_needed(
    tmp_path: Path, setting: str, seconds: int, is_imported: bool
) -> None:
    """Not where the watch is off, nor for a run that is over at once."""
    env = environment(STEPWELL_RUNTIME=setting, STEPWELL_STRICT="1")
    done = run_script(PSUTIL, str(seconds), cwd=tmp_path, env=env, check=True)
    assert done.stdout == f"{is_imported}\n"
    (run,) = stepwell.list_runs(tmp_path)
    assert run.metrics().collect().is_empty() is not is_imported
    if setting == "off":
        assert run.spans().collect().is_empty()


def test_the_training_thread_does_none_of_it(
    run: Run, clock: PumpClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is found, read and logged by the pump's thread."""
    readers: list[str] = []

    def noting(call: Callable[..., Any]) -> Callable[..., Any]:
        def note(*arguments: Any) -> Any:
            readers.append(threading.current_thread().name)
            return call(*arguments)

        return note

    for owner in (ProcessReading, NodeReading):
        for name in ("__init__", "read"):
            monkeypatch.setattr(owner, name, noting(getattr(owner, name)))
    clock.pass_seconds(run, 2)
    assert len(readers) == 2 * (1 + 2)
    assert set(readers) == {"stepwell-pump"}
    assert set(metrics_of(run)["thread"]) == {"stepwell-pump"}


def test_a_reading_that_fails_is_left_out_and_nothing_else(
    run: Run, clock: PumpClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("no network")

    monkeypatch.setenv("STEPWELL_STRICT", "0")
    monkeypatch.setattr(psutil, "net_io_counters", fail)
    run.log({"loss": 1.0}, step=0)
    clock.pass_seconds(run, 2)
    run.log({"loss": 2.0}, step=1)
    metrics = metrics_of(run)
    assert metrics.filter(name="loss")["value"].to_list() == [1.0, 2.0]
    assert "system/cpu_percent" in set(metrics["name"])
    assert "system/node_cpu_percent" not in set(metrics["name"])
    events = stepwell.open_run(run.path).events().filter(name="telemetry_data_error").collect()
    assert "no network" in "".join(events["attributes"])
