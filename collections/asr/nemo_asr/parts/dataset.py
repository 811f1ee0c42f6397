"""NeMo's data sets of torch and their collate functions. The data layers have their own: ``data/dataset.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from nemo_asr.audio.augmentation import WaveformFeaturizer
from nemo_asr.data.kaldi import KaldiUtterances, matrix_of
from nemo_asr.data.labelled import of_length
from nemo_asr.parts.collections import ASRAudioText, ASRSpeechLabel, FromFileText
from nemo_asr.parts.parsers import make_parser

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
