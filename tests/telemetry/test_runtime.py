"""The runtime watch: what the process and its machine are busy with, beside the training."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import psutil
import pytest

import stepwell
from stepwell.journal import errors
from stepwell.reading import RecordedRun
from stepwell.telemetry.runtime.cgroup import Memory, read_memory
from stepwell.telemetry.runtime.energy import CpuEnergy, EstimatedEnergy
from stepwell.telemetry.runtime.gpu import GpuReading
from stepwell.telemetry.runtime.machine import NodeReading, ProcessReading, descendants
from stepwell.telemetry.runtime.settings import ASKED_SHARE, Settings
from tests.telemetry.fake_nvml import FakeNvml

GB = 1 << 30


def watched(tmp_path: Path, script: str, **environment: str) -> RecordedRun:
    """Record a script, ``run`` being there already, in a process of its own; the run it left."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("STEPWELL_")}
    code = f"import gc, os, sys, time, stepwell\nrun = stepwell.init('w', dir={str(tmp_path)!r})\n"
    subprocess.run(
        [sys.executable, "-c", code + script],
        env={**env, "STEPWELL_STRICT": "1", **environment},
        check=True,
        timeout=120,
    )
    (folder,) = [path for path in tmp_path.iterdir() if (path / "run.json").exists()]
    return stepwell.open_run(folder)


# Settings


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Settings(5.0, 1.0, None)),
        ({"STEPWELL_RUNTIME": "off"}, Settings(None, None, None, ASKED_SHARE)),
        (
            {"STEPWELL_RUNTIME": " OFF ", "STEPWELL_GC_PAUSES": "3"},
            Settings(None, 3.0, None, ASKED_SHARE),
        ),
        ({"STEPWELL_RUNTIME": "0.5"}, Settings(0.5, 1.0, None, ASKED_SHARE)),
        ({"STEPWELL_GC_PAUSES": "off"}, Settings(5.0, None, None)),
        ({"STEPWELL_GC_PAUSES": "0"}, Settings(5.0, 0.0, None)),
        ({"STEPWELL_TDP_WATTS": "65"}, Settings(5.0, 1.0, 65.0)),
    ],
)
def test_the_environment_says_what_is_watched(environ: dict[str, str], expected: Settings) -> None:
    assert Settings.from_environment(environ) == expected


@pytest.mark.parametrize("text", ["often", "nan", "-1", "0", "inf", "5s"])
def test_a_setting_that_makes_no_sense_is_a_warning(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    errors.counts.clear()
    assert Settings.from_environment({"STEPWELL_RUNTIME": text}) == Settings()
    assert "STEPWELL_RUNTIME" in caplog.text
    assert text in caplog.text


# The process and the machine


def test_processor_time_of_children_counts_also_when_they_have_ended() -> None:
    """A child that burns 0.4 s of processor time is in the sum while it runs and after it ended."""
    reading = ProcessReading(psutil)
    alone = reading.read()["system/processes"]
    burn = "import time\nwhile time.process_time() < 0.4: pass\nprint('x', flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    child.stdout.readline()
    while_it_runs = reading.read()
    before = reading.cpu_seconds
    assert while_it_runs["system/processes"] == alone + 1
    assert while_it_runs["system/memory_rss_bytes"] > psutil.Process().memory_info().rss
    child.communicate("\n")
    after = reading.read()
    assert after["system/processes"] == alone
    assert before >= 0.38
    # Ending costs something too; what was counted is not lost.
    assert before - 0.02 <= reading.cpu_seconds <= before + 0.5


def test_processor_use_is_100_percent_for_one_busy_core() -> None:
    reading = ProcessReading(psutil)
    began, used = time.monotonic(), time.process_time()
    while time.process_time() - used < 0.5:
        pass
    # The machine may be busy with something else as well.
    expected = 0.5 / (time.monotonic() - began) * 100
    assert reading.read()["system/cpu_percent"] == pytest.approx(expected, rel=0.15)


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
    ("visible", "tells_for_node", "told"),
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
def test_each_gpu_is_told_of_by_one_rank(
    visible: str | None, tells_for_node: bool, told: list[int]
) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    values = GpuReading(FakeNvml(), tells_for_node, environ).read()
    assert sorted({int(name.split("/")[1][4:]) for name in values}) == told


NVML_SCRIPT = """
from tests.telemetry.fake_nvml import FakeNvml
sys.modules["pynvml"] = FakeNvml()
time.sleep(2.5)
run.finish()
"""


# Whole runs


def test_a_run_is_watched_by_itself(tmp_path: Path) -> None:
    """Values come from the pump's thread, at the step under way, from about the second second on."""
    script = "run.set_step(7, epoch=2)\ntime.sleep(3.2)\nrun.finish()"
    metrics = watched(tmp_path, script, STEPWELL_RUNTIME="0.5").metrics().collect()
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
    assert 2 <= metrics.filter(name="system/cpu_percent").height <= 6


def test_the_second_rank_of_a_node_leaves_the_node_to_the_first(tmp_path: Path) -> None:
    environ = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "STEPWELL_RUN_ID": "x"}
    script = "time.sleep(2.5)\nrun.finish()"
    run = watched(tmp_path, script, STEPWELL_RUNTIME="0.5", **environ)
    names = set(run.metrics().collect()["name"])
    assert "system/cpu_percent" in names
    assert "system/node_cpu_percent" not in names


def test_gpus_of_a_run_are_watched(tmp_path: Path) -> None:
    root = str(Path(__file__).parent.parent.parent)
    environ = {"STEPWELL_RUNTIME": "0.5", "PYTHONPATH": root}
    metrics = watched(tmp_path, NVML_SCRIPT, **environ).metrics().collect()
    power = metrics.filter(name="system/gpu_0/power_watts")["value"].to_list()
    assert power
    assert set(power) == {250.5}


def test_off_is_off(tmp_path: Path) -> None:
    script = "time.sleep(2.5); gc.collect(); run.finish(); assert 'psutil' not in sys.modules"
    run = watched(tmp_path, script, STEPWELL_RUNTIME="off")
    assert run.metrics().collect().is_empty()
    assert run.spans().collect().is_empty()


def test_a_run_that_is_over_at_once_imports_nothing_for_it(tmp_path: Path) -> None:
    watched(tmp_path, "run.finish(); assert 'psutil' not in sys.modules")


def test_the_training_thread_does_none_of_it(tmp_path: Path) -> None:
    """A thread that only sleeps for three seconds, watched twenty times a second, uses no CPU."""
    script = "b = time.thread_time(); time.sleep(3); assert time.thread_time() - b < 0.01"
    run = watched(tmp_path, script + "\nrun.finish()", STEPWELL_RUNTIME="0.1")
    assert not run.metrics().collect().is_empty()


FAILING = """
import psutil
psutil.net_io_counters = lambda **k: (_ for _ in ()).throw(RuntimeError("no network"))
run.log({"loss": 1.0}, step=0)
time.sleep(2.5)
run.log({"loss": 2.0}, step=1)
run.finish()
"""


def test_a_reading_that_fails_is_left_out_and_nothing_else(
    tmp_path: Path,
) -> None:
    run = watched(tmp_path, FAILING, STEPWELL_RUNTIME="0.5", STEPWELL_STRICT="0")
    metrics = run.metrics().collect()
    assert metrics.filter(name="loss")["value"].to_list() == [1.0, 2.0]
    assert "system/cpu_percent" in set(metrics["name"])
    assert "system/node_cpu_percent" not in set(metrics["name"])
    events = run.events().collect().filter(pl.col("name") == "telemetry_data_error")
    assert "no network" in "".join(events["attributes"])
