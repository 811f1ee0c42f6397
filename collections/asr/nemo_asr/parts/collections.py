"""NeMo's lists of utterances and texts. The data layers use ``data/manifest.py``, which keeps no Python objects."""

from __future__ import annotations

import csv
import os
from collections import UserList, namedtuple
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, TypeAlias

from nemo_asr.data.manifest import CLASS_KEYS, ManifestPaths
from nemo_asr.parts.manifest import item_iter, lines_and_items, numbered_lines
from nemo_lite.errors import DataError, counted
from nemo_lite.utils import logging

# Any: what a manifest holds, and rows of named tuples whose fields depend on the class.
Parser: TypeAlias = Callable[[str], "list[int] | None"]


TextEntity = namedtuple("TextEntity", "tokens")
AudioTextEntity = namedtuple("AudioTextEntity", "id audio_file duration text_tokens offset text_raw speaker")
SpeechLabelEntity = namedtuple("SpeechLabelEntity", "audio_file duration label offset")


class _Collection(UserList[Any]):
    """A list of named tuples of ``OUTPUT_TYPE``."""

    OUTPUT_TYPE: ClassVar[type[Any]]

    def _keep(
        self,
        rows: Iterable[Any],
        min_duration: float | None,
        max_duration: float | None,
        max_number: int | None,
        sort: bool,
    ) -> None:
        """Take the rows within the limits, inclusive, at most ``max_number`` of them; say what is left out."""
        left_out, seconds = 0, 0.0
        for row in rows:
            if (min_duration is not None and row.duration < min_duration) or (
                max_duration is not None and row.duration > max_duration
            ):
                left_out, seconds = left_out + 1, seconds + row.duration
            else:
                self.data.append(row)
            if len(self.data) == max_number:
                break
        if sort:
            self.data.sort(key=lambda row: row.duration)
        hours = sum(row.duration for row in self.data) / 3600
        text = (
            f"{counted(len(self.data), 'utterance')} kept ({hours:.2f} h), {left_out} left out ({seconds / 3600:.2f} h)"
        )
        logging.info(f"{type(self).__name__}: {text}")


class Text(_Collection):
    """Texts as ids; those that the parser refuses (None) are left out.

    Args:
        texts: the texts.
        parser: from a text to ids.
    """

    OUTPUT_TYPE = TextEntity

    def __init__(self, texts: Iterable[str], parser: Parser) -> None:
        super().__init__(self.OUTPUT_TYPE(tokens) for tokens in map(parser, texts) if tokens is not None)


class FromFileText(Text):
    """The texts of a file: the column ``transcript`` of a CSV, the texts of a manifest (``.json``), or its lines.

    Args:
        file: its path.
        parser: from a text to ids.
    """

    def __init__(self, file: str | os.PathLike[str], parser: Parser) -> None:
        super().__init__(_texts_of(os.path.expanduser(os.fspath(file))), parser)


class AudioText(_Collection):
    """Utterances within a range of durations; those whose text the parser refuses (None) are left out.

    Args:
        ids, audio_files, durations, texts, offsets, speakers: one value for each.
        parser: from a text to ids.
        min_duration, max_duration: seconds, inclusive; None: no limit.
        max_number: take no more.
        do_sort_by_duration: the shortest first.
        index_by_file_id: make ``mapping``, from a file's base name without suffix to its index; then nothing is sorted.
    """

    OUTPUT_TYPE = AudioTextEntity

    def __init__(
        self,
        ids: Iterable[int],
        audio_files: Iterable[str],
        durations: Iterable[float],
        texts: Iterable[str],
        offsets: Iterable[float | None],
        speakers: Iterable[object],
        parser: Parser,
        min_duration: float | None = None,
        max_duration: float | None = None,
        max_number: int | None = None,
        do_sort_by_duration: bool = False,
        index_by_file_id: bool = False,
    ) -> None:
        super().__init__()
        if index_by_file_id and do_sort_by_duration:
            logging.warning("AudioText: do_sort_by_duration has no effect with index_by_file_id")
        columns = zip(ids, audio_files, durations, texts, offsets, speakers, strict=False)
        parsed = ((one, file, sec, parser(text), offset, text, who) for one, file, sec, text, offset, who in columns)
        rows = (self.OUTPUT_TYPE(*row) for row in parsed if row[3] is not None)
        sort = do_sort_by_duration and not index_by_file_id
        self._keep(rows, min_duration, max_duration, max_number, sort)
        if index_by_file_id:
            self.mapping = {_file_id(row.audio_file): index for index, row in enumerate(self.data)}


class ASRAudioText(AudioText):
    """`AudioText` of manifests.

    Args:
        manifests_files: one path, or a list of them.
        settings: ``parser`` and the others of `AudioText`.
    """

    def __init__(self, manifests_files: ManifestPaths, **settings: Any) -> None:
        items = list(item_iter(manifests_files))
        ids, audio_files, durations, texts, offsets, speakers = (
            [item[key] for item in items] for key in ("id", "audio_file", "duration", "text", "offset", "speaker")
        )
        super().__init__(ids, audio_files, durations, texts, offsets, speakers, **settings)


class SpeechLabel(_Collection):
    """Recordings and the class of each, within a range of durations.

    Args:
        audio_files, durations, labels, offsets: one value for each.
        min_duration, max_duration: seconds, inclusive; None: no limit.
        max_number: take no more.
        do_sort_by_duration: the shortest first.

    Attributes:
        uniq_labels: the classes, sorted.
    """

    OUTPUT_TYPE = SpeechLabelEntity

    def __init__(
        self,
        audio_files: Iterable[str],
        durations: Iterable[float],
        labels: Iterable[str | int],
        offsets: Iterable[float | None],
        min_duration: float | None = None,
        max_duration: float | None = None,
        max_number: int | None = None,
        do_sort_by_duration: bool = False,
    ) -> None:
        super().__init__()
        rows = (self.OUTPUT_TYPE(*row) for row in zip(audio_files, durations, labels, offsets, strict=False))
        self._keep(rows, min_duration, max_duration, max_number, do_sort_by_duration)
        self.uniq_labels = sorted({row.label for row in self.data})


class ASRSpeechLabel(SpeechLabel):
    """`SpeechLabel` of manifests: the class is under ``command``, ``target`` or ``label``.

    Args:
        manifests_files: one path, or a list of them.
        settings: those of `SpeechLabel`.
    """

    def __init__(self, manifests_files: ManifestPaths, **settings: Any) -> None:
        items, labels = list[dict[str, Any]](), list[Any]()
        for item, line in lines_and_items(manifests_files, with_text=False):
            label = line.class_label if line else None
            if label is None:
                wanted = f"{', '.join(CLASS_KEYS[:-1])} or {CLASS_KEYS[-1]}"
                raise DataError("a line has no class", place=str(manifests_files), wanted=wanted)
            items.append(item)
            labels.append(label)
        audio_files, durations, offsets = (
            [item[key] for item in items] for key in ("audio_file", "duration", "offset")
        )
        super().__init__(audio_files, durations, labels, offsets, **settings)


def _texts_of(path: str) -> Iterator[str]:
    if path.endswith(".json"):
        return (item["text"] for item in item_iter(path))
    lines = (line.rstrip("\n") for _, line in numbered_lines(path))
    return (row["transcript"] for row in csv.DictReader(lines)) if path.endswith(".csv") else lines


def _file_id(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]
