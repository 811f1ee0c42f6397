"""NeMo's parts below the modules: parsers, manifests, lists, data sets, features, layers.

They have NeMo's names and signatures around our own code. NeMo has them in modules of their own, ``parts.parsers`` and
others: see ``compat.py``. The data layers and modules of this package do not use them.
"""

from __future__ import annotations

import csv
import os
import string
import sys
from collections import UserList, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, TypeAlias

import torch
from msgspec import UNSET
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

import nemo_asr.models.jasper as jasper_blocks
from nemo_asr.augmentation import WaveformFeaturizer as WaveformFeaturizer
from nemo_asr.compat.kaldi import KaldiUtterances, matrix_of
from nemo_asr.data.labelled import of_length
from nemo_asr.features.augmentation import Rng, SpectrogramAugmentation
from nemo_asr.features.preprocessors import STD_FLOOR, AudioToMelSpectrogramPreprocessor, normalize_
from nemo_asr.features.spectra import frame_count
from nemo_asr.features.spectra import splice_frames as spliced
from nemo_asr.models.jasper import Frames, read_blocks, same_padding
from nemo_asr.models.speaker import pooled
from nemo_asr.run.arguments import look_up
from nemo_asr.run.manifest import ManifestPaths, read_lines
from nemo_asr.run.manifest_kinds import CLASS_KEYS, MANIFEST, Line
from nemo_asr.run.text import parser
from nemo_asr.run.text.english import say_abbreviations, say_numbers, without_accents
from nemo_lite.base.errors import DataError, UsageError, counted
from nemo_lite.base.files import FileKind, decode_text, read_text
from nemo_lite.base.files import numbered_lines as lines_of
from nemo_lite.utils import logging


def __getattr__(name: str) -> ModuleType:
    """NeMo's modules of parts, by name."""
    if f"{__name__}.{name}" in sys.modules:
        return sys.modules[f"{__name__}.{name}"]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


# Cleaning of English texts: the rules of `text.english`, in NeMo's steps.


def clean_text(
    string: str,
    table: Mapping[int, str | int | None],
    punctuation_to_replace: Mapping[str, str],
    abbreviation_version: str | None = None,
) -> str:
    """An English text as it is spoken, in small letters and with single spaces.

    Args:
        string: the text.
        table: what becomes of the remaining punctuation, as of ``str.maketrans``.
        punctuation_to_replace: a mark and its word: ``{"+": "plus"}``.
        abbreviation_version: taken for NeMo's sake; there is one list of abbreviations.
    """
    text = say_numbers(clean_abbreviations(" ".join(string.split()), abbreviation_version))
    text = clean_punctuations(without_accents(text.lower()), table, punctuation_to_replace)
    return " ".join(text.split())


def clean_numbers(string: str) -> str:
    """``string`` with numbers, dates, money and units in words."""
    return say_numbers(string)


def clean_abbreviations(string: str, version: str | None = None, expanded: bool = False) -> str:
    """``string`` with abbreviations in words; ``version`` and ``expanded`` are taken for NeMo's sake."""
    return say_abbreviations(string)


def clean_punctuations(
    string: str, table: Mapping[int, str | int | None], punctuation_to_replace: Mapping[str, str]
) -> str:
    """``string`` with the words of ``punctuation_to_replace`` for its marks, then with ``table``."""
    for mark, word in punctuation_to_replace.items():
        string = string.replace(mark, f" {word} ")
    return string.translate(table)


def warn_common_chars(string: str) -> None:
    """Nothing: NeMo warned here that pounds and euros are not read; `clean_text` reads them."""


# Parsers of texts: those of `text.parser`, for which an empty text is a list without ids.


class CharParser(parser.CharParser):
    """Turns a text into ids; see `nemo_asr.run.text.parser.CharParser` for the arguments."""

    def __call__(self, text: str) -> list[int] | None:
        """The ids, perhaps none; None for what is no text."""
        return self._to_ids(self._counted(text)) if isinstance(text, str) else None


class ENCharParser(CharParser, parser.ENCharParser):
    """The same for English.

    Args:
        abbreviation_version: taken for NeMo's sake; there is one list of abbreviations.
        labels: the vocabulary.
        settings: as those of `CharParser`.
    """

    def __init__(self, labels: Sequence[str], abbreviation_version: str | None = None, **settings: Any) -> None:
        super().__init__(labels, **settings)


NAME_TO_PARSER: dict[str, type[CharParser]] = {"base": CharParser, "en": ENCharParser}


def make_parser(labels: Sequence[str] | None = None, name: str = "base", **settings: Any) -> CharParser:
    """The parser called ``base`` or ``en``; ``labels`` default to printable ASCII.

    Raises:
        UnknownNameError: another name.
    """
    return look_up("parser", name, NAME_TO_PARSER)(string.printable if labels is None else labels, **settings)


# Manifests: their lines as NeMo's dictionaries. The data layers read them by `data.manifest`.


# Any: the values of a JSON object.
Fields: TypeAlias = dict[str, Any]
_TRANSCRIPT = FileKind("the text file", 1 << 20)


def item_iter(
    manifests_files: ManifestPaths, parse_func: Callable[[str, str], Fields] | None = None
) -> Iterator[Fields]:
    """``audio_file``, ``duration``, ``text``, ``offset``, ``speaker`` and ``id`` of each line; ids count over all.

    Args:
        manifests_files: one path, or a list of them.
        parse_func: makes such a dictionary (without ``id``) of a line and the path of its manifest.

    Raises:
        DataError: a file that cannot be read, or a line without audio, duration or text.
    """
    for number, (item, _) in enumerate(lines_and_items(manifests_files, parse_func)):
        yield {**item, "id": number}


def lines_and_items(
    manifests_files: ManifestPaths, parse_func: Callable[[str, str], Fields] | None = None, *, with_text: bool = True
) -> Iterator[tuple[Fields, Line | None]]:
    """The same without ids, each with its line where ``parse_func`` does not read it."""
    single = isinstance(manifests_files, (str, os.PathLike))
    paths: Sequence[str | os.PathLike[str]] = [manifests_files] if single else manifests_files  # type: ignore[list-item,assignment]  # mypy does not follow the flag
    for path in (os.path.expanduser(os.fspath(path)) for path in paths):
        if parse_func is not None:
            for _, written in numbered_lines(path):
                yield parse_func(written, path), None
            continue
        _, lines = read_lines(path, "audio")
        for place, line in lines:
            yield _item_of(line, path, place, with_text), line


def numbered_lines(path: str) -> Iterator[tuple[str, str]]:
    """The lines of a file that hold something, each with its place."""
    for place, line in lines_of(path, MANIFEST):
        yield place, decode_text(line, place, MANIFEST)


def _item_of(line: Line, manifest: str, place: str, with_text: bool) -> Fields:
    if line.duration is None:
        raise DataError("there is no duration", place=place, remedy="write the seconds of audio")
    if line.channel_number is not None:
        remedy = "leave it out for the average of all, or use AudioToTextDataLayer"
        raise DataError("NeMo's items know no channel", place=place, got=str(line.channel_number), remedy=remedy)
    # The path as written, or beside the manifest where that alone leads to a file.
    path = os.path.expanduser(line.path)
    beside = os.path.join(os.path.dirname(manifest), path)
    audio = beside if not os.path.exists(path) and os.path.exists(beside) else path
    speaker = None if line.speaker is UNSET else line.speaker
    item = {"audio_file": audio, "duration": line.duration, "offset": line.start, "speaker": speaker}
    return {**item, "text": _text_of(line, place)} if with_text else item


def _text_of(line: Line, place: str) -> str:
    if line.text is not None:
        return line.text
    if line.text_filepath:
        path = os.path.expanduser(line.text_filepath)
        return read_text(path, _TRANSCRIPT, place=f"{place}: {path}").replace("\n", "")
    if line.normalized_text is UNSET or line.normalized_text is None:
        problem = "there is no text, text_filepath or normalized_text"
        raise DataError(problem, place=place, remedy='write "text": "" where nothing is said')
    return line.normalized_text


# Lists of utterances and texts. `data.manifest` keeps no Python objects.


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
        path = os.path.expanduser(os.fspath(file))
        lines = (line.rstrip("\n") for _, line in numbered_lines(path))
        if path.endswith(".json"):
            lines = (item["text"] for item in item_iter(path))
        elif path.endswith(".csv"):
            lines = (row["transcript"] for row in csv.DictReader(lines))
        super().__init__(lines, parser)


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
            stems = (os.path.splitext(os.path.basename(row.audio_file))[0] for row in self.data)
            self.mapping = {stem: index for index, stem in enumerate(stems)}


class ASRAudioText(AudioText):
    """`AudioText` of manifests.

    Args:
        manifests_files: one path, or a list of them.
        settings: ``parser`` and the others of `AudioText`.
    """

    def __init__(self, manifests_files: ManifestPaths, **settings: Any) -> None:
        items = list(item_iter(manifests_files))
        ids, audio_files, durations, texts, offsets, speakers = _columns(
            items, "id", "audio_file", "duration", "text", "offset", "speaker"
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
        items, labels = list[Fields](), list[Any]()
        for item, line in lines_and_items(manifests_files, with_text=False):
            label = line.class_label if line else None
            if label is None:
                wanted = f"{', '.join(CLASS_KEYS[:-1])} or {CLASS_KEYS[-1]}"
                raise DataError("a line has no class", place=str(manifests_files), wanted=wanted)
            items.append(item)
            labels.append(label)
        audio_files, durations, offsets = _columns(items, "audio_file", "duration", "offset")
        super().__init__(audio_files, durations, labels, offsets, **settings)


def _columns(items: Sequence[Fields], *keys: str) -> list[list[Any]]:
    return [[item[key] for item in items] for key in keys]


# Data sets of torch, and their collate functions. The data layers have their own: `data.dataset`.


# Audio (T,) and its length, None without audio; ids (U,) and their number.
Item: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor, Tensor]


def seq_collate_fn(batch: Sequence[Item], token_pad_value: int = 0) -> Item:
    """Audio (B, T), its lengths (B,), ids (B, U), their numbers (B,), padded at the right; None for what is None."""
    audio, audio_lens, tokens, token_lens = zip(*batch, strict=True)
    ids = pad_sequence(list(tokens), batch_first=True, padding_value=token_pad_value)
    if audio_lens[0] is None:
        return None, None, ids, torch.stack(token_lens)
    return pad_sequence(list(audio), batch_first=True), torch.stack(audio_lens), ids, torch.stack(token_lens)


def fixed_seq_collate_fn(batch: Sequence[Item], fixed_length: int = 16000) -> Item:
    """As `seq_collate_fn`, with audio of one length: that, or the longest of the batch where this is shorter.

    Longer audio is cut at a random place, shorter audio is repeated, and what is then missing filled from its end. The
    lengths stay those of the items.
    """
    longest = max(len(audio) for audio, *_ in batch if audio is not None)
    size = min(fixed_length, longest)
    return seq_collate_fn([(_of_size(audio, size), *others) for audio, *others in batch])  # type: ignore[misc]  # mypy does not count the others


def _of_size(audio: Tensor | None, size: int) -> Tensor | None:
    if audio is None:
        return None
    first = int(torch.randint(len(audio) - size + 1, ())) if len(audio) > size else 0
    return torch.from_numpy(of_length(audio.numpy(), size, first))


class AudioDataset(Dataset[Any]):
    """Recordings and the ids of their texts, from manifests.

    Args:
        manifest_filepath: manifests separated by commas.
        labels: the vocabulary.
        featurizer: reads files.
        max_duration, min_duration: seconds, inclusive; None: no limit.
        max_utts: take no more; 0: all.
        blank_index, unk_index, normalize: see `CharParser`.
        trim: leave out silence at both ends.
        bos_id, eos_id: before and behind each text, or None.
        load_audio: False gives None instead of audio.
        parser: base or en.
        add_misc: an item is (the item, its ``id``, ``text_raw`` and ``speaker``).
    """

    def __init__(
        self,
        manifest_filepath: str,
        labels: Sequence[str],
        featurizer: WaveformFeaturizer,
        max_duration: float | None = None,
        min_duration: float | None = None,
        max_utts: int = 0,
        blank_index: int = -1,
        unk_index: int = -1,
        normalize: bool = True,
        trim: bool = False,
        bos_id: int | None = None,
        eos_id: int | None = None,
        load_audio: bool = True,
        parser: str = "en",
        add_misc: bool = False,
    ) -> None:
        self.parser = make_parser(labels, parser, unk_id=unk_index, blank_id=blank_index, do_normalize=normalize)
        self.collection = ASRAudioText(
            manifest_filepath.split(","),
            parser=self.parser,
            min_duration=min_duration,
            max_duration=max_duration,
            max_number=max_utts or None,
        )
        self.featurizer, self.trim, self.load_audio, self.add_misc = featurizer, trim, load_audio, add_misc
        self.bos_id, self.eos_id = bos_id, eos_id

    def __len__(self) -> int:
        return len(self.collection)

    def __getitem__(self, index: int) -> Any:
        sample = self.collection[index]
        ids = _surrounded(sample.text_tokens, self.bos_id, self.eos_id)
        item = (*_audio_of(self, sample), ids, torch.tensor(len(ids)))
        misc = {"id": sample.id, "text_raw": sample.text_raw, "speaker": sample.speaker}
        return (item, misc) if self.add_misc else item


class AudioLabelDataset(Dataset[Item]):
    """Recordings and the number of the class of each, from manifests.

    Args:
        manifest_filepath: manifests separated by commas.
        featurizer: reads files.
        labels: the classes; None: those of the manifest, sorted.
        max_duration, min_duration: seconds, inclusive; None: no limit.
        trim: leave out silence at both ends.
        load_audio: False gives None instead of audio.

    Attributes:
        labels, num_commands, label2id, id2label: the classes, how many, and their numbers.
    """

    def __init__(
        self,
        manifest_filepath: str,
        featurizer: WaveformFeaturizer,
        labels: Sequence[str] | None = None,
        max_duration: float | None = None,
        min_duration: float | None = None,
        trim: bool = False,
        load_audio: bool = True,
    ) -> None:
        limits = {"min_duration": min_duration, "max_duration": max_duration}
        self.collection = ASRSpeechLabel(manifest_filepath.split(","), **limits)
        self.featurizer, self.trim, self.load_audio = featurizer, trim, load_audio
        self.labels = list(labels or self.collection.uniq_labels)
        self.num_commands = len(self.labels)
        self.label2id = {label: number for number, label in enumerate(self.labels)}
        self.id2label = dict(enumerate(self.labels))

    def __len__(self) -> int:
        return len(self.collection)

    def __getitem__(self, index: int) -> Item:
        sample = self.collection[index]
        return (*_audio_of(self, sample), torch.tensor(self.label2id[sample.label]), torch.tensor(1))


class KaldiFeatureDataset(Dataset[Item]):
    """Features (D, T) that Kaldi computed, and the ids of their texts: see `KaldiUtterances`.

    Args:
        kaldi_dir: the folder with ``feats.scp`` and ``text``, and with ``utt2dur`` where a limit is given.
        labels: the vocabulary.
        min_duration, max_duration: seconds, inclusive; None: no limit.
        max_utts: take no more; 0: all.
        unk_index, blank_index, normalize: see `CharParser`.
        eos_id: behind each text, or None.
    """

    def __init__(
        self,
        kaldi_dir: str,
        labels: Sequence[str],
        min_duration: float | None = None,
        max_duration: float | None = None,
        max_utts: int = 0,
        unk_index: int = -1,
        blank_index: int = -1,
        eos_id: int | None = None,
        normalize: bool = True,
    ) -> None:
        limited = min_duration is not None or max_duration is not None
        self.utterances = KaldiUtterances.open(kaldi_dir, with_durations=limited).between(min_duration, max_duration)
        self.parser = make_parser(labels, unk_id=unk_index, blank_id=blank_index, do_normalize=normalize)
        self.eos_id, self._number = eos_id, min(max_utts or len(self.utterances), len(self.utterances))

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> Item:
        if not 0 <= index < self._number:
            raise IndexError(index)
        utterance = self.utterances.utterance(index)
        content = self.utterances.reader.audio(utterance)
        assert isinstance(content, bytes)
        features = torch.from_numpy(matrix_of(content)).T
        ids = _surrounded(self.parser(utterance.text) or [], None, self.eos_id)
        return features, torch.tensor(features.shape[1]), ids, torch.tensor(len(ids))


class TranscriptDataset(Dataset[tuple[Tensor, Tensor]]):
    """The ids of the texts of a file, and how many: see `FromFileText`.

    Args:
        path: the file.
        labels: the vocabulary.
        bos_id, eos_id: before and behind each text, or None.
        lowercase: lower the case.
    """

    def __init__(
        self,
        path: str,
        labels: Sequence[str],
        bos_id: int | None = None,
        eos_id: int | None = None,
        lowercase: bool = True,
    ) -> None:
        self.texts = FromFileText(path, make_parser(labels, do_lowercase=lowercase))
        self.bos_id, self.eos_id = bos_id, eos_id

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor]:
        ids = _surrounded(self.texts[item].tokens, self.bos_id, self.eos_id)
        return ids, torch.tensor(len(ids))


def _surrounded(ids: Sequence[int], bos_id: int | None, eos_id: int | None) -> Tensor:
    before, after = ([] if one is None else [one] for one in (bos_id, eos_id))
    return torch.tensor([*before, *ids, *after], dtype=torch.long)


def _audio_of(dataset: AudioDataset | AudioLabelDataset, sample: Any) -> tuple[Tensor | None, Tensor | None]:
    if not dataset.load_audio:
        return None, None
    offset = sample.offset or 0
    audio = dataset.featurizer.process(sample.audio_file, offset, max(sample.duration, 0), dataset.trim)
    return audio, torch.tensor(len(audio))


# Features as plain functions and torch modules.


CONSTANT = STD_FLOOR
_OVER = {"per_feature": (2,), "all_features": (1, 2)}


class FeaturizerFactory:
    """Makes featurizers."""

    @classmethod
    def from_config(cls, featurizer_cfg: Mapping[str, Any], perturbation_configs: Any = None) -> WaveformFeaturizer:
        """See `WaveformFeaturizer.from_config`."""
        return WaveformFeaturizer.from_config(featurizer_cfg, perturbation_configs)


class FilterbankFeatures(nn.Module):
    """Log-mel features as a module that is no part of a DAG: see `AudioToMelSpectrogramPreprocessor`.

    Args:
        sample_rate: Hz.
        n_window_size: samples of a frame's window.
        n_window_stride: samples from frame to frame.
        nfilt: mel bands.
        max_duration: taken for NeMo's sake.
        settings: as those of `AudioToMelSpectrogramPreprocessor`.
    """

    def __init__(
        self,
        sample_rate: int = 16000,
        n_window_size: int = 320,
        n_window_stride: int = 160,
        window: str | None = "hann",
        normalize: Any = "per_feature",
        n_fft: int | None = None,
        preemph: float | None = 0.97,
        nfilt: int = 64,
        max_duration: float = 16.7,
        **settings: Any,
    ) -> None:
        super().__init__()
        frames: dict[str, Any] = {"window_size": None, "n_window_size": n_window_size}
        frames |= {"window_stride": None, "n_window_stride": n_window_stride, "n_fft": n_fft}
        settings = {"std_floor": 0.0, **settings}  # NeMo's numbers
        settings |= {"window": window, "normalize": normalize, "preemph": preemph, "features": nfilt}
        self.preprocessor = AudioToMelSpectrogramPreprocessor(sample_rate, **frames, **settings)

    @property
    def filter_banks(self) -> torch.Tensor:
        """(1, nfilt, n_fft / 2 + 1)."""
        return self.preprocessor.filter_banks

    def get_seq_len(self, seq_len: torch.Tensor) -> torch.Tensor:
        """(B,) frames of so many samples, int64."""
        return frame_count(seq_len.long(), self.preprocessor.hop_length)

    def forward(self, x: torch.Tensor, seq_len: torch.Tensor) -> torch.Tensor:
        """(B, T) samples and how many are valid (B,) -> (B, D, U) features."""
        features: torch.Tensor = self.preprocessor(x, seq_len)[0]
        return features


def normalize_batch(x: torch.Tensor, seq_len: torch.Tensor, normalize_type: Any) -> torch.Tensor:
    """Features (B, D, T) with mean 0 and deviation 1 over the valid frames (B,); zeros behind them.

    Args:
        x: the features; they stay as they are.
        seq_len: how many frames are valid.
        normalize_type: per_feature, all_features, or ``{"fixed_mean": [...], "fixed_std": [...]}``; any other leaves
            the features as they are.
    """
    if isinstance(normalize_type, Mapping):
        mean, deviation = (
            torch.as_tensor(list(normalize_type[key]), device=x.device, dtype=x.dtype)[:, None]
            for key in ("fixed_mean", "fixed_std")
        )
        return (x - mean) / deviation
    return normalize_(x.clone(), seq_len, _OVER[normalize_type]) if normalize_type in _OVER else x


def splice_frames(x: torch.Tensor, frame_splicing: int) -> torch.Tensor:
    """Each ``frame_splicing`` neighbouring frames as one: (B, D, T) -> (B, n D, ceil(T / n))."""
    missing = -x.shape[2] % frame_splicing
    return spliced(nn.functional.pad(x, (0, missing)), frame_splicing)


# SpecAugment and SpecCutout: `SpectrogramAugmentation` is both.


class SpecAugment(nn.Module):
    """Bands and stretches of zeros; acts whenever it is called, in evaluation too, as in NeMo.

    Args:
        freq_masks, time_masks: how many.
        freq_width: features of the widest band.
        time_width: frames of the widest stretch, or their share of all.
        rng: generator of the draws.
    """

    def __init__(
        self,
        freq_masks: int = 0,
        time_masks: int = 0,
        freq_width: int = 10,
        time_width: int | float = 10,
        rng: Rng | None = None,
    ) -> None:
        super().__init__()
        self._masks = SpectrogramAugmentation(freq_masks, time_masks, freq_width, time_width, rng=rng)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, D, T) with masked parts 0."""
        return _masked(self._masks, x)


class SpecCutout(nn.Module):
    """Rectangles of zeros; acts whenever it is called, in evaluation too, as in NeMo.

    Args:
        rect_masks: how many.
        rect_time: frames of the widest.
        rect_freq: features of the widest.
        rng: generator of the draws.
    """

    def __init__(self, rect_masks: int = 0, rect_time: int = 5, rect_freq: int = 20, rng: Rng | None = None) -> None:
        super().__init__()
        self._masks = SpectrogramAugmentation(rect_masks=rect_masks, rect_time=rect_time, rect_freq=rect_freq, rng=rng)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, D, T) with masked parts 0."""
        return _masked(self._masks, x)


def _masked(masks: SpectrogramAugmentation, x: torch.Tensor) -> torch.Tensor:
    spectrogram: torch.Tensor = masks.train()(x)
    return spectrogram


# Layers of Jasper: NeMo's arguments and results around those of `models.jasper`.


Swish = nn.SiLU
jasper_activations = jasper_blocks.ACTIVATIONS


def init_weights(m: nn.Module, mode: str = "xavier_uniform") -> None:
    """Draw the weights of a convolution or a linear layer anew; ``module.apply`` calls this for each.

    Raises:
        UnknownNameError: there is no initialisation of this name.
    """
    if isinstance(m, (nn.Conv1d, nn.Linear)):
        jasper_blocks.init_weights(m, mode, "init_weights")


def compute_new_kernel_size(kernel_size: int, kernel_width: float) -> int:
    """``kernel_size * kernel_width`` rounded down, at least 1, then up to the next odd number."""
    return max(int(kernel_size * kernel_width), 1) | 1


def get_same_padding(kernel_size: int, stride: int, dilation: int) -> int:
    """Zeros on each side that keep the number of frames at stride 1.

    Raises:
        UsageError: stride and dilation are both above 1, or the kernel is even.
    """
    if stride > 1 and dilation > 1:
        got = f"stride {stride} and dilation {dilation}"
        raise UsageError("only one of stride and dilation may be above 1", place="get_same_padding", got=got)
    return same_padding(kernel_size, dilation)


class MaskedConv1d(nn.Module):
    """A convolution over time that is not to see what lies behind an utterance.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias: as those of ``nn.Conv1d``.
        heads: filters that the channels of a depthwise convolution share; -1: none is shared.
        use_mask: write zeros behind each utterance first.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        groups: int = 1,
        heads: int = -1,
        bias: bool = False,
        use_mask: bool = True,
    ) -> None:
        super().__init__()
        if heads != -1 and not in_channels == out_channels == groups:
            raise UsageError("heads need a depthwise convolution", place="MaskedConv1d", got=f"{groups} groups")
        self.heads, self.use_mask = heads, use_mask
        sizes = (heads, heads) if heads != -1 else (in_channels, out_channels)
        shared = groups if heads == -1 else heads
        self.conv = nn.Conv1d(*sizes, kernel_size, stride, padding, dilation, shared, bias)

    def get_seq_len(self, lens: Tensor) -> Tensor:
        """(B,) frames out of so many frames in."""
        window = self.conv.dilation[0] * (self.conv.kernel_size[0] - 1) + 1
        return (lens + 2 * int(self.conv.padding[0]) - window) // self.conv.stride[0] + 1

    def forward(self, x: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C_in, T) and the valid frames (B,) -> (B, C_out, U) and the valid frames."""
        if self.use_mask:
            x, lens = Frames(lens).masked(x), self.get_seq_len(lens)
        if self.heads == -1:
            return self.conv(x), lens
        out: Tensor = self.conv(x.reshape(-1, self.heads, x.shape[2]))
        return out.reshape(x.shape[0], x.shape[1], -1), lens


class GroupShuffle(jasper_blocks.GroupShuffle):
    """Deals the channels of each group out over all groups.

    Args:
        groups: how many.
        channels: channels in all.
    """

    def __init__(self, groups: int, channels: int) -> None:
        super().__init__(groups)
        self.channels_per_group = channels // groups


class SqueezeExcite(jasper_blocks.SqueezeExcite):
    """Squeeze-and-excitation over all frames of a batch; see `nemo_asr.models.jasper.SqueezeExcite`."""

    def forward(self, x: Tensor, frames: Frames | None = None) -> Tensor:
        """(B, C, T) -> (B, C, T)."""
        return super().forward(x, frames or _all_frames(x))


class StatsPoolLayer(nn.Module):
    """Mean and standard deviation of each channel over time, and with ``gram`` the products of pairs of channels.

    Args:
        gram: products of pairs of channels only.
        super_vector: products, mean and deviation.
    """

    def __init__(self, gram: bool = False, super_vector: bool = False) -> None:
        super().__init__()
        self.mode = "superVector" if super_vector else "gram" if gram else "xvector"

    def forward(self, encoder_output: Tensor) -> Tensor:
        """(B, C, T) -> (B, 2C), or (B, C * C), or (B, C * C + 2C)."""
        return pooled(encoder_output, None, self.mode)


class JasperBlock(jasper_blocks.JasperBlock):
    """A block of Jasper; its arguments are NeMo's, see `JasperBlockSpec` for what they mean.

    Args:
        inplanes: channels in.
        planes: channels out.
        padding: "same".
        residual_panes: channels of the inputs that a dense block adds.
    """

    def __init__(
        self,
        inplanes: int,
        planes: int,
        repeat: int = 3,
        kernel_size: int | Sequence[int] = 11,
        kernel_size_factor: float = 1,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        padding: str = "same",
        dropout: float = 0.2,
        activation: nn.Module | None = None,
        residual: bool = True,
        groups: int = 1,
        separable: bool = False,
        heads: int = -1,
        normalization: str = "batch",
        norm_groups: int = 1,
        residual_mode: str = "add",
        residual_panes: Sequence[int] = (),
        conv_mask: bool = False,
        se: bool = False,
        se_reduction_ratio: int = 16,
        se_context_window: int | None = None,
        se_interpolation_mode: str = "nearest",
        stride_last: bool = False,
    ) -> None:
        if padding != "same":
            raise UsageError("padding is not supported", place="JasperBlock", got=str(padding), wanted='"same"')
        block = {
            "filters": planes,
            "repeat": repeat,
            "kernel": kernel_size,
            "stride": stride,
            "dilation": dilation,
            "dropout": dropout,
            "residual": residual,
            "groups": groups,
            "residual_dense": bool(residual_panes),
            "residual_mode": residual_mode,
            "separable": separable,
            "heads": heads,
            "se": se,
            "se_reduction_ratio": se_reduction_ratio,
            "se_context_window": -1 if se_context_window is None else se_context_window,
            "se_interpolation_mode": se_interpolation_mode,
            "kernel_size_factor": kernel_size_factor,
            "stride_last": stride_last,
        }
        (spec,) = read_blocks([block])
        super().__init__(
            inplanes,
            spec,
            activation=activation or nn.Hardtanh(0.0, 20.0),
            normalization_mode=normalization,
            norm_groups=norm_groups,
            residual_channels=residual_panes,
            conv_mask=conv_mask,
        )
        self.conv_mask = conv_mask

    def forward(  # type: ignore[override]  # one pair in, as in NeMo
        self, input_: tuple[list[Tensor], Tensor | None]
    ) -> tuple[list[Tensor], Tensor]:
        """Inputs (B, C, T), the block's own last, and the valid frames (B,) -> the same of the next block."""
        inputs, lens = input_
        frames = _all_frames(inputs[-1]) if lens is None else Frames(lens.long(), self.conv_mask)
        outputs, out_frames = super().forward([frames.masked(x) for x in inputs], frames)
        return outputs, out_frames.lengths


def _all_frames(x: Tensor) -> Frames:
    return Frames(torch.full((x.shape[0],), x.shape[2], device=x.device), is_masking=False)
