"""Fixtures of callbacks."""

from toys.callback_fixtures import wandb as wandb
from toys.callback_fixtures import wires as wires
