"""When a run is over, also before it begins, and what it says when a signal ends it. Signals: elsewhere."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path

from nemo_lite.backends.pytorch.data import BatchLoader, length_of
from nemo_lite.backends.pytorch.engine.run_state import RunState
from nemo_lite.core.run_options import LrPolicy, RunOptions
from nemo_lite.errors import UsageError, counted
from nemo_lite.interruption import name_of
from nemo_lite.utils import logging
from nemo_lite.utils.launch import as_typed


def total_steps(loader: BatchLoader, options: RunOptions) -> int | None:
    """Steps of a run, where that is known before it."""
    if options.num_epochs is None or (count := length_of(loader)) is None:
        return options.max_steps
    steps = math.ceil(count / options.batches_per_step) * options.num_epochs
    return steps if options.max_steps is None else min(steps, options.max_steps)


def check_what_is_left(state: RunState, options: RunOptions, policy: LrPolicy | None) -> None:
    """Say where a restored run goes on; or that there is nothing to train, or not at a rate above 0, and what to do.

    Raises:
        UsageError: there is not, after a checkpoint with ``must_go_on``. Without that it is a warning: a job that is
            started again and again until it is done ends well.
    """
    steps, epochs = state.steps_done, state.epochs_done
    error = options.nothing_left(steps, epochs)
    if error is None and state.restored:
        logging.info("Restored %s: going on at step %d, %s", state.restored, steps, state.position.words(epochs))
        for line in [*state.changes, *state.position.changes]:
            logging.info("%s", line)
    if error is None and steps and policy is not None and policy(1.0, steps, epochs) == 0.0:
        problem = "the schedule is over: the learning rate would be 0 for the rest"
        got = f"{counted(steps, 'step')} ({counted(epochs, 'epoch')}) done before"
        error = UsageError(problem, got=got, remedy="a schedule of its own begins with --init_from")
    if error is None:
        return
    if state.must_go_on:
        raise error
    text = str(error)
    logging.warning("%s", text[0].upper() + text[1:])


def interruption_text(state: RunState, number: int) -> str:
    """What a signal ended, where it is saved, where it will go on and how."""
    if state.steps_done == state.steps_before:
        return f"{name_of(number)}: stopped before the first step of this run; there is nothing new to save"
    stopped = f"{name_of(number)}: stopped after {counted(state.steps_done, 'step')}"
    if not state.saved:
        return f"{stopped}; nothing was saved: there is no CheckpointCallback that saves (--work_dir, --checkpoint_dir)"
    place = "" if state.is_epoch_over else f" {state.position.words(state.epochs_done)}"
    return f"{stopped}; saved {state.saved}. To go on{place}: {_how_to_go_on(state)}"


def _how_to_go_on(state: RunState) -> str:
    folder = Path(state.saved).parent
    is_elsewhere = bool(state.loaded_from) and Path(state.loaded_from) != folder
    command = "the same command"
    if state.world_size == 1:  # each process of several was started by a launcher, whose command is not known here
        command = _own_command() or command
    return f"{command} --load_dir {folder}" if is_elsewhere else command


def _own_command() -> str:
    """What was typed to start this process; "" in a notebook."""
    if Path(sys.argv[0]).is_file():
        return shlex.join(sys.orig_argv)
    return shlex.join(as_typed(sys.argv)) if sys.argv[0].startswith("nemo-lite ") else ""
