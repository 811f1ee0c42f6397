"""Options of command lines. A class is a group of options: its parser, help, checks and forwarding follow from it.

A field has an annotation that says which values there may be, and what `option` says of it: its default, its help text
and more. `OneLineParser` makes options of the fields, and shows them on the pages of ``--help``;
`arguments_of` hands the values on under the names of a call's arguments. The options here are those of every script
that runs a model: processes, devices, precision, compilation; what they mean is decided where they are used.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import Enum
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from nemo_lite.base.choices import DeviceType
from nemo_lite.base.errors import NemoLiteError, UsageError, did_you_mean, marked, nearest, with_line
from nemo_lite.base.files import names_in
from nemo_lite.base.helpers import parse_checkpoint_name, tag_of_folder
from nemo_lite.base.launch import LAUNCHERS, ProcessInfo, forget_launcher, who_am_i
from nemo_lite.base.nemo_logging import logging
from nemo_lite.base.ranges import (
    NotNegativeFloat,
    NotNegativeInt,
    PositiveFloat,
    PositiveInt,
    WaitingSeconds,
    fits,
    ranges_of,
)

# Any: argparse's values and namespaces have no types.

G = TypeVar("G")

_SHOWN_LETTERS = 60


def number_type(annotation: object, metavar: str = "") -> Callable[[str], float]:
    """An argparse type: a number of a range.

    Args:
        annotation: its type and its range, such as ``PositiveInt``.
        metavar: what ``--help`` shows for a value; by default ``N`` or ``X``.
    """
    parse, *_ = get_args(annotation)
    kind = "a whole number" if parse is int else "a number"

    def checked(text: str) -> float:
        try:
            value: float | None = parse(text)
        except ValueError:
            value = None
        if value is None or not fits(value, annotation):
            within = " ".join(map(str, ranges_of(annotation)))
            raise argparse.ArgumentTypeError(f"{_short(text)} is not {kind} {within}")
        return value

    checked.metavar = metavar or ("N" if parse is int else "X")  # type: ignore[attr-defined]
    return checked


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}...")


positive_int = number_type(PositiveInt)
not_negative_int = number_type(NotNegativeInt)
not_negative_float = number_type(NotNegativeFloat)
positive_float = number_type(PositiveFloat)
seconds = number_type(WaitingSeconds, "SECONDS")


def user_path(text: str) -> str:
    """An argparse type: a path, ``~`` in it a home folder."""
    return str(Path(text).expanduser())


def _member(kind: type[Enum], text: str) -> Enum:
    if text not in kind.__members__:
        near = did_you_mean(text, kind.__members__)
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(kind.__members__)}{near}")
    return kind[text]


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


# Groups: from a dataclass to options, and from what was parsed to the arguments of a call.


def option_group(cls: type[G]) -> type[G]:
    """A decorator: the annotated attributes of a class are a group of options, as the fields of a dataclass.

    Nobody makes an object of a group. So it has no methods of a dataclass, which took 1 ms a class at each start.
    """
    return dataclass(init=False, repr=False, eq=False)(cls)


def option(
    default: Any,
    text: str,
    *names: str,
    page: str = "",
    needs: str = "",
    passed_as: str = "",
    only_for: str = "",
    **arguments: Any,
) -> Any:
    """A field of a group: an option.

    Args:
        default: its value where the option is not given.
        text: what ``--help`` says of it.
        names: how it is written, where that is not ``--FIELD`` alone.
        page: of ``--help``, where it is not the group's.
        needs: options, with spaces between them, without which it has no effect; one of them is enough.
        passed_as: the name of the argument that it becomes, see `arguments_of`; by default the field's.
        only_for: what it is for, where that is not everything.
        arguments: of ``add_argument``.
    """
    metadata: dict[str, object] = {
        "names": names,
        "page": page,
        "needs": needs,
        "passed_as": passed_as,
        "only_for": only_for,
    }
    metadata |= {"arguments": {"help": text, **arguments}}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def arguments_of(parsed: argparse.Namespace, *groups: type) -> dict[str, Any]:
    """The values of groups, as keyword arguments of a call."""
    members = [member for group in groups for member in fields(group)]
    return {member.metadata["passed_as"] or member.name: getattr(parsed, member.name) for member in members}


def names_of(*groups: type) -> set[str]:
    """The names of the options of groups, as `parse_args` gives them."""
    return {member.name for group in groups for member in fields(group)}


def _words_of(annotation: object, default: object) -> dict[str, Any]:
    """What argparse has to know of a value, by its type."""
    if get_origin(annotation) in (Union, UnionType):  # with None
        annotation = get_args(annotation)[0]
    if annotation is bool:
        return {"action": "store_true" if default is False else argparse.BooleanOptionalAction}
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is list:
        return _words_of(inner[0], default)
    if origin is Literal:
        return {"choices": inner}
    if origin is Annotated:
        return {"type": number_type(annotation)}
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return {"type": partial(_member, annotation), "metavar": f"{{{','.join(annotation.__members__)}}}"}
    return {}


# Help in pages that fit a screen: ``--help`` shows the most used options, ``--help GROUP`` the others of a group.


MOST_COLUMNS = 100  # of a page; longer lines are hard to read
_FEWEST_COLUMNS = 40
_LONGEST_CHOICES = 30  # characters; longer ones are listed in the help text


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

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Callable[[int], tuple[str, ...]]:
        if action.metavar is None and _has_long_choices(action):
            return lambda size: ("NAME",) * size
        return super()._metavar_formatter(action, default_metavar)


def _has_long_choices(action: argparse.Action) -> bool:
    return len(",".join(map(str, action.choices or ()))) > _LONGEST_CHOICES


def _placeholder(action: argparse.Action) -> str:
    ends = {"dir": "FOLDER", "out": "FOLDER", "config": "FILE", "dataset": "MANIFEST", "datasets": "MANIFEST"}
    return ends.get(action.dest.rpartition("_")[2], "TEXT")


_OTHER = "options of no group"

# Parsers.


# Our name of an option -> names that other programs have for it, with the same values.
_OTHER_NAMES = {
    "lr": "learning_rate initial_lr",
    "num_epochs": "epochs n_epochs max_epochs max_epoch num_train_epochs",
    "max_steps": "steps n_steps max_iters",
    "work_dir": "output_dir save_dir default_root_dir saveto model_dir",
    "out": "output_dir save_dir default_root_dir output output_file",
    "iter_per_step": "accum_grad accumulate accumulate_grad_batches gradient_accumulation_steps update_cycle",
    "weight_decay": "wd",
    "grad_norm_clip": "grad_clip max_grad_norm gradient_clip_val",
    "optimizer": "optim opt",
    "num_workers": "workers dataloader_num_workers",
    "eval_datasets": "val val_dataset val_datasets eval_dataset eval_data val_data valid_path cv_data",
    "train_dataset": "train train_data train_file",
    "model_config": "config cfg config_path",
    "exp_name": "name run_name model_name",
    "log_freq": "log_interval log_every_n_steps logging_steps",
    "checkpoint_save_freq": "save_interval save_steps",
    "tensorboard_dir": "log_path",
    "random_seed": "seed manual_seed random_state",
    "patience": "early_stopping early_stopping_patience early_stop_patience",
    # WeNet's
    "init_method": "ddp.init_method",
    "rank": "ddp.rank",
    "world_size": "ddp.world_size",
    "dist_backend": "ddp.dist_backend",
}
# Options of other programs -> one of ours, and what to write in their place.
_IN_PLACE_OF = {
    "device accelerator": ("placement", "--placement CPU, GPU or AllGpu"),
    "cpu": ("placement", "--placement CPU"),
    "cuda gpu use_gpu": ("placement", "--placement GPU"),
    "gpus devices": ("local_rank", "torchrun --nproc-per-node=N -m nemo_lite ... starts a process on each GPU"),
    "precision": ("amp_dtype", "--amp_opt_level O0 (float32), or --amp_dtype bfloat16 or float16 (mixed)"),
    "bf16": ("amp_dtype", "--amp_dtype bfloat16"),
    "fp16 half": ("amp_dtype", "--amp_dtype float16"),
    "amp use_amp": ("amp_opt_level", "--amp_opt_level O1"),
    "resume reload resume_from_checkpoint ckpt_path": (
        "work_dir",
        "the same command goes on with its run; --load_dir FOLDER goes on from other checkpoints",
    ),
    "wandb": ("track", "--track wandb"),
    "mlflow": ("track", "--track mlflow"),
    "tensorboard": ("track", "--track tensorboard"),
    # WeNet's
    "checkpoint": ("init_from", "--init_from MODEL begins with its weights; the same command goes on with its run"),
    "override_config": ("overrides", "the option of that name, or --set KEY=VALUE"),
    "train_engine deepspeed": ("shard_weights", "nothing, for DDP; --shard_weights divides the weights"),
    "data_type": ("train_dataset", "nothing: --train_dataset takes manifests of files and of tar shards"),
    "symbol_table": ("model_config", "labels or tokenizer of the configuration, such as --set labels=auto"),
    "cmvn": ("model_config", "nemo-lite data statistics, which puts them into the configuration"),
    "dropout": ("overrides", "--set KEY=VALUE, such as JasperEncoder.jasper.0.dropout=0.1"),
    "shared_dir": ("work_dir", "--work_dir, on a disk that all machines share"),
    "model": ("model", "MODEL without an option, before the recordings"),
}


def our_name(name: str) -> str:
    """Our name of an option that other programs call so; the name itself where none does."""
    return next((ours for ours, others in _OTHER_NAMES.items() if _plain(name) in others.split()), name)


def option_in_place_of(name: str) -> str:
    """What stands here for an option of another program, such as ``--iter_per_step`` for accum_grad; "" for none."""
    ours = [f"--{our_name(name)}"] if our_name(name) != name else []
    ours += [text for names, (_, text) in _IN_PLACE_OF.items() if name in names.split()]
    return " or ".join(ours)


class OneLineParser(argparse.ArgumentParser):
    """An ``argparse.ArgumentParser`` that ends the script with one line on stderr, and exit code 2, when it must.

    ``--help`` shows the defaults; in pages, where a subclass names some. With argcomplete installed, a shell can
    complete the options. Options are not abbreviated; dashes and underscores in their names are the same, and names of
    other programs for the same option are accepted.

    Attributes:
        groups: of options, that every parser of the class has. A group may say the ``page`` of its options.
        pages: what each page is about. Options of no page are on ``other``.
        most_used: options that ``--help`` shows, with spaces between them; positional arguments stand before them.
        on_missing: what is said where its first word, an argument, is missing.
        given: the names in the result of the options that the command line has, also of those with their defaults.
    """

    groups: ClassVar[Sequence[type]] = ()
    pages: ClassVar[Mapping[str, str]] = {}
    most_used: ClassVar[str] = ""
    on_missing: ClassVar[str] = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        has_help = kwargs.pop("add_help", True)
        # Not argparse's own name, which Python 3.14 takes from __main__: a subcommand would lose its name.
        kwargs.setdefault("prog", Path(sys.argv[0]).name)
        defaults = {"formatter_class": PageFormatter, "add_help": False, "allow_abbrev": False}
        super().__init__(*args, **{**defaults, **kwargs})
        self.members: list[Field[Any]] = []
        self.given: set[str] = set()
        self._on_page: dict[str, list[str]] = {}
        if has_help:
            words: dict[str, Any] = {"nargs": "?", "metavar": "GROUP"} if self.pages else {"nargs": 0}
            self.add_argument(
                "-h", "--help", action=_ShowHelp, default=argparse.SUPPRESS, help="show this and end", **words
            )
        self.add_options(*self.groups)

    def add_options(self, *groups: type) -> None:
        """Add the options of groups."""
        for group in groups:
            annotations = get_type_hints(group, include_extras=True)
            for member in fields(group):
                about = member.metadata
                default = member.default if member.default_factory is MISSING else member.default_factory()
                names = about["names"] or (f"--{member.name}",)
                words = {"dest": member.name, "default": default, **_words_of(annotations[member.name], default)}
                self.add_argument(*names, **{**words, **about["arguments"]})
                self.members.append(member)
                page = about["page"] or str(getattr(group, "page", "other"))
                self._on_page.setdefault(page, []).append(names[0])

    def parse_args(  # type: ignore[override]  # one signature for what argparse declares as three overloads
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """As in argparse; an option that does not exist is answered with the nearest one."""
        if "_ARGCOMPLETE" in os.environ and importlib.util.find_spec("argcomplete"):
            import argcomplete

            argcomplete.autocomplete(self)  # a shell asks for completions: answers, and ends the process
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            words = sys.argv[1:] if args is None else args
            command = " ".join([self.prog, *(words[:1] if self._subparsers else ())])
            remedies = self._remedies(unknown, words) or f"; {command} --help shows what there is"
            self.error(f"unrecognized arguments: {' '.join(unknown)}{remedies}")
        self.check(parsed)
        return parsed

    def parse_known_args(  # type: ignore[override]  # as parse_args
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As in argparse; other spellings and names of an option become ours first, and files of --import are run."""
        words = list(sys.argv[1:] if args is None else args)
        end = words.index("--") if "--" in words else len(words)
        words = [*map(self._with_our_name, words[:end]), *words[end:]]
        if "--import" in self._option_string_actions:
            for file in _imports_in(words):
                self._run_file(Path(file))
        actions = [self._option_string_actions.get(word.partition("=")[0]) for word in words[:end]]
        self.given = {action.dest for action in actions if action is not None}
        return super().parse_known_args(words, namespace)

    def check(self, parsed: argparse.Namespace) -> None:
        """Called with what was parsed: a subclass checks it, and changes it, here."""

    def check_needs(self, parsed: argparse.Namespace) -> None:
        """End the script where an option is given, and none of those without which it has no effect."""
        for member in self.members:
            name, needs = member.name, member.metadata["needs"].split()
            if needs and getattr(parsed, name) != self.get_default(name) and not any(getattr(parsed, n) for n in needs):
                self.error(f"--{name} has no effect without --{' or --'.join(needs)}; leave it out")

    def error(self, message: str) -> NoReturn:
        """End the script with one line and exit code 2; the full list of options is left to ``--help``."""
        if self.on_missing and f"arguments are required: {self.on_missing.split()[0]}" in message:
            message = f"{message}; {self.on_missing}"
        print(f"{self.prog}: {marked('error:')} {message}", file=sys.stderr)
        raise SystemExit(2) from UsageError(message)  # the cause is for reported_to_user: other processes are told

    def first_page(self) -> str:
        """What ``--help`` prints."""
        positional = [action for action in self._actions if not action.option_strings]
        used = [self._option_string_actions.get(f"--{name}") for name in self.most_used.split()]
        called = [
            f"{action.metavar or action.dest}{' ...' if action.nargs in ('+', '*') else ''}" for action in positional
        ]
        usage = self.usage % {"prog": self.prog} if self.usage else " ".join([self.prog, *called, "[options]"])
        head = [*textwrap.wrap(f"usage: {usage}", columns(), subsequent_indent="  "), ""]
        head += [*textwrap.wrap(self.description or "", columns()), ""]
        summaries = {page: self.pages.get(page, _OTHER) for page in self._by_page()}
        more = ["--help GROUP shows more:", *two_columns({**summaries, "all": "everything"}), ""]
        return "\n".join([*head, self._section("most used", [*positional, *filter(None, used)]), *more])

    def page(self, name: str) -> str:
        """What ``--help GROUP`` prints; ends the script where there is no such group."""
        by_page = self._by_page()
        if name not in (*by_page, "all"):
            known = f"known: {', '.join([*by_page, 'all'])}{did_you_mean(name, [*by_page, 'all'])}"
            self.error(f'argument --help: "{name}" is not a group of options; {known}')
        return "\n".join(
            self._section(f"{page} ({self.pages.get(page, _OTHER)})", options)
            for page, options in by_page.items()
            if name in (page, "all")
        )

    def _by_page(self) -> dict[str, list[argparse.Action]]:
        """The options that are shown, on each page that has some."""
        actions = self._option_string_actions
        by_page = {
            page: [actions[name] for name in self._on_page.get(page, ()) if name in actions] for page in self.pages
        }
        shown = [action for action in self._actions if action.option_strings and action.help is not argparse.SUPPRESS]
        on_pages = [action for options in by_page.values() for action in options]
        other = [action for action in shown if action not in on_pages and not isinstance(action, _ShowHelp)]
        return {page: options for page, options in {**by_page, "other": other}.items() if options}

    def _section(self, title: str, actions: Iterable[argparse.Action]) -> str:
        formatter = self._get_formatter()
        formatter.start_section(title)
        formatter.add_arguments(actions)
        formatter.end_section()
        return formatter.format_help()

    def _with_our_name(self, word: str) -> str:
        option_name, equals, value = word.partition("=")
        if not option_name.startswith("--") or option_name in self._option_string_actions:
            return word
        options, name = self._plain_names(), _plain(option_name)
        same = (ours for ours, others in _OTHER_NAMES.items() if name in others.split())
        ours = next((options[candidate] for candidate in (name, *same) if candidate in options), option_name)
        return f"{ours}{equals}{value}"

    def _remedies(self, unknown: Sequence[str], words: Sequence[str]) -> str:
        """What to write in the place of words that are not understood, as far as it is known.

        Args:
            unknown: those words.
            words: all of the command line.
        """
        options, targets = self._plain_names(), {action.dest for action in self._actions}
        near: list[str] = []
        other: list[str] = []
        for word in dict.fromkeys(word.partition("=")[0] for word in unknown if word.startswith("-")):
            texts = [
                text
                for names, (target, text) in _IN_PLACE_OF.items()
                if _plain(word) in names.split() and target in targets
            ]
            other += [f"; in place of {word}: {text}" for text in texts]
            near += [] if texts else [options[name] for name in nearest(_plain(word), options)]
        other += self._to_join(unknown, words)
        return (f" (did you mean {', '.join(near)}?)" if near else "") + "".join(other)

    def _to_join(self, unknown: Sequence[str], words: Sequence[str]) -> Iterator[str]:
        """For an option that takes manifests in one word, and was given several."""
        for name, first, second in zip(words, words[1:], words[2:], strict=False):
            action = self._option_string_actions.get(self._with_our_name(name))
            if action is None or second not in unknown or second.startswith("-"):
                continue
            if action.nargs is None and _placeholder(action) == "MANIFEST":
                yield f"; join several manifests by commas: {name} {first.rstrip(',')},{second}"

    def _plain_names(self) -> dict[str, str]:
        """The options as they are written, by their names without dashes."""
        return {_plain(name): name for name in self._option_string_actions}

    def _check_value(self, action: argparse.Action, value: object) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(str(value), map(str, action.choices or ()))
            raise

    def _run_file(self, path: Path) -> None:
        """Import a file by its path, under the name of the file. Processes that load data find it there as well."""
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.is_file():
            self.error(f"argument --import: {str(path)!r} is not a Python file")
        if path.stem in sys.modules and getattr(sys.modules[path.stem], "__file__", None) != spec.origin:
            self.error(f"argument --import: a module called {path.stem} is there already; rename {str(path)!r}")
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        sys.path.append(str(path.resolve().parent))
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[path.stem]  # as behind an import that fails
            is_mistake = not isinstance(error, NemoLiteError) or error.exit_code == UsageError.exit_code
            if not (isinstance(error, Exception) and is_mistake):
                raise
            self.error(f"argument --import: {with_line(error, str(spec.origin))}")


class _ShowHelp(argparse.Action):
    """``--help``, and ``--help GROUP`` for a parser with pages. It also serves a parser of argparse with our parent."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        if isinstance(parser, OneLineParser) and parser.pages:
            print(parser.page(str(values)) if values else parser.first_page(), end="")
        else:
            parser.print_help()
        parser.exit()


def _imports_in(words: Sequence[str]) -> list[str]:
    """The files of ``--import``, which are run before the other options are read: they may add names to these."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    first.add_argument("--import", dest="imports", action="append", default=[])
    try:
        return list(first.parse_known_args(words)[0].imports)
    except argparse.ArgumentError:  # no file behind the last one: the whole parser says so
        return []


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


# Where a script runs: processes, devices, precision, compilation.


@option_group
class Launch:
    """How a process that a launcher started knows its rank; arguments of the factory."""

    page: ClassVar[str] = "launching"
    launcher: str = option("auto", "what started this process; none: nothing did", choices=LAUNCHERS)
    # torch.distributed.launch passes --local-rank, its older versions --local_rank; torchrun passes nothing.
    local_rank: NotNegativeInt | None = option(
        None, "index of this process on its machine (default: the launcher's variables)", "--local_rank", "--local-rank"
    )
    rank: NotNegativeInt | None = option(None, "index of this process among all, with --init_method")
    world_size: PositiveInt | None = option(None, "number of processes, with --init_method")
    init_method: str | None = option(None, "tcp://host:port where processes meet (default: what the launcher says)")
    dist_backend: Literal["nccl", "gloo"] | None = option(None, "what exchanges gradients (default: nccl on GPUs)")
    dist_timeout: float = option(
        600.0,
        "seconds a rank may wait for another one; then the run ends with a report that names the late rank",
        type=seconds,
    )
    dist_start_timeout: float = option(300.0, "seconds until all processes must have started", type=seconds)
    dist_silence_timeout: float | None = option(
        None,
        "seconds without a sign of life after which a process on another machine is gone; so long may a link be down "
        "(default: a tenth of --dist_timeout, from 6 to 60)",
        type=seconds,
    )


@option_group
class Device:
    """Where a model runs, and in what precision."""

    page: ClassVar[str] = "launching"
    placement: DeviceType | None = option(
        None,
        "where to run (default: on a GPU if there is one); with AllGpu, a script that no launcher started runs on one "
        "GPU and prints the line that starts it on all",
    )
    amp_opt_level: Literal["O0", "O1", "O2", "O3"] | None = option(
        None,
        "float32 (O0), mixed (O1; default on a GPU), half with float32 master weights (O2), half (O3)",
        passed_as="optimization_level",
    )
    amp_dtype: Literal["auto", "bfloat16", "float16"] | None = option(
        None, "half type of O1 to O3; asks for O1 (default: auto, bfloat16 where the device has it in hardware)"
    )


@option_group
class Compilation:
    """How a model is compiled, and divided among processes."""

    page: ClassVar[str] = "launching"
    compile: bool = option(False, "compile the model (torch.compile), for training and evaluation")
    compile_mode: str | None = option(
        None,
        "default, reduce-overhead (with CUDA graphs) or max-autotune, in which --compile works; asks for it",
        metavar="MODE",
    )
    shard_weights: bool = option(False, "divide the weights among the processes (FSDP2)")


@option_group
class TrainingPrecision:
    """What trains in mixed precision, and a comparison with float32."""

    page: ClassVar[str] = "launching"
    amp_backend: Literal["auto", "native", "apex"] = option(
        "auto", "what trains in O1 to O3: torch (native), or apex.amp where an apex with amp is installed"
    )
    disable_mixed_precision: bool = option(False, "older spelling of --amp_opt_level O0", page="older")
    precision_check: PositiveInt | None = option(
        None,
        "do not train: run N batches in float32 and in the level of --amp_opt_level, and show each node's error",
        page="model",
        only_for="texts",
    )


def launch_arguments(parsed: argparse.Namespace) -> dict[str, Any]:
    """The options of `Launch` as keyword arguments of ``NeuralModuleFactory``."""
    return arguments_of(parsed, Launch)


def factory_arguments(parsed: argparse.Namespace) -> dict[str, Any]:
    """As `launch_arguments`, with where to run, in what precision and how compiled."""
    arguments = arguments_of(parsed, Launch, Device, Compilation)
    mode = arguments.pop("compile_mode")
    return {**arguments, "compile": {"mode": mode}} if mode else arguments


def fold_precision(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> None:
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


class LaunchedParser(OneLineParser):
    """A parser with the options of `Launch`, checked when parsed.

    ``local_rank`` in the result is the launcher's, whichever way it says it, and ``None`` for a single process.
    """

    groups: ClassVar[Sequence[type]] = (Launch,)

    def check(self, parsed: argparse.Namespace) -> None:
        """What the options and the launcher say must fit together."""
        process = self.process_of(parsed)
        parsed.local_rank = None if process is None else process.local_rank
        if parsed.launcher == "none" and (ignored := forget_launcher()):
            logging.warning(ignored)
        super().check(parsed)

    def process_of(self, parsed: argparse.Namespace) -> ProcessInfo | None:
        """Rank and world size by the options and the environment; ``None`` for a single process."""
        launch = {name: getattr(parsed, name) for name in ("launcher", "init_method", "rank", "world_size")}
        try:
            return who_am_i(parsed.local_rank, **launch)
        except UsageError as error:
            self.error(str(error))

    def acts_for_all(self, parsed: argparse.Namespace) -> bool:
        """Whether this process reads and records for all: rank 0, or the only one. Other machines may lack files."""
        process = self.process_of(parsed)
        return process is None or process.is_first

    def check_folder(self, parsed: argparse.Namespace, name: str, remedy: str, or_file: bool = False) -> bool:
        """End the script where an option names no folder; whether it names one that this process reads for all.

        A file may stand for a folder with ``or_file``.
        """
        folder = getattr(parsed, name)
        if folder is None or not self.acts_for_all(parsed):
            return False
        path = Path(folder)
        if not path.is_dir() and not (or_file and path.exists()):
            problem = "is a file" if path.exists() else "does not exist"
            self.error(f"argument --{name}: {folder!r} {problem}; {remedy}")
        return True

    def check_checkpoints(self, parsed: argparse.Namespace) -> None:
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


def _has_checkpoints(folder: Path) -> bool:
    return any(parse_checkpoint_name(name) or tag_of_folder(name) for name in names_in(folder))
