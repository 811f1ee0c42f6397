"""Fixtures that tests of callbacks, of trackers and of NeMo's loggers share."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from toys.fake_action_state import Source


@pytest.fixture
def wires():
    return Source().connect()


@pytest.fixture
def wandb(monkeypatch):
    """A fake wandb package that records its calls."""
    fake: Any = types.ModuleType("wandb")
    fake.run, fake.inits, fake.logged, fake.hyperparameters, fake.finished = None, [], [], [], []

    def init(**options):
        fake.run = options
        fake.inits.append(options)

    fake.init = init
    fake.log = lambda values, step: fake.logged.append((step, values))
    fake.finish = lambda exit_code: fake.finished.append(exit_code)
    fake.config = types.SimpleNamespace(update=fake.hyperparameters.append)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake
