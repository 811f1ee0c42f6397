"""NemoArgParser: the command-line options that NeMo's scripts share. What they mean is decided where they are used."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from nemo_lite.errors import UsageError, did_you_mean
from nemo_lite.utils.launch import LAUNCHERS, ProcessInfo, who_am_i
from nemo_lite.utils.lr_policies import get_all_lr_classes

N = TypeVar("N", int, float)

OPTIMIZERS: list[str] = []  # a backend adds the names of its optimizers when it is imported

_LARGEST_FLOAT32 = 3.4e38
_WEEK_SECONDS = 604_800
# Options of LaunchedParser, and arguments of the factory.
_OF_THE_LAUNCH = (
    *("local_rank", "launcher", "init_method", "rank", "world_size"),
    *("dist_backend", "dist_timeout", "dist_start_timeout"),
)


class OneLineParser(argparse.ArgumentParser):
    """An ``argparse.ArgumentParser`` that ends the script with one line on stderr, and exit code 2, when it must.

    ``--help`` shows the defaults.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": _WithDefaults, **kwargs})

    def parse_args(  # type: ignore[override]  # one signature for what argparse declares as three overloads
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """As in argparse; an option that does not exist is answered with the nearest one."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            near = did_you_mean(unknown[0].partition("=")[0], known)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
        return parsed

    def error(self, message: str) -> NoReturn:
        """End the script with one line and exit code 2; the full list of options is left to ``--help``."""
        self.exit(2, f"{self.prog}: error: {message}\n")


class LaunchedParser(OneLineParser):
    """The options by which a process that a launcher started knows its place among the others; checked when parsed.

    ``local_rank`` in the result is the launcher's, whichever way it says it, and ``None`` for a single process.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        group = self.add_argument_group("several processes")
        # torch.distributed.launch passes --local-rank, its older versions --local_rank; torchrun passes nothing.
        group.add_argument(
            "--local_rank",
            "--local-rank",
            type=not_negative_int,
            help="index of this process on its machine, given by the launcher (default: the launcher's variables)",
        )
        group.add_argument(
            "--launcher", choices=LAUNCHERS, default="auto", help="what started this process; none: nothing did"
        )
        group.add_argument(
            "--init_method", help="tcp://host:port where processes meet (default: what the launcher says)"
        )
        group.add_argument("--rank", type=not_negative_int, help="index of this process among all, with --init_method")
        group.add_argument("--world_size", type=positive_int, help="number of processes, with --init_method")
        group.add_argument(
            "--dist_backend",
            choices=("nccl", "gloo"),
            help="what exchanges gradients (default: nccl on GPUs, else gloo)",
        )
        group.add_argument(
            "--dist_timeout", type=seconds, default=600.0, help="seconds that processes wait for the slowest of them"
        )
        group.add_argument(
            "--dist_start_timeout",
            type=seconds,
            default=60.0,
            help="seconds that processes wait for each other at the start",
        )

    def parse_args(  # type: ignore[override]  # one signature for what argparse declares as three overloads
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """As in argparse; what the options and the launcher say must fit together."""
        parsed = super().parse_args(args, namespace)
        place = self.place_of(parsed)
        parsed.local_rank = None if place is None else place.local_rank
        return parsed

    def place_of(self, parsed: Any) -> ProcessInfo | None:
        """This process's place, by its options and the environment; ``None`` for a single process."""
        try:
            return who_am_i(
                parsed.local_rank,
                launcher=parsed.launcher,
                init_method=parsed.init_method,
                rank=parsed.rank,
                world_size=parsed.world_size,
            )
        except UsageError as error:
            self.error(str(error))


class NemoArgParser(LaunchedParser):
    """NeMo's common options; also of use in ``parents=[NemoArgParser()]``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._add_run_options()
        self._add_data_options()
        self._add_optimization_options()
        self._add_output_options()

    def _add_run_options(self) -> None:
        self.add_argument(
            "--amp_opt_level",
            choices=("O0", "O1", "O2", "O3"),
            default="O0",
            help="precision, from float32 (O0) and mixed (O1, O2) to half (O3)",
        )
        self.add_argument(
            "--cudnn_benchmark", action="store_true", help="let cuDNN time its kernels; for inputs of constant shapes"
        )

    def _add_data_options(self) -> None:
        self.add_argument("--model_config", help="YAML file of the model")
        self.add_argument("--train_dataset", help="training data")
        self.add_argument("--eval_datasets", nargs="*", help="evaluation data, any number of sets")
        self.add_argument("--batch_size", type=positive_int, help="items per training batch and process")
        self.add_argument("--eval_batch_size", type=positive_int, help="items per evaluation batch and process")
        self.add_argument("--eval_freq", type=positive_int, default=1000, help="optimizer steps between evaluations")

    def _add_optimization_options(self) -> None:
        self.add_argument("--optimizer", choices=tuple(OPTIMIZERS), help="optimizer")
        self.add_argument("--weight_decay", type=not_negative_float, default=0.0, help="weight decay")
        self.add_argument("--num_epochs", type=positive_int, help="epochs to train")
        self.add_argument("--max_steps", type=positive_int, help="optimizer steps to train")
        self.add_argument("--lr", type=not_negative_float, default=1e-3, help="initial learning rate")
        self.add_argument(
            "--lr_policy", choices=tuple(get_all_lr_classes()), default="WarmupAnnealing", help="learning-rate policy"
        )
        self.add_argument(
            "--iter_per_step", type=positive_int, default=1, help="batches whose gradients make one optimizer step"
        )

    def _add_output_options(self) -> None:
        self.add_argument("--work_dir", help="folder for logs, curves and checkpoints")
        self.add_argument("--checkpoint_dir", help="folder for checkpoints (default: WORK_DIR/checkpoints)")
        self.add_argument("--create_tb_writer", action="store_true", help="write TensorBoard events")
        self.add_argument("--tensorboard_dir", help="folder for the events (default: WORK_DIR/tensorboard)")
        self.add_argument(
            "--checkpoint_save_freq", type=positive_int, default=1000, help="optimizer steps between checkpoints"
        )


def launch_arguments(parsed: argparse.Namespace) -> dict[str, Any]:
    """What a :class:`LaunchedParser` read, as keyword arguments of ``NeuralModuleFactory``."""
    return {option: getattr(parsed, option) for option in _OF_THE_LAUNCH}


class _WithDefaults(argparse.ArgumentDefaultsHelpFormatter):
    """Defaults are shown where there is something to show and the help does not do it itself."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        speaks = action.default in (None, False, "") or "(default" in (action.help or "")
        return action.help if speaks else super()._get_help_string(action)


def positive_int(text: str) -> int:
    """An argparse type: a whole number from 1."""
    value = _parsed(int, text)
    if value is None or value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return value


def not_negative_int(text: str) -> int:
    """An argparse type: a whole number from 0 that fits into 63 bits, as seeds have to."""
    value = _parsed(int, text)
    if value is None or not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return value


def not_negative_float(text: str) -> float:
    """An argparse type: a number from 0 that fits into 32 bits, so that one may compute with it."""
    value = _parsed(float, text)
    if value is None or not 0 <= value < _LARGEST_FLOAT32:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0")
    return value


def seconds(text: str) -> float:
    """An argparse type: a time above 0 and up to a week."""
    value = _parsed(float, text)
    if value is None or not 0 < value <= _WEEK_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0, up to {_WEEK_SECONDS} (a week)")
    return value


def _parsed(number: Callable[[str], N], text: str) -> N | None:
    try:
        return number(text)
    except ValueError:
        return None
