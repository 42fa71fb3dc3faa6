"""``python -m benchmarks.first_chart``: from ``pip install`` to the first chart, beside other tools.

Each tool gets an empty virtual environment (pip's cache is warm after a first installation that does not
count), the same loop of 300 steps, and its own viewer. The chart counts when it is drawn: in Chromium, or for
a viewer in the terminal, when curves are on the screen. Needs chromium, and playwright in this environment.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.exporters.perfetto import BROWSER_OPTIONS
from tests.harness.programs import free_port

STEPS = 300
LIMIT_S = 120
LOOP = """
import math, time
{start}
for step in range({steps}):
    time.sleep(0.001)
    loss = 2 * math.exp(-step / 80) + 0.1
    {log}
{end}
"""
DRAWN = """() => {
    const nodes = [document];
    while (nodes.length) {
        const node = nodes.pop();
        for (const each of node.querySelectorAll('*')) {
            if (each.shadowRoot) nodes.push(each.shadowRoot);
            if (!['canvas', 'svg'].includes(each.localName)) continue;
            const box = each.getBoundingClientRect();
            const isDrawn = each.localName === 'canvas' || each.querySelector('path');
            if (box.width >= 180 && box.height >= 80 && isDrawn) return true;
        }
    }
    return false;
}"""


@dataclass(frozen=True)
class Tool:
    """How a tool is installed, used and viewed."""

    name: str
    packages: list[str]
    start: str
    log: str
    end: str
    view: list[str]
    """The command of the viewer; {port} is a free port."""
    address: str = "http://127.0.0.1:{port}/"
    """The page with the chart; "" for a viewer in the terminal."""


def tools(wheel: Path) -> list[Tool]:
    return [
        Tool(
            "stepwell",
            [str(wheel)],
            "import stepwell; run = stepwell.init('quick')",
            "run.set_step(step); run.log({'train/loss': loss})",
            "run.finish()",
            ["bin/stepwell", "ui", "--port", "{port}"],
            "http://127.0.0.1:{port}/?token={token}",
        ),
        Tool(
            "stepwell, terminal",
            [str(wheel)],
            "import stepwell; run = stepwell.init('quick')",
            "run.set_step(step); run.log({'train/loss': loss})",
            "run.finish()",
            ["bin/stepwell", "plot"],
            "",
        ),
        Tool(
            "TensorBoard",
            ["tensorboard", "tensorboardX"],
            "from tensorboardX import SummaryWriter; writer = SummaryWriter('runs/quick')",
            "writer.add_scalar('train/loss', loss, step)",
            "writer.close()",
            ["bin/tensorboard", "--logdir", "runs", "--port", "{port}", "--host", "127.0.0.1"],
        ),
        Tool(
            "trackio",
            ["trackio"],
            "import trackio; trackio.init(project='quick')",
            "trackio.log({'train/loss': loss})",
            "trackio.finish()",
            ["bin/trackio", "show", "--project", "quick"],
        ),
        Tool(
            "W&B, terminal",
            ["wandb"],
            "import wandb; run = wandb.init(project='quick', mode='offline')",
            "run.log({'train/loss': loss})",
            "run.finish()",
            ["bin/wandb", "leet", "wandb/latest-run"],
            "",
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_chart", description=__doc__)
    parser.add_argument("--tool", action="append", help="only this tool; repeatable")
    asked = parser.parse_args()
    with TemporaryDirectory() as place:
        wheel = _wheel(Path(place))
        print(f"{'tool':18} {'install':>9} {'loop':>7} {'chart':>7} {'sum':>7}   seconds")
        for tool in tools(wheel):
            if asked.tool and tool.name not in asked.tool:
                continue
            try:
                times = _measure(tool, Path(place))
            except (subprocess.SubprocessError, OSError, RuntimeError) as error:
                print(f"{tool.name:18} not measured: {str(error)[-200:]}")
                continue
            row = " ".join(f"{each:7.1f}" for each in (*times[1:], sum(times)))
            print(f"{tool.name:18} {times[0]:9.1f} {row}", flush=True)


def _wheel(folder: Path) -> Path:
    """Build the wheel that a user would install."""
    root = Path(__file__).parent.parent
    subprocess.run([sys.executable, str(root / "tools" / "build_page.py")], check=True)
    pip = [sys.executable, "-m", "pip", "-q", "wheel", "--no-deps", "-w", str(folder), str(root)]
    subprocess.run(pip, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _measure(tool: Tool, place: Path) -> tuple[float, float, float]:
    """Return the seconds to install, to record, and to see the chart."""
    folder = place / re.sub(r"\W", "_", tool.name)
    for attempt in ("warm", "venv"):
        # The first installation fills the cache of pip.
        venv = folder / attempt
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        began = time.perf_counter()
        pip = [str(venv / "bin" / "pip"), "--disable-pip-version-check", "install", "-q"]
        subprocess.run([*pip, *tool.packages], check=True, capture_output=True)
        install = time.perf_counter() - began
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("STEPWELL")},
        "TRACKIO_DIR": str(folder / "trackio"),
        "STEPWELL_UI_TOKEN": "first-chart-benchmark",
        "GRADIO_ANALYTICS_ENABLED": "False",
        "WANDB_MODE": "offline",
    }
    script = folder / "loop.py"
    script.write_text(LOOP.format(start=tool.start, log=tool.log, end=tool.end, steps=STEPS))
    began = time.perf_counter()
    subprocess.run(
        [str(venv / "bin" / "python"), str(script)],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        timeout=LIMIT_S,
    )
    loop = time.perf_counter() - began
    port = free_port()
    command = [part.format(port=port) for part in tool.view]
    command[0] = str(venv / command[0])
    began = time.perf_counter()
    if tool.address:
        address = tool.address.format(port=port, token=environment["STEPWELL_UI_TOKEN"])
        seconds = _in_browser(command, folder, environment, address)
    else:
        seconds = _in_terminal(command, folder, environment)
    return install, loop, seconds


def _in_browser(
    command: list[str], folder: Path, environment: dict[str, str], address: str
) -> float:
    """Return the seconds from starting the viewer to a drawn chart. The browser is open already."""
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=BROWSER_OPTIONS
        )
        page = browser.new_page()
        began = time.perf_counter()
        log = folder / "viewer.log"
        with log.open("w") as output:
            viewer = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            while True:
                if time.perf_counter() - began > LIMIT_S:
                    raise RuntimeError(f"no chart after {LIMIT_S} s: {log.read_text()[-200:]}")
                printed = re.search(r"http://127\.0\.0\.1:\d+\S*", log.read_text())
                try:
                    page.goto(printed.group(0) if printed else address, timeout=5000)
                    _open_run(page)
                    page.wait_for_function(DRAWN, timeout=LIMIT_S * 1000)
                    return time.perf_counter() - began
                except Error:
                    time.sleep(0.1)
        finally:
            _end(viewer)
            browser.close()


def _open_run(page: Any) -> None:
    """In stepwell the list of runs comes first: click the run, as a person does."""
    if "stepwell" in page.title():
        page.get_by_role("link", name="quick").first.click()


def _in_terminal(command: list[str], folder: Path, environment: dict[str, str]) -> float:
    """Return the seconds until curves, drawn with braille dots, are on the screen."""
    import fcntl
    import select
    import struct
    import termios

    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    began = time.perf_counter()
    viewer = subprocess.Popen(
        command,
        cwd=folder,
        env={**environment, "TERM": "xterm-256color"},
        stdin=child,
        stdout=child,
        stderr=child,
        start_new_session=True,
    )
    os.close(child)
    screen = ""
    try:
        while time.perf_counter() - began < LIMIT_S:
            if select.select([parent], [], [], 0.1)[0]:
                screen += os.read(parent, 65536).decode("utf-8", "replace")
            if len(re.findall(r"[\u2801-\u28ff]", screen)) > 10:
                return time.perf_counter() - began
        raise RuntimeError(f"no curve after {LIMIT_S} s: {screen[-200:]!r}")
    finally:
        _end(viewer)
        os.close(parent)


def _end(viewer: subprocess.Popen[Any]) -> None:
    for send in (viewer.terminate, viewer.kill):
        send()
        try:
            viewer.wait(10)
            return
        except subprocess.TimeoutExpired:
            continue


if __name__ == "__main__":
    main()
