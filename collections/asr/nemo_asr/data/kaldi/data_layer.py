"""KaldiFeatureDataLayer: features that Kaldi computed, and their texts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nemo_asr.arguments import BatchSize, Duration, FilePath, LabelId, Labels, PadId, Unusable, Word, Workers
from nemo_asr.audio.reading import Samples
from nemo_asr.data.dataset import Item, Reading, SpeechDataset, collate
from nemo_asr.data.kaldi.folder import KaldiRef, KaldiUtterances
from nemo_asr.data.kaldi.matrices import matrix_of
from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_asr.data.utterances import Utterance, check_limits
from nemo_asr.text.parser import make_parser
from nemo_lite.backends.pytorch.data import Batching, CostWords, Counts
from nemo_lite.core.neural_types import AxisKind, AxisType, LabelsType, LengthsType, NeuralType, SpectrogramType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, symbol
from nemo_lite.errors import DataError

_WORDS = CostWords("max_batch_seconds", "utterance", " s", "raise it, or lower max_duration")


class FeatureDataset(SpeechDataset[KaldiRef]):
    """Features and label ids; a batch is features (B, D, T), lengths (B,), ids (B, U), their lengths (B,)."""

    def samples(self, utterance: Utterance, counts: Counts) -> Samples:
        """Features (T, D)."""
        content = self.reader.audio(utterance)
        assert isinstance(content, bytes)
        try:
            return matrix_of(content)
        except DataError as error:
            problem = f"{utterance.audio_path}: {error.problem}"
            raise DataError(problem, place=utterance.place, got=error.got, wanted=error.wanted) from None

    def collate(self, items: Sequence[Item]) -> tuple[Tensor, ...]:
        """Features padded with zeros, labels with ``pad_id``."""
        features, labels = zip(*items, strict=True)
        lengths = np.array([len(frames) for frames in features], np.int64)
        padded = np.zeros((len(features), features[0].shape[1], lengths.max()), np.float32)
        for row, frames in zip(padded, features, strict=True):
            row[:, : len(frames)] = frames.T
        nothing = [np.zeros(0, np.float32)] * len(labels)
        _, _, *texts = collate(nothing, labels, self.reading.pad_id or 0)
        return torch.from_numpy(padded), torch.from_numpy(lengths), *texts

    def amount(self, items: Sequence[Item]) -> float:
        """Frames, without padding."""
        return float(sum(len(features) for features, _ in items))


class KaldiFeatureDataLayer(SpeechDataLayer):
    """Utterances of a Kaldi data folder: features (B, D, T), label ids (B, U), and their lengths (B,).

    The folder has ``feats.scp`` (``NAME FILE:BYTE``), ``text`` (``NAME WORDS``) and perhaps ``utt2dur`` (``NAME
    SECONDS``). Features are binary matrices, plain or compressed (FM, DM, CM, CM2, CM3); each is read when a batch
    needs it. Paths are taken as they are written, from the working directory; one that leads nowhere starts at
    the folder. Commands in ``feats.scp`` are refused.

    The order, texts that are missing, and damaged features are as in `AudioToTextDataLayer`.

    Args:
        kaldi_dir: the folder.
        labels: the vocabulary; a label's position is its id.
        batch_size: utterances in a batch on one rank; -1 for the whole set.
        min_duration: seconds; shorter utterances are left out and counted. Needs ``utt2dur``.
        max_duration: seconds; longer utterances are left out and counted. Needs ``utt2dur``.
        normalize_transcripts: let the parser rewrite texts (case, white space, numbers), or take them as they are.
        drop_last: in training, leave out the utterances that do not fill the last step.
        shuffle: in training, another order in each epoch.
        num_workers: processes that load batches; 0 loads in this one. None: 0, or a GPU's share of the cores.
        bos_id: id before each text, or None.
        eos_id: id after each text, or None.
        pad_id: id that fills up shorter texts; None is 0.
        bucketing: in training, utterances of similar duration in a batch, and batches of equal cost on all ranks.
        max_corrupt: as of `AudioToTextDataLayer`.
        parser: as of `AudioToTextDataLayer`.
        language: as of `AudioToTextDataLayer`.
        pin_memory: page-locked tensors, which go to a GPU faster. None: where there is one.
        strip_marks: as of `AudioToTextDataLayer`.
        name: the module's name.

    Raises:
        UsageError: a limit without ``utt2dur``, or arguments that contradict each other.
        DataError: a file is missing or has lines that are not valid; features that are missing, damaged, in text form,
            or differ in the number of features.
        ConfigError: labels that cannot be a vocabulary.
    """

    amount_unit: ClassVar[str] = "frames"
    remedy: ClassVar[str] = "make the features again, delete their lines, or raise max_corrupt"

    def __init__(
        self,
        kaldi_dir: FilePath | os.PathLike[str],
        labels: Labels,
        batch_size: BatchSize,
        min_duration: Duration | None = None,
        max_duration: Duration | None = None,
        normalize_transcripts: bool = True,
        drop_last: bool = False,
        shuffle: bool = True,
        num_workers: Workers | None = None,
        bos_id: LabelId | None = None,
        eos_id: LabelId | None = None,
        pad_id: PadId | None = None,
        bucketing: bool = False,
        max_corrupt: Unusable | None = None,
        parser: Word = "auto",
        language: Word | None = None,
        pin_memory: bool | None = None,
        name: str | None = None,
        strip_marks: bool | None = None,
    ) -> None:
        new_parser = partial(
            make_parser,
            labels,
            parser,
            do_normalize=normalize_transcripts,
            do_lowercase=None,
            language=language,
            strip_marks=strip_marks,
        )
        new_parser()
        check_limits(min_duration, max_duration)
        has_limits = bool(min_duration) or max_duration is not None
        utterances = KaldiUtterances.open(kaldi_dir, with_durations=has_limits)
        self._num_features = utterances.num_features
        super().__init__(
            utterances.between(min_duration, max_duration),
            new_parser,
            reading=Reading(bos_id=bos_id, eos_id=eos_id, pad_id=pad_id),
            batching=Batching(batch_size, shuffle, bucketing, drop_last, words=_WORDS),
            max_corrupt=max_corrupt,
            num_workers=num_workers,
            pin_memory=pin_memory,
            name=name,
        )

    @property
    def output_ports(self) -> Ports:
        """Features and text of a batch, each with its lengths."""
        features = AxisType(AxisKind.Dimension, self._num_features)
        axes = (AxisType(AxisKind.Batch), features, AxisType(AxisKind.Time))
        return {
            "processed_signal": NeuralType(axes, SpectrogramType()),
            "processed_length": NeuralType("B", LengthsType()),
            "transcripts": NeuralType("B T", LabelsType()),
            "transcript_length": NeuralType("B", LengthsType()),
        }

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """Frames and labels, each with a name of its own."""
        batch = (symbol("B"),)
        features, text = (*batch, self._num_features, symbol("frames")), (*batch, symbol("U"))
        return dict(zip(self.output_ports, (features, batch, text, batch), strict=True))

    def lengths_in_samples(self) -> npt.NDArray[np.int64]:
        """(N,) frames of each utterance: this layer gives no samples."""
        assert isinstance(self.utterances, KaldiUtterances)
        return self.utterances.num_frames

    def _new_dataset(self, seed: int = 0) -> SpeechDataset[Any]:
        return FeatureDataset(self.utterances.reader, self.new_parser(), self._reading, seed=seed)
