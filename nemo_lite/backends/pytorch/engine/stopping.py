"""When a run is over before it begins, and what it says when a signal ends it. Signals are taken over elsewhere."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from nemo_lite.backends.pytorch.engine.run_state import RunState
from nemo_lite.core.run_options import LrPolicy, RunOptions
from nemo_lite.errors import UsageError
from nemo_lite.interruption import name_of
from nemo_lite.utils import logging


def is_over(state: RunState, options: RunOptions) -> bool:
    """Whether all steps or epochs are done."""
    if options.max_steps is not None:
        return state.steps_done >= options.max_steps
    return options.num_epochs is not None and state.epochs_done >= options.num_epochs


def check_what_is_left(state: RunState, options: RunOptions, policy: LrPolicy | None) -> None:
    """See that there is something to train, at a learning rate above 0; otherwise say so, and how to go on.

    Raises:
        UsageError: there is not, after a checkpoint with ``must_go_on``. Without that it is a warning: a job that is
            started again and again until it is done ends well.
    """
    name, total, done = "max_steps", options.max_steps, state.steps_done
    if options.num_epochs is not None:
        name, total, done = "num_epochs", options.num_epochs, state.epochs_done
    assert total is not None  # one of them is given
    wanted = ""
    if is_over(state, options):
        problem, wanted = "there is nothing left to train", f"a larger --{name} than {total}"
        remedy = f"--{name} is a total; use --{name} {done + total} or --init_from"
    elif state.steps_done and policy is not None and policy(1.0, state.steps_done, state.epochs_done) == 0.0:
        problem = "the schedule is over: the learning rate would be 0 for the rest"
        remedy = "a schedule of its own begins with --init_from"
    else:
        return
    got = f"{state.steps_done} steps ({state.epochs_done} epochs) done before"
    error = UsageError(problem, got=got, wanted=wanted, remedy=remedy)
    if state.must_go_on:
        raise error
    text = str(error)
    logging.warning("%s", text[0].upper() + text[1:])


def interruption_text(state: RunState, number: int) -> str:
    """What a signal ended, where it is saved, what will be repeated and how to go on."""
    if state.steps_done == state.steps_before:
        return f"{name_of(number)}: stopped before the first step of this run; there is nothing new to save"
    stopped = f"{name_of(number)}: stopped after {state.steps_done} steps"
    if not state.saved:
        return f"{stopped}; nothing was saved: there is no CheckpointCallback that saves (--work_dir, --checkpoint_dir)"
    again = "" if state.is_epoch_over else f", from the start of epoch {state.epoch}"
    return f"{stopped}; saved {state.saved}. To go on{again}: {_how_to_go_on(state)}"


def _how_to_go_on(state: RunState) -> str:
    folder = Path(state.saved).parent
    is_elsewhere = bool(state.loaded_from) and Path(state.loaded_from) != folder
    # Each process of several was started by a launcher, whose command is not known here.
    is_script = state.world_size == 1 and Path(sys.argv[0]).is_file()
    command = shlex.join(sys.orig_argv) if is_script else "the same command"
    return f"{command} --load_dir {folder}" if is_elsewhere else command
