"""What the tests of two machines share: ranks that start at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from toys.launched import warm_commands


@pytest.fixture(scope="session")
def _commands() -> Iterator[Path]:
    with warm_commands() as folder:
        yield folder


@pytest.fixture(autouse=True)
def _ranks_start_at_once(_commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers start them with this Python: they fork off a process that has imported torch."""
    monkeypatch.setenv("PYTHON_EXEC", str(_commands / "python"))
