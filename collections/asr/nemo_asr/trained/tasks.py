"""Which script trains a configuration or evaluates a stored model: by what it is for, texts or classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nemo_asr.recipe.class_list import task_of
from nemo_asr.recipe.registry import TASKS
from nemo_asr.trained.card import CARD, read_card
from nemo_asr.trained.folder import find_model
from nemo_lite.backends.pytorch.checkpoint import CheckpointFolder
from nemo_lite.errors import NemoLiteError
from nemo_lite.utils.argparse import OneLineParser

_TRAINING = {"transcription": "jasper.py", "classification": "classify.py"}
_EVALUATION = {"transcription": "jasper_eval.py", "classification": "classify_eval.py"}


def training_script(arguments: Sequence[str]) -> str:
    """The script that trains the model of ``--model_config``."""
    return _script_for(arguments, "--model_config", task_of, _TRAINING)


def evaluation_script(arguments: Sequence[str]) -> str:
    """The script that evaluates the model of ``--load_dir``."""
    return _script_for(arguments, "--load_dir", task_of_model, _EVALUATION)


def _script_for(
    arguments: Sequence[str], option: str, task_in: Callable[[str], str], scripts: Mapping[str, str]
) -> str:
    """By the task of what stands behind the option; what is wrong with it, the script for texts says."""
    parser = OneLineParser(add_help=False)  # takes other spellings of the option, as the script will
    parser.add_argument(option, dest="given", nargs="?")
    given = parser.parse_known_args(list(arguments))[0].given
    try:
        return scripts[task_in(given) if given else TASKS[0]]
    except NemoLiteError:
        return scripts[TASKS[0]]


def task_of_model(path: str | Path) -> str:
    """``transcription`` or ``classification``: what a stored model is for. A model that does not say it transcribes.

    Raises:
        CheckpointError: there is no model.
    """
    folder = find_model(path)
    if (folder / CARD).is_file():
        return read_card(folder / CARD).task
    latest = CheckpointFolder(folder).latest()
    about = latest.about.get("model") if latest else None
    return str(about.get("task", TASKS[0])) if isinstance(about, dict) else TASKS[0]
