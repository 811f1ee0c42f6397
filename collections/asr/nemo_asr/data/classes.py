"""Names of classes: which a manifest has, and from a name to its number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from nemo_asr.run.manifest import LineReader, Manifest, class_of
from nemo_asr.run.manifest_kinds import CLASS_KEYS
from nemo_asr.run.text.parser import CharParser
from nemo_lite.base.errors import MAX_LISTED, ConfigError, DataError, did_you_mean, listed

_MOST_SHOWN = 12


class UnknownLabelError(DataError, KeyError):
    """A manifest has a class that the model does not know."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would quote it


def classes_of(manifest: Manifest) -> list[str]:
    """The class of each utterance of a manifest.

    Raises:
        DataError: a line names none: the first few, and how many.
    """
    names = [class_of(line) for line in manifest.written()]
    without = [row for row, name in enumerate(names) if not name]
    if without:
        problem = f"no class: write it under {', '.join(CLASS_KEYS[:-1])} or {CLASS_KEYS[-1]}, or delete the line"
        raise DataError(listed([f"{manifest.place(row)}: {problem}" for row in without[:MAX_LISTED]], len(without)))
    return names


def check_known(manifest: Manifest, names: Sequence[str], labels: Sequence[str]) -> None:
    """See that the classes of a manifest's utterances are among a model's.

    Raises:
        UnknownClassError: they are not: the first few lines, and how many.
    """
    classes = frozenset(labels)
    unknown = [row for row, name in enumerate(names) if name not in classes]
    if not unknown:
        return
    more = f" and {len(labels) - _MOST_SHOWN} more" if len(labels) > _MOST_SHOWN else ""
    wanted = f"{', '.join(labels[:_MOST_SHOWN])}{more}"
    problems = [
        f'{manifest.place(row)}: class "{names[row]}" is not in labels{did_you_mean(names[row], labels)}: '
        f"wanted {wanted}; add it to labels, or delete the line"
        for row in unknown[:MAX_LISTED]
    ]
    raise UnknownLabelError(listed(problems, len(unknown)))


def class_names(labels: Iterable[object], place_of: Callable[[int], str] = "labels[{}]".format) -> tuple[str, ...]:
    """The classes of a model, checked. Their positions are the ids. Numbers are taken as text.

    Args:
        labels: the names.
        place_of: where name number ``i`` is written, for the messages.

    Raises:
        ConfigError: one line for each name that is no text, empty or repeated; or there are none.
    """
    first_seen: dict[str, int] = {}
    problems = []
    for i, label in enumerate(labels):
        name = str(label) if isinstance(label, (str, int, float)) else ""
        if not name:
            problems.append(f"{place_of(i)}: {label!r} is no name of a class; write a text")
        elif name in first_seen:
            problems.append(f"{place_of(i)}: class {name!r} repeats the one at {place_of(first_seen[name])}")
        first_seen.setdefault(name, i)
    if not first_seen:
        problems.append(f"{place_of(0)}: the list of classes is empty")
    if problems:
        raise ConfigError(*problems)
    return tuple(first_seen)


def with_classes(manifest: Manifest) -> Manifest:
    """The manifest with classes in place of texts."""
    return replace(manifest, reader=LineReader(manifest.sources, labelled=True))


class ClassParser(CharParser):
    """Turns the name of a class into a list of its number; it takes the place of a parser of texts.

    Args:
        labels: the names.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        # Not that of CharParser: names are no vocabulary of letters, and may have white space in them.
        self.labels = tuple(labels)
        self.unknown, self.refused, self.unaccented = Counter[str](), Counter[str](), Counter[str]()
        self._number: Mapping[str, int] = {name: number for number, name in enumerate(self.labels)}

    def encode(self, text: str) -> list[int]:
        """A list of the number.

        Raises:
            UnknownClassError: there is no such class.
        """
        if text not in self._number:
            raise UnknownLabelError(f'class "{text}" is not in labels')
        return [self._number[text]]

    def check_letters(self, text: str, place: str) -> None:
        """Nothing: a name has no letters of a vocabulary."""

    def normalize(self, text: str) -> str:
        """The text as it is."""
        return text

    def without_marks(self, text: str) -> str:
        """The text as it is."""
        return text

    def describe(self) -> str:
        """How texts are read, in a few words."""
        return "names of classes"
