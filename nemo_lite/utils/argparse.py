"""Options of command lines: parsers, pages of `--help`, launch and precision options."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from nemo_lite.config import WAITING_SECONDS, Between
from nemo_lite.errors import UsageError, did_you_mean, marked, nearest
from nemo_lite.files import names_in
from nemo_lite.utils.helpers import parse_checkpoint_name, tag_of_folder
from nemo_lite.utils.launch import LAUNCHERS, ProcessInfo, forget_launcher, who_am_i
from nemo_lite.utils.lr_policies import get_all_lr_classes
from nemo_lite.utils.nemo_logging import logging
from nemo_lite.utils.optimizers import OPTIMIZERS

# The options of scripts about precision, and what they mean together. Which device has what is decided elsewhere.


AMP_LEVELS = ("O0", "O1", "O2", "O3")
AMP_DTYPES = ("auto", "bfloat16", "float16")
AMP_BACKENDS = ("auto", "native", "apex")


def add_precision_options(parser: argparse.ArgumentParser) -> None:
    """``--amp_opt_level`` and ``--amp_dtype``, of every script that runs a model."""
    level_help = "float32 (O0), mixed (O1; default on a GPU), half with float32 master weights (O2), half (O3)"
    parser.add_argument("--amp_opt_level", choices=AMP_LEVELS, help=level_help)
    dtype_help = "half type of O1 to O3; asks for O1 (default: auto, bfloat16 where the device has it in hardware)"
    parser.add_argument("--amp_dtype", choices=AMP_DTYPES, help=dtype_help)


def add_training_precision_options(parser: argparse.ArgumentParser, count: Any) -> None:
    """Those of scripts that train.

    Args:
        parser: of the script.
        count: the type of a whole number from 1.
    """
    parser.add_argument("--disable_mixed_precision", action="store_true", help="older spelling of --amp_opt_level O0")
    backend_help = "what trains in O1 to O3: torch (native), or apex.amp where an apex with amp is installed"
    parser.add_argument("--amp_backend", choices=AMP_BACKENDS, default="auto", help=backend_help)
    check_help = (
        "do not train: run N batches in float32 and in the level of --amp_opt_level, and show each node's error"
    )
    parser.add_argument("--precision_check", type=count, metavar="N", help=check_help)


def fold_precision(parser: argparse.ArgumentParser, parsed: Any) -> None:
    """Set the level that the options ask for together; end the script where they contradict each other."""
    if getattr(parsed, "disable_mixed_precision", False):
        if parsed.amp_opt_level not in (None, "O0"):
            parser.error(f"--disable_mixed_precision contradicts --amp_opt_level {parsed.amp_opt_level}; leave one out")
        parsed.amp_opt_level = "O0"
    if parsed.amp_dtype and parsed.amp_opt_level == "O0":
        parser.error("--amp_dtype has no effect in float32 (O0); leave it out")
    if parsed.amp_dtype and parsed.amp_dtype != "auto":
        parsed.amp_opt_level = parsed.amp_opt_level or "O1"
    if getattr(parsed, "amp_backend", "auto") == "apex" and parsed.amp_opt_level == "O0":
        parser.error("--amp_backend has no effect in float32 (O0); leave it out")
    if getattr(parsed, "precision_check", None) and parsed.amp_opt_level in (None, "O0"):
        parser.error("--precision_check compares a level with float32; give --amp_opt_level O1, O2 or O3")


# Help in pages that fit a screen: ``--help`` shows the most used options, ``--help GROUP`` the others of a group.


MOST_COLUMNS = 100  # of a page; longer lines are hard to read
_FEWEST_COLUMNS = 40
_LONGEST_CHOICES = 30  # characters; longer ones are listed in the help text
_ALL = "all"


class Group(NamedTuple):
    """A page of the help: what it is about, and the destinations of the options on it, with spaces between them."""

    summary: str
    options: str


@dataclass(frozen=True)
class HelpPages:
    """What each page shows. Positional arguments are on the first one, options of no group on ``other``.

    Attributes:
        most_used: destinations of the options that ``--help`` shows, with spaces between them.
        groups: the pages by name.
    """

    most_used: str
    groups: Mapping[str, Group]

    def first(self, parser: argparse.ArgumentParser) -> str:
        """What ``--help`` prints."""
        by_name = _by_name(parser)
        positional = [action for action in parser._actions if not action.option_strings]
        text = _page(parser, "most used", [*positional, *_of(self.most_used, by_name)])
        names = {name: group.summary for name, group in self._with_other(by_name).items()}
        lines = two_columns({**names, _ALL: "everything"})
        called = " ".join([parser.prog, *map(_called, positional), "[options]"])
        usage = parser.usage % {"prog": parser.prog} if parser.usage else called
        head = [*textwrap.wrap(f"usage: {usage}", columns(), subsequent_indent="  "), ""]
        head += [*textwrap.wrap(parser.description or "", columns()), ""]
        return "\n".join([*head, text, "--help GROUP shows more:", *lines, ""])

    def page(self, parser: argparse.ArgumentParser, name: str) -> str:
        """What ``--help GROUP`` prints; "" where there is no such group."""
        by_name = _by_name(parser)
        groups = self._with_other(by_name)
        shown = groups if name == _ALL else {name: groups[name]} if name in groups else {}
        return "\n".join(
            _page(parser, f"{title} ({group.summary})", _of(group.options, by_name)) for title, group in shown.items()
        )

    def near(self, parser: argparse.ArgumentParser, name: str) -> str:
        """The names of the groups, with the one that is nearest to a wrong one."""
        names = [*self._with_other(_by_name(parser)), _ALL]
        return f"known: {', '.join(names)}{did_you_mean(name, names)}"

    def _with_other(self, by_name: Mapping[str, argparse.Action]) -> dict[str, Group]:
        """The groups of which the script has an option, and one for the options of none."""
        grouped = {name for group in self.groups.values() for name in group.options.split()}
        other = [name for name in by_name if name not in grouped]
        groups = {name: group for name, group in self.groups.items() if _of(group.options, by_name)}
        return {**groups, **({"other": Group("options of no group", " ".join(other))} if other else {})}


class ShowHelp(argparse.Action):
    """``--help``, and ``--help GROUP`` for a parser whose ``help_pages`` are there."""

    def __init__(
        self,
        option_strings: Sequence[str],
        dest: str,
        help: str,  # noqa: A002  # argparse's name
        has_pages: bool = True,
    ) -> None:
        nargs: Any = "?" if has_pages else 0
        metavar = "GROUP" if has_pages else None
        super().__init__(
            option_strings, argparse.SUPPRESS, nargs=nargs, help=help, default=argparse.SUPPRESS, metavar=metavar
        )

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Print the page and end the script."""
        pages: HelpPages | None = getattr(parser, "help_pages", None)
        if pages is None:
            parser.print_help()
        else:
            text = pages.page(parser, str(values)) if values else pages.first(parser)
            if not text:
                parser.error(
                    f'argument --help: "{values}" is not a group of options; {pages.near(parser, str(values))}'
                )
            print(text, end="")
        parser.exit()


def columns() -> int:
    """How wide a page may be: as the terminal, within limits; without a terminal as wide as is good to read."""
    wide = shutil.get_terminal_size((MOST_COLUMNS + 2, 24)).columns - 2
    return max(_FEWEST_COLUMNS, min(MOST_COLUMNS, wide))


def two_columns(summaries: Mapping[str, str]) -> list[str]:
    """Lines with names and what is said about them, as wide as a page."""
    indent = max(map(len, summaries)) + 4
    wrapped = textwrap.TextWrapper(columns(), subsequent_indent=" " * indent, break_on_hyphens=False)
    return [
        line
        for name, summary in summaries.items()
        for line in wrapped.wrap(f"{'  ' + name:{indent}}{summary}") or [name]
    ]


class PageFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Short placeholders, and defaults where there is something to show and the help does not do it itself."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **{"max_help_position": 32, "width": columns(), **options})

    def _get_help_string(self, action: argparse.Action) -> str | None:
        needs_no_default = (
            action.default in (None, False, "") or action.default == [] or "(default" in (action.help or "")
        )
        text = action.help if needs_no_default else super()._get_help_string(action)
        if text is not None and _has_long_choices(action):
            text += f" (one of {', '.join(map(str, action.choices or ()))})"
        return text

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return str(getattr(action.type, "metavar", None) or _placeholder(action))

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Any:
        if action.metavar is None and _has_long_choices(action):
            return lambda size: ("NAME",) * size
        return super()._metavar_formatter(action, default_metavar)


def _has_long_choices(action: argparse.Action) -> bool:
    return len(",".join(map(str, action.choices or ()))) > _LONGEST_CHOICES


def _placeholder(action: argparse.Action) -> str:
    ends = {"dir": "FOLDER", "out": "FOLDER", "config": "FILE", "dataset": "MANIFEST", "datasets": "MANIFEST"}
    return ends.get(action.dest.rpartition("_")[2], "TEXT")


def _by_name(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The options that are shown, but for ``--help``, by destination."""
    shown = (action for action in parser._actions if action.help is not argparse.SUPPRESS)
    options = (action for action in shown if action.option_strings)
    return {action.dest: action for action in options if not isinstance(action, ShowHelp)}


def _called(action: argparse.Action) -> str:
    name = action.metavar or action.dest
    return f"{name} ..." if action.nargs in ("+", "*") else str(name)


def _of(names: str, by_name: Mapping[str, argparse.Action]) -> list[argparse.Action]:
    return [by_name[name] for name in names.split() if name in by_name]


def _page(parser: argparse.ArgumentParser, title: str, actions: Iterable[argparse.Action]) -> str:
    formatter = parser._get_formatter()
    formatter.start_section(title)
    formatter.add_arguments(actions)
    formatter.end_section()
    return formatter.format_help()


# NemoArgParser: the command-line options that NeMo's scripts share. What they mean is decided where they are used.


N = TypeVar("N", int, float)

_LARGEST_FLOAT32 = 3.4e38
_LARGEST_INT = 2**63 - 1
_SHOWN_LETTERS = 60
_DIST_BACKENDS = ("nccl", "gloo")
# Options of LaunchedParser, and arguments of the factory.
_OF_THE_LAUNCH = (
    *("local_rank", "launcher", "init_method", "rank", "world_size"),
    *("dist_backend", "dist_timeout", "dist_start_timeout", "dist_silence_timeout"),
)
# Options of other programs -> ours that take the same value. A parser accepts those whose option it has.
_SAME_OPTIONS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("learning_rate", "initial_lr"), ("lr",)),
    **dict.fromkeys(("epochs", "n_epochs", "max_epochs", "num_train_epochs"), ("num_epochs",)),
    **dict.fromkeys(("steps", "n_steps", "max_iters"), ("max_steps",)),
    **dict.fromkeys(("output_dir", "save_dir", "default_root_dir"), ("work_dir", "out")),
    **dict.fromkeys(("output", "output_file"), ("out",)),
    **dict.fromkeys(
        ("accum_grad", "accumulate", "accumulate_grad_batches", "gradient_accumulation_steps"), ("iter_per_step",)
    ),
    "wd": ("weight_decay",),
    **dict.fromkeys(("grad_clip", "max_grad_norm", "gradient_clip_val"), ("grad_norm_clip",)),
    **dict.fromkeys(("optim", "opt"), ("optimizer",)),
    **dict.fromkeys(("workers", "dataloader_num_workers"), ("num_workers",)),
    **dict.fromkeys(
        ("val", "val_dataset", "val_datasets", "eval_dataset", "eval_data", "val_data"), ("eval_datasets",)
    ),
    **dict.fromkeys(("train", "train_data", "train_file"), ("train_dataset",)),
    **dict.fromkeys(("config", "cfg"), ("model_config",)),
    **dict.fromkeys(("name", "run_name"), ("exp_name",)),
    **dict.fromkeys(("seed", "manual_seed", "random_state"), ("random_seed",)),
}
# Options of other programs -> one of ours, and what to write in their place.
_OTHER_OPTIONS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("device", "accelerator"), ("placement", "--placement CPU, GPU or AllGpu")),
    "cpu": ("placement", "--placement CPU"),
    **dict.fromkeys(("cuda", "gpu"), ("placement", "--placement GPU")),
    **dict.fromkeys(
        ("gpus", "devices"), ("local_rank", "torchrun --nproc-per-node=N -m nemo_lite ... starts a process on each GPU")
    ),
    "precision": ("amp_dtype", "--amp_opt_level O0 (float32), or --amp_dtype bfloat16 or float16 (mixed)"),
    "bf16": ("amp_dtype", "--amp_dtype bfloat16"),
    **dict.fromkeys(("fp16", "half"), ("amp_dtype", "--amp_dtype float16")),
    "amp": ("amp_opt_level", "--amp_opt_level O1"),
    **dict.fromkeys(
        ("resume", "resume_from_checkpoint", "ckpt_path"),
        ("work_dir", "the same command goes on with its run; --load_dir FOLDER goes on from other checkpoints"),
    ),
    "wandb": ("track", "--track wandb"),
    "mlflow": ("track", "--track mlflow"),
    "tensorboard": ("track", "--track tensorboard"),
    **dict.fromkeys(
        ("patience", "early_stopping"),
        ("num_epochs", "a run trains to its end and keeps the best model; --num_epochs or --max_steps set the length"),
    ),
    "dropout": ("overrides", "--set KEY=VALUE, such as JasperEncoder.jasper.0.dropout=0.1"),
}


class Names:
    """Choices of an option that are looked up when they are needed: a file of ``--import`` may add some.

    Args:
        names: gives them.
    """

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self._names = names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __contains__(self, name: object) -> bool:
        return name in [*self._names()]


class OneLineParser(argparse.ArgumentParser):
    """An ``argparse.ArgumentParser`` that ends the script with one line on stderr, and exit code 2, when it must.

    ``--help`` shows the defaults; in pages, where a subclass sets ``help_pages``. With argcomplete installed, a shell
    can complete the options. Options are not abbreviated; dashes and underscores in their names are the same, and
    names of other programs for the same option are accepted.
    """

    help_pages: HelpPages | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        has_help = kwargs.pop("add_help", True)
        # Not argparse's own name, which Python 3.14 takes from __main__: a subcommand would lose its name.
        kwargs.setdefault("prog", Path(sys.argv[0]).name)
        defaults = {"formatter_class": PageFormatter, "add_help": False, "allow_abbrev": False}
        super().__init__(*args, **{**defaults, **kwargs})
        if has_help:
            has_pages = self.help_pages is not None
            self.add_argument("-h", "--help", action=ShowHelp, has_pages=has_pages, help="show this and end")

    def parse_args(  # type: ignore[override]  # one signature for what argparse declares as three overloads
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """As in argparse; an option that does not exist is answered with the nearest one."""
        _complete(self)
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._remedies(unknown)}")
        self.check(parsed)
        return parsed

    def parse_known_args(  # type: ignore[override]  # as parse_args
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """As in argparse; other spellings and names of an option become ours first, and files of --import are run."""
        words = list(sys.argv[1:] if args is None else args)
        end = words.index("--") if "--" in words else len(words)
        words = [*map(self._with_our_name, words[:end]), *words[end:]]
        if "--import" in self._option_string_actions:
            for file in _imports_in(words):
                self._run_file(Path(file))
        return super().parse_known_args(words, namespace)

    def _with_our_name(self, word: str) -> str:
        option, equals, value = word.partition("=")
        if not option.startswith("--") or option in self._option_string_actions:
            return word
        options = {_plain(name): name for name in self._option_string_actions}
        name = _plain(option)
        ours = next((options[same] for same in (name, *_SAME_OPTIONS.get(name, ())) if same in options), option)
        return f"{ours}{equals}{value}"

    def _remedies(self, unknown: Sequence[str]) -> str:
        """What to write in the place of options that do not exist, as far as it is known."""
        options = {_plain(name): name for name in self._option_string_actions}
        near: list[str] = []
        other: list[str] = []
        for option in dict.fromkeys(word.partition("=")[0] for word in unknown if word.startswith("-")):
            target, text = _OTHER_OPTIONS.get(_plain(option), ("", ""))
            if any(action.dest == target for action in self._actions):
                other.append(f"; in place of {option}: {text}")
            else:
                near += (options[name] for name in nearest(_plain(option), options))
        return (f" (did you mean {', '.join(near)}?)" if near else "") + "".join(other)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(value, map(str, action.choices or ()))
            raise

    def check(self, parsed: Any) -> None:
        """Called with what was parsed: a subclass checks it, and changes it, here."""

    def _run_file(self, path: Path) -> None:
        """Import a file by its path, under the name of the file. Processes that load data find it there as well."""
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.is_file():
            self.error(f"argument --import: {str(path)!r} is not a Python file")
        if path.stem in sys.modules and getattr(sys.modules[path.stem], "__file__", None) != spec.origin:
            self.error(f"argument --import: a module called {path.stem} is there already; rename {str(path)!r}")
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        sys.path.append(str(path.resolve().parent))
        spec.loader.exec_module(module)

    def error(self, message: str) -> NoReturn:
        """End the script with one line and exit code 2; the full list of options is left to ``--help``."""
        print(f"{self.prog}: {marked('error:')} {message}", file=sys.stderr)
        raise SystemExit(2) from UsageError(message)  # the cause is for reported_to_user: other processes are told


class LaunchedParser(OneLineParser):
    """The options by which a process that a launcher started knows its rank; checked when parsed.

    ``local_rank`` in the result is the launcher's, whichever way it says it, and ``None`` for a single process.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        add = self.add_argument_group("several processes").add_argument
        rank_help = "index of this process on its machine (default: the launcher's variables)"
        # torch.distributed.launch passes --local-rank, its older versions --local_rank; torchrun passes nothing.
        add("--local_rank", "--local-rank", type=not_negative_int, help=rank_help)
        add("--launcher", choices=LAUNCHERS, default="auto", help="what started this process; none: nothing did")
        add("--init_method", help="tcp://host:port where processes meet (default: what the launcher says)")
        add("--rank", type=not_negative_int, help="index of this process among all, with --init_method")
        add("--world_size", type=positive_int, help="number of processes, with --init_method")
        add("--dist_backend", choices=_DIST_BACKENDS, help="what exchanges gradients (default: nccl on GPUs)")
        timeout_help = (
            "seconds a rank may wait for another one; then the run ends with a report that names the late rank"
        )
        add("--dist_timeout", type=seconds, default=600.0, help=timeout_help)
        add("--dist_start_timeout", type=seconds, default=300.0, help="seconds until all processes must have started")
        silence_help = (
            "seconds without a sign of life after which a process on another machine is gone; so long may a link be "
            "down (default: a tenth of --dist_timeout, from 6 to 60)"
        )
        add("--dist_silence_timeout", type=seconds, help=silence_help)
        hidden: Any = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
        for option, values in _WENET.items():
            add(f"--ddp.{option}", dest=option, **values, **hidden)

    def add_run_options(self, placements: type[Enum], load_dir: str | None = None) -> None:
        """The options of a script that runs a model: modules of one's own, device, precision, checkpoints.

        Args:
            placements: what ``--placement`` is one of, by name: ``DeviceType``.
            load_dir: help of a ``--load_dir`` that the script needs; by default it can do without.
        """
        add = self.add_argument
        import_help = "Python file with modules of your own, run first; may be given several times"
        add("--import", dest="imports", metavar="FILE", action="append", default=[], help=import_help)
        set_help = (
            "set a value of the configuration, such as JasperEncoder.jasper.0.dropout=0.1; may be given several times"
        )
        add("--set", dest="overrides", metavar="KEY=VALUE", action="append", default=[], help=set_help)
        own_help = "folder of checkpoints to start from (default: the run's own)"
        add("--load_dir", type=_folder, required=load_dir is not None, help=load_dir or own_help)
        add_precision_options(self)
        add(
            "--placement",
            type=partial(_member, placements),
            metavar=f"{{{','.join(placement.name for placement in placements)}}}",
            help="where to run (default: on a GPU if there is one); with AllGpu, a script that no launcher started "
            "runs on one GPU and prints the line that starts it on all",
        )
        add("--shard_weights", action="store_true", help="divide the weights among the processes (FSDP2)")
        add("--compile", action="store_true", help="compile the model (torch.compile), for training and evaluation")
        mode_help = "default, reduce-overhead (with CUDA graphs) or max-autotune, in which --compile works; asks for it"
        add("--compile_mode", metavar="MODE", help=mode_help)

    def check(self, parsed: Any) -> None:
        """What the options and the launcher say must fit together."""
        process = self.process_of(parsed)
        parsed.local_rank = None if process is None else process.local_rank
        if parsed.launcher == "none" and (ignored := forget_launcher()):
            logging.warning(ignored)
        super().check(parsed)

    def process_of(self, parsed: Any) -> ProcessInfo | None:
        """Rank and world size by the options and the environment; ``None`` for a single process."""
        launch = {option: getattr(parsed, option) for option in ("launcher", "init_method", "rank", "world_size")}
        try:
            return who_am_i(parsed.local_rank, **launch)
        except UsageError as error:
            self.error(str(error))

    def acts_for_all(self, parsed: Any) -> bool:
        """Whether this process reads and records for all: rank 0, or the only one. Other machines may lack files."""
        process = self.process_of(parsed)
        return process is None or process.is_first

    def check_folder(self, parsed: Any, option: str, remedy: str) -> bool:
        """End the script where an option names no folder; whether it names one that this process reads for all."""
        folder = getattr(parsed, option)
        if folder is None or not self.acts_for_all(parsed):
            return False
        path = Path(folder)
        if not path.is_dir():
            problem = "is a file" if path.exists() else "does not exist"
            self.error(f"argument --{option}: {folder!r} {problem}; {remedy}")
        return True

    def check_checkpoints(self, parsed: Any) -> None:
        """End the script where ``--load_dir`` has no checkpoint.

        A run's folder stands for the folder ``checkpoints`` in it.
        """
        if not self.check_folder(parsed, "load_dir", "give a folder of checkpoints"):
            return
        path = Path(parsed.load_dir)
        inside = path / "checkpoints"
        if not _has_checkpoints(path) and _has_checkpoints(inside):
            parsed.load_dir = str(inside)
        elif not _has_checkpoints(path):
            self.error(f"argument --load_dir: there is no checkpoint in {parsed.load_dir!r}")


class NemoArgParser(LaunchedParser):
    """NeMo's common options; also of use in ``parents=[NemoArgParser()]``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        add = self.add_argument
        precision_help = "precision, from float32 (O0) and mixed (O1, O2) to half (O3)"
        add("--amp_opt_level", choices=AMP_LEVELS, default="O0", help=precision_help)
        add("--cudnn_benchmark", action="store_true", help="let cuDNN time its kernels; for constant shapes")
        add("--model_config", help="YAML file of the model")
        add("--train_dataset", help="training data")
        add("--eval_datasets", nargs="*", help="evaluation data, any number of sets")
        add("--batch_size", type=positive_int, help="items per training batch and process")
        add("--eval_batch_size", type=positive_int, help="items per evaluation batch and process")
        add("--eval_freq", type=positive_int, default=1000, help="optimizer steps between evaluations")
        add("--optimizer", choices=Names(lambda: OPTIMIZERS), help="optimizer")
        add("--weight_decay", type=not_negative_float, default=0.0, help="weight decay")
        add("--num_epochs", type=positive_int, help="epochs to train")
        add("--max_steps", type=positive_int, help="optimizer steps to train")
        add("--lr", type=not_negative_float, default=1e-3, help="initial learning rate")
        add("--lr_policy", choices=Names(get_all_lr_classes), default="WarmupAnnealing", help="learning-rate policy")
        add("--iter_per_step", type=positive_int, default=1, help="micro-batches of one optimizer step")
        add("--work_dir", help="folder for logs, curves and checkpoints")
        add("--checkpoint_dir", help="folder for checkpoints (default: WORK_DIR/checkpoints)")
        add("--create_tb_writer", action="store_true", help="write TensorBoard events")
        add("--tensorboard_dir", help="folder for the events (default: WORK_DIR/tensorboard)")
        add("--checkpoint_save_freq", type=positive_int, default=1000, help="optimizer steps between checkpoints")


def _imports_in(words: Sequence[str]) -> list[str]:
    """The files of ``--import``, which are run before the other options are read: they may add names to these."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    first.add_argument("--import", dest="imports", action="append", default=[])
    try:
        return list(first.parse_known_args(words)[0].imports)
    except argparse.ArgumentError:  # no file behind the last one: the whole parser says so
        return []


def _plain(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _has_checkpoints(folder: Path) -> bool:
    return any(parse_checkpoint_name(name) or tag_of_folder(name) for name in names_in(folder))


def _complete(parser: argparse.ArgumentParser) -> None:
    """Where a shell asks for completions (it sets a variable), answer it and end the process."""
    if "_ARGCOMPLETE" in os.environ and importlib.util.find_spec("argcomplete"):
        import argcomplete

        argcomplete.autocomplete(parser)


def add_saving_options(parser: argparse.ArgumentParser) -> None:
    """When checkpoints are saved, and how many stay; ``CheckpointCallback`` explains them."""
    add = parser.add_argument
    add("--checkpoint_save_freq", type=positive_int, help="also save after every so many optimizer steps")
    epochs_help = "epochs between checkpoints; 0: none by epochs"
    add("--checkpoint_epoch_freq", type=not_negative_int, default=1, help=epochs_help)
    minutes_help = "save when the last checkpoint is so many minutes old; 0: not by time"
    add("--checkpoint_minutes", type=not_negative_float, default=15.0, help=minutes_help)
    add("--checkpoints_to_keep", type=positive_int, default=4, help="how many of the newest checkpoints stay")
    add(
        "--allow_world_size_change",
        action="store_true",
        help="go on from a checkpoint that another number of processes saved; what that changes is logged",
    )
    best_help = "how many of the best by the first evaluation set stay, beside the newest"
    add("--best_to_keep", type=positive_int, default=2, help=best_help)


def launch_arguments(parsed: argparse.Namespace) -> dict[str, Any]:
    """What a :class:`LaunchedParser` read, as keyword arguments of ``NeuralModuleFactory``."""
    return {option: getattr(parsed, option) for option in _OF_THE_LAUNCH}


def factory_arguments(parsed: argparse.Namespace) -> dict[str, Any]:
    """As `launch_arguments`, with where to run and in what precision: the options of ``add_run_options``."""
    run = {"placement": parsed.placement, "optimization_level": parsed.amp_opt_level, "amp_dtype": parsed.amp_dtype}
    compiling = {"mode": parsed.compile_mode} if parsed.compile_mode else parsed.compile
    return {**launch_arguments(parsed), **run, "shard_weights": parsed.shard_weights, "compile": compiling}


def number_within(
    within: Between, parse: Callable[[str], N], wanted: str = "", metavar: str = ""
) -> Callable[[str], N]:
    """An argparse type: a number of a range.

    Args:
        within: the range. NaN is in none.
        parse: ``int`` or ``float``.
        wanted: completes "'x' is not ..."; by default the range in words.
        metavar: what ``--help`` shows for a value; by default ``N`` or ``X``.
    """
    kind = "a whole number" if parse is int else "a number"

    def checked(text: str) -> N:
        try:
            value = parse(text)
        except ValueError:
            value = None
        if value is None or within.refuses(value):
            raise argparse.ArgumentTypeError(f"{_short(text)} is not {wanted or f'{kind} {within}'}")
        return value

    checked.metavar = metavar or ("N" if parse is int else "X")  # type: ignore[attr-defined]
    return checked


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}...")


# Counts and seeds have to fit into 63 bits, and floats into 32, so that one may compute with them.
positive_int = number_within(Between(1, _LARGEST_INT), int)
not_negative_int = number_within(Between(0, _LARGEST_INT), int)
not_negative_float = number_within(Between(0, _LARGEST_FLOAT32), float)
positive_float = number_within(Between(0, _LARGEST_FLOAT32, above=True), float)
seconds = number_within(
    WAITING_SECONDS,
    float,
    f"a number of seconds {WAITING_SECONDS} (a week)",
    metavar="SECONDS",
)

# Options of WeNet's recipes, each without the "ddp." before it.
_WENET: Mapping[str, Mapping[str, Any]] = {
    "init_method": {},
    "rank": {"type": not_negative_int},
    "world_size": {"type": positive_int},
    "dist_backend": {"choices": _DIST_BACKENDS},
}


def _member(kind: type[Enum], text: str) -> Enum:
    if text not in kind.__members__:
        near = did_you_mean(text, kind.__members__)
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(kind.__members__)}{near}")
    return kind[text]


def _folder(text: str) -> str:
    return str(Path(text).expanduser())
