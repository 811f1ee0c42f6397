"""Print the reference of all keys that a configuration may have: type, default and text, from the constructors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Literal, NamedTuple, Union, get_args, get_origin

from nemo_asr.augmentation import perturbation_types
from nemo_asr.models.jasper import JasperBlockSpec
from nemo_asr.models.transducer.joint import JointnetSpec, RNNTJoint
from nemo_asr.models.transducer.prediction import PrednetSpec, RNNTDecoder, StatelessSpec, StatelessTransducerDecoder
from nemo_asr.run.arguments import source_argument
from nemo_asr.tasks.connection_check import references_in
from nemo_asr.tasks.family import FAMILIES
from nemo_asr.tasks.registry import KNOWN, Known
from nemo_lite.base.config import shown
from nemo_lite.base.options import OneLineParser
from nemo_lite.base.ranges import Between, annotations_of

# Arguments that are no keys of a file: the script gives them.
_NOT_IN_FILES = ("name", "rng", "batch_size")
_INTRODUCTION = """# Configuration reference

<!-- Written by `nemo-lite reference`; a test compares. Change the docstrings, then run it again. -->

A model's YAML file has one section for each module, under the name of its class, and at its top level:

| key | type | default | what it is |
|---|---|---|---|
| `model` | str | the file's name | name of the model |
| `family` | str | by the data layer | `ctc`, `transducer`, `hybrid`, `attention`, ... or [yours](modules.md#families) |
| `sample_rate` | int | `16000` | samples a second, for all sections that do not say it themselves |
| `labels` | list of str | or `tokenizer` | the vocabulary: a label's position is its id; CTC's blank comes behind it |
| `tokenizer` | str | or `labels` | a SentencePiece model, whose pieces are the labels (`nemo-lite data tokenizer`) |
| `language` | str | by the labels | of the texts: `en`, `de`, ... or `none`: [data.md](data.md#languages) |

A preprocessor and an encoder are needed, of `transducer` and `hybrid` a prediction network and a joint network too, of
`attention` and `ctc_attention` an attention decoder; every
other section may be left out. `labels`, `vocabulary`, `num_classes`, `vocab_size`, `feat_in`, `sample_rate`, `language`
and `frame_splicing` of a section follow from the rest of the file and can be left out as well.
Any key can be changed for one run:
`--set AudioToMelSpectrogramPreprocessor.dither=0 --set JasperEncoder.jasper.0.dropout=0.1`.
"""
_INNER_SECTIONS = (
    ("prednet", RNNTDecoder, PrednetSpec),
    ("prednet", StatelessTransducerDecoder, StatelessSpec),
    ("jointnet", RNNTJoint, JointnetSpec),
)
_BLOCKS = "Blocks of JasperEncoder"
# The titles of their tables, by class.
_TITLES = {
    **{spec.__name__: f"{key} of {owner.__name__}" for key, owner, spec in _INNER_SECTIONS},
    JasperBlockSpec.__name__: _BLOCKS,
}
_DATA_NOTE = """The sub-sections `train` and `eval` have the same keys and win over those beside them.
`batch_size` and the manifests come from the command line."""


class Key(NamedTuple):
    """A key of a section, as its constructor has it."""

    name: str
    type: str
    default: str
    text: str


def keys_of(target: type) -> list[Key]:
    """The keys of a section that is for this class, in the order of the constructor. Other modules are no keys."""
    texts, types = argument_texts(target), annotations_of(target.__init__)  # type: ignore[misc]  # of the class itself
    from_script = *_NOT_IN_FILES, *references_in(target)
    # Of the constructor: a class of ours may have a metaclass with another signature.
    _, *parameters = inspect.signature(target.__init__).parameters.values()  # type: ignore[misc]  # of the class itself
    return [
        Key(parameter.name, _written(types[parameter.name]), _default_of(parameter), texts.get(parameter.name, ""))
        for parameter in parameters
        if parameter.name not in from_script and parameter.kind is not parameter.VAR_KEYWORD
    ]


def argument_texts(documented: type) -> dict[str, str]:
    """What the docstrings of a class and its bases say about each argument."""
    texts: dict[str, str] = {}
    for base in reversed(documented.__mro__):
        docs = inspect.cleandoc(base.__doc__ or "")
        blocks = re.findall(r"^(?:Args|Arguments of subclasses):\n((?:    .*\n|\n)*)", f"{docs}\n", re.MULTILINE)
        for entry in re.findall(r"^    (\w[\w, ]*): (.*(?:\n {8}.*)*)", "".join(blocks), re.MULTILINE):
            texts |= dict.fromkeys(entry[0].split(", "), " ".join(entry[1].split()))
    return texts


def reference() -> str:
    """The whole page, in Markdown."""
    return "\n".join([_INTRODUCTION, *_sections(), *_inner_sections(), *_blocks(), *_perturbations()])


def _sections() -> Iterator[str]:
    for role in dict.fromkeys(role for family in FAMILIES.values() for role in family.roles):
        for name, entry in KNOWN.items():
            if entry.role == role and name == entry.module_class.__name__ and is_own(entry):
                yield from _section(name, entry)


def is_own(entry: Known) -> bool:
    """Whether a registered class comes with the package."""
    return entry.module_class.__module__.startswith(("nemo_asr.", "nemo_lite."))


def _section(name: str, entry: Known) -> Iterator[str]:
    older = [other for other, other_entry in KNOWN.items() if other_entry is entry and other != name]
    yield f"## {name}\n"
    yield f"Role: {entry.role}. {_summary(entry.module_class)}" + (f" Older name: {', '.join(older)}." if older else "")
    yield ""
    keys = keys_of(entry.module_class)
    if entry.role == "data layer":
        yield f"{_DATA_NOTE}\n"
        keys = [key for key in keys if key.name != source_argument(entry.module_class)]
    for argument, became in entry.older.items():
        values = ", ".join(f"`{value}` is `{became.newer}: {str(now).lower()}`" for value, now in became.values.items())
        yield f"`{argument}` of older files: {values}.\n"
    if entry.without_effect:
        keys_of_nemo = (
            f"`{key}`" if not allowed else " or ".join(f"`{key}: {shown(value)}`" for value in allowed)
            for key, allowed in entry.without_effect.items()
        )
        yield f"Keys of NeMo's files that are taken, and without effect: {', '.join(keys_of_nemo)}.\n"
    yield _table(keys)


def _inner_sections() -> Iterator[str]:
    for _, _, spec in _INNER_SECTIONS:
        yield f"## {_TITLES[spec.__name__]}\n"
        yield _table(keys_of(spec))


def _blocks() -> Iterator[str]:
    yield f"## {_BLOCKS}\n"
    yield "Each element of `jasper` is a mapping with these keys.\n"
    yield _table(keys_of(JasperBlockSpec))


def _perturbations() -> Iterator[str]:
    yield "## Perturbations\n"
    yield "`augmentor` of the data layer's `train` has a mapping under the name of each."
    yield "`prob` in it (0 to 1) is how often it acts.\n"
    for name, target in perturbation_types.items():
        yield f"### {name}\n"
        yield f"{_summary(target)}\n"
        yield _table(keys_of(target))


def _table(keys: list[Key]) -> str:
    if not keys:
        return "It has no keys.\n"
    rows = [f"| `{key.name}` | {_escaped(key.type)} | {key.default} | {_escaped(key.text)} |" for key in keys]
    return "\n".join(["| key | type | default | what it is |", "|---|---|---|---|", *rows, ""])


def _summary(target: type) -> str:
    return _escaped(" ".join((inspect.getdoc(target) or "").partition("\n\n")[0].split()))


def _written(kind: object) -> str:
    """A type as a reader of YAML knows it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        ranges = [str(mark) for mark in arguments[1:] if isinstance(mark, Between)]
        return " ".join([_written(arguments[0]), *ranges])
    if origin is Literal:
        return ", ".join(map(str, arguments))
    if origin in (Union, UnionType):
        return " or ".join(_written(argument) for argument in arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "mapping"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"list of {_written(arguments[0])}"
    return "null" if kind is NoneType else str(getattr(kind, "__name__", kind))


def _default_of(parameter: inspect.Parameter) -> str:
    default = parameter.default
    if default is parameter.empty:
        return "needed"
    return f"`{str(default).lower() if isinstance(default, bool) or default is None else default}`".replace(
        "none", "null"
    )


def _escaped(text: str) -> str:
    """A text in Markdown. The classes of keys below a section are no names for a reader of YAML: their tables are."""
    text = re.sub(r":class:`(\w+)`", r"`\1`", text.replace("``", "`")).replace("|", "\\|")
    return re.sub("|".join(f"`{spec}`" for spec in _TITLES), lambda named: _link(_TITLES[named[0].strip("`")]), text)


def _link(title: str) -> str:
    return f"[{title}](#{title.lower().replace(' ', '-')})"


def main(arguments: Sequence[str]) -> None:
    """Print the page, in Markdown."""
    OneLineParser(prog="nemo-lite reference", description=__doc__).parse_args(arguments)
    print(reference(), end="")
