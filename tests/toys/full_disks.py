"""File systems that are nearly full, for tests: a tmpfs of the size that the test wants. Needs Linux and root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """A folder that holds so much."""
    folder.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        _run("umount", "--lazy", str(folder))


def fill(folder: Path, left_kilobytes: int) -> Path:
    """A file that leaves so much space."""
    space = os.statvfs(folder)
    file = folder / "filling"
    size = space.f_bavail * space.f_frsize - 1024 * left_kilobytes
    with file.open("wb") as out:
        os.posix_fallocate(out.fileno(), 0, size)
    return file


@cache
def why_impossible() -> str | None:
    """Why this machine has no such file systems; None if it has."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or shutil.which("mount") is None:
        return "a tmpfs of one's own needs Linux, root and mount"
    try:
        with tempfile.TemporaryDirectory() as folder, small_disk(Path(folder, "disk"), 64):
            return None
    except subprocess.SubprocessError as error:
        return f"this machine forbids mounting: {getattr(error, 'stderr', '') or error}".strip()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=10)
