"""AudioToTextDataLayer: transcribed speech from manifests as typed wires. Reading and ordering are in other files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from nemo_asr.audio.augmentor import AudioAugmentor
from nemo_asr.data import preflight
from nemo_asr.data.dataset import AudioTextDataset, Reading
from nemo_asr.data.loading import Account, AudioTextLoader
from nemo_asr.data.manifest import Manifest
from nemo_asr.data.preflight import Infeasible
from nemo_asr.text.parser import make_parser
from nemo_lite.backends.pytorch.data import Batching, CostWords, Shard, plans
from nemo_lite.backends.pytorch.nm import DataLayerNM
from nemo_lite.core.neural_types import AudioSignal, LabelsType, LengthsType, NeuralType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, symbol
from nemo_lite.errors import UsageError
from nemo_lite.utils import logging
from nemo_lite.utils.digests import digest_of, digest_of_files

# A night's run survives one unusable utterance in a thousand; a small set ten, but no more than a tenth of it.
_CORRUPT_SHARE, _CORRUPT_COUNT, _CORRUPT_MOST = 0.001, 10, 0.1
_WORDS = CostWords("max_batch_seconds", "utterance", " s", "raise it, or lower max_duration")


class AudioToTextDataLayer(DataLayerNM):
    """Utterances of JSON-lines manifests: audio (B, T) at ``sample_rate``, label ids (B, U), and their lengths (B,).

    Every manifest line is checked here; of at most 20,000 lines, evenly spread, also whether the audio file is there
    and the vocabulary can write the text. What cannot be used later (a damaged file) is skipped in training, counted,
    and listed at the end of the epoch; see ``max_corrupt``.

    Args:
        manifest_filepath: one manifest, several separated by commas, or a list.
        labels: the vocabulary; a label's position is its id.
        batch_size: utterances in a batch on one rank; -1 for the whole set.
        sample_rate: samples a second; files of another rate are resampled.
        int_values: read through 32-bit integers: floats beyond full scale are clipped.
        bos_id: id before each text, or None.
        eos_id: id after each text, or None.
        pad_id: id that fills up shorter texts; None is 0.
        min_duration: seconds; shorter utterances are left out and counted.
        max_duration: seconds; longer utterances are left out and counted. None: no limit.
        normalize_transcripts: let the parser rewrite texts (case, white space, numbers), or take them as they are.
        trim_silence: leave out what is more than 60 dB below the loudest part at both ends.
        load_audio: False gives audio of no samples, for work on the texts.
        drop_last: in training, leave out the utterances that do not fill the last step.
        shuffle: in training, another order in each epoch.
        num_workers: processes that load batches; 0 loads in this one.
        augmentor: perturbations in training, ``{name: {prob: ..., ...}}`` or an `AudioAugmentor`.
        bucketing: in training, utterances of similar duration in a batch, and batches of equal cost on all ranks.
        max_batch_seconds: with bucketing, at most so many seconds in a batch, padding included.
        max_corrupt: how many utterances may be unusable on all ranks together (below 1: which share) before the run
            ends. None: in training one in a thousand, or ten where that is more, but never over a tenth; in evaluation
            none.
        parser: ``en`` (English: numbers, abbreviations) or ``base`` (any language).
        pin_memory: page-locked tensors, which go to a GPU faster.
        name: the module's name.

    Raises:
        UsageError: arguments that contradict each other.
        DataError: a manifest that is missing, empty or has lines that are not valid; audio files that are not there.
        ConfigError: labels that cannot be a vocabulary.
    """

    amount_unit: ClassVar[str] = "audio-s"

    def __init__(
        self,
        manifest_filepath: str | Sequence[str],
        labels: Sequence[str],
        batch_size: int,
        sample_rate: int = 16000,
        int_values: bool = False,
        bos_id: int | None = None,
        eos_id: int | None = None,
        pad_id: int | None = None,
        min_duration: float | None = 0.1,
        max_duration: float | None = None,
        normalize_transcripts: bool = True,
        trim_silence: bool = False,
        load_audio: bool = True,
        drop_last: bool = False,
        shuffle: bool = True,
        num_workers: int = 0,
        augmentor: Mapping[str, Any] | AudioAugmentor | None = None,
        bucketing: bool = False,
        max_batch_seconds: float | None = None,
        max_corrupt: float | None = None,
        parser: str = "en",
        pin_memory: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        _check_least(sample_rate=(sample_rate, 1), num_workers=(num_workers, 0))
        self.batch_size, self.num_workers, self.pin_memory = batch_size, num_workers, pin_memory
        self._batching = Batching(batch_size, shuffle, bucketing, drop_last, max_batch_seconds, _WORDS)
        self._reading = Reading(sample_rate, int_values, trim_silence, load_audio, bos_id, eos_id, pad_id)
        self._make_parser = partial(make_parser, labels, parser, do_normalize=normalize_transcripts)
        self._augmentor = _augmentor_of(augmentor)
        self._max_corrupt = _checked_max_corrupt(max_corrupt)
        text_parser = self._make_parser()
        manifest = Manifest.open(manifest_filepath, min_duration=min_duration, max_duration=max_duration)
        self.manifest, self._all_seen = preflight.checked(manifest, text_parser, files_too=load_audio)
        self._accounts: dict[bool, Account] = {}
        self._tell(text_parser.report())

    @property
    def output_ports(self) -> Ports:
        """Audio and text of a batch, each with its lengths."""
        return {
            "audio_signal": NeuralType("B T", AudioSignal(freq=self._reading.sample_rate)),
            "a_sig_length": NeuralType("B", LengthsType()),
            "transcripts": NeuralType("B T", LabelsType()),
            "transcript_length": NeuralType("B", LengthsType()),
        }

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """Samples and labels, each with a name of its own: both are time axes, but not the same time."""
        batch = symbol("B")
        return {
            "audio_signal": (batch, symbol("samples")),
            "a_sig_length": (batch,),
            "transcripts": (batch, symbol("U")),
            "transcript_length": (batch,),
        }

    def __len__(self) -> int:
        return len(self.manifest)

    @property
    def durations(self) -> npt.NDArray[np.float32]:
        """(N,) seconds of each utterance, as the manifest says."""
        return self.manifest.durations

    def lengths_in_samples(self) -> npt.NDArray[np.int64]:
        """(N,) samples of each utterance, by its duration in the manifest."""
        return preflight.lengths_in_samples(self.manifest, self._reading.sample_rate)

    def infeasible(self, frames_of: Callable[[int], int]) -> list[Infeasible]:
        """The utterances whose text needs more frames than there are; see `preflight.infeasible`. Reads every line.

        Args:
            frames_of: frames out of the encoder for a number of samples.
        """
        return preflight.infeasible(self.manifest, self._dataset(), frames_of)

    def leave_out(self, rows: Sequence[int], reason: str) -> None:
        """Go on without the utterances at these positions. Those behind them move up.

        Args:
            rows: positions, from 0 to ``len(self) - 1``.
            reason: completes "12 ..." in the summary of what was kept and dropped.

        Raises:
            DataError: nothing would be left.
        """
        refused = np.zeros(len(self), bool)
        refused[list(rows)] = True
        self.manifest = self.manifest.without(refused, reason)
        self._accounts.clear()  # they know utterances by their positions

    def place_of(self, item: int) -> str:
        """``manifest:line`` of the utterance at a position."""
        return self.manifest.place(item)

    def id_of(self, item: int) -> str:
        """The manifest's file name and the line, without folders: machines may keep the data in different ones."""
        return os.path.basename(self.manifest.place(item))

    @property
    def unusable(self) -> dict[int, str]:
        """What turned out unusable while it was read, in any epoch: the reason by position, in order.

        Of several ranks, what each read itself, and what all read in the epochs that are over.
        """
        faults = {row: fault for account in self._accounts.values() for row, fault in account.faults.items()}
        return dict(sorted(faults.items()))

    def report_unusable(self) -> None:
        """List them all: for the end of a run, when the first messages about them are far above."""
        if faults := self.unusable:
            lines = "\n".join(f"  {fault}" for fault in faults.values())
            place = ",".join(self.manifest.paths)
            logging.warning(f"{place}: {len(faults)} of {len(self)} utterances could not be used:\n{lines}")

    def loader(self, *, training: bool, shard: Shard) -> AudioTextLoader:
        """The batches of one rank. In evaluation every utterance comes once, in manifest order, unperturbed.

        Raises:
            UsageError: no step is left by ``drop_last`` or by the shard's ``uneven``, or utterances are left over that
                it does not allow, or ``max_batch_seconds`` is less than an utterance.
        """
        plan_of = plans(len(self), self._batching, shard, training=training, costs=self.durations)
        if training and not plan_of(0).num_steps:
            self._refuse_nothing_left(shard)
        return AudioTextLoader(
            self.manifest,
            self._dataset(shard.seed),
            plan_of,
            self._account(training),
            training=training,
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            count_unknown=not self._all_seen,
            rank=shard.rank,
        )

    def _refuse_nothing_left(self, shard: Shard) -> None:
        by_choice = self._batching.drop_last
        most = max(self.batch_size, 1) if by_choice else 1
        raise UsageError(
            f"{'drop_last' if by_choice else 'uneven=drop'} leaves no batch of {len(self)} utterances",
            place=self.name,
            wanted=f"at least {most * shard.world_size} ({'batch_size x ranks' if by_choice else 'one for each rank'})",
            remedy="lower batch_size, or set drop_last to false" if by_choice else "use fewer ranks, or uneven=pad",
        )

    def corrupt_budget(self, training: bool) -> int:
        """How many utterances may turn out unusable before the run ends."""
        if self._max_corrupt is not None:
            return int(self._max_corrupt * len(self) if self._max_corrupt < 1 else self._max_corrupt)
        if not training:
            return 0
        return int(min(max(_CORRUPT_SHARE * len(self), _CORRUPT_COUNT), _CORRUPT_MOST * len(self)))

    def _account(self, training: bool) -> Account:
        """One for all loaders of a kind: what an epoch has told, the next need not tell again."""
        budget = self.corrupt_budget(training)
        return self._accounts.setdefault(training, Account(self.manifest, self._reading.sample_rate, budget))

    def _dataset(self, seed: int = 0) -> AudioTextDataset:
        return AudioTextDataset(self.manifest.reader, self._make_parser(), self._reading, self._augmentor, seed)

    def _tell(self, text_report: str) -> None:
        logging.info(self.manifest.summary())
        if text_report:
            seen = "" if self._all_seen else f" (in {preflight.CHECKED_LINES} lines, evenly spread)"
            logging.warning(f"{','.join(self.manifest.paths)}: {text_report}{seen}")

    def fingerprint(self) -> Mapping[str, str]:
        """The content of each manifest under its file name, the vocabulary, and the other arguments; no folders.

        Manifests of noises and impulse responses count in the same way.
        """
        arguments = {key: value for key, value in self.init_params.items() if key != "manifest_filepath"}
        labels, augmentor = arguments.pop("labels", None), arguments.get("augmentor")
        sounds: list[Path] = []
        if isinstance(augmentor, Mapping):
            arguments["augmentor"] = {name: _with_paths(settings) for name, settings in augmentor.items()}
            sounds = [s["manifest_path"] for s in arguments["augmentor"].values() if "manifest_path" in s]
        files = digest_of_files([*self.manifest.paths, *sounds])
        return {**files, f"labels of {self.name}": digest_of(labels), self.name: digest_of(arguments)}


def _with_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: Path(value) if key == "manifest_path" else value for key, value in settings.items()}


def _augmentor_of(augmentor: Mapping[str, Any] | AudioAugmentor | None) -> AudioAugmentor | None:
    if isinstance(augmentor, Mapping):
        return AudioAugmentor.from_config(augmentor)
    return augmentor


def _check_least(**limits: tuple[int, int]) -> None:
    for argument, (value, least) in limits.items():
        if value < least:
            raise UsageError(f"{argument} is too small", got=str(value), wanted=f"{least} or more")


def _checked_max_corrupt(max_corrupt: float | None) -> float | None:
    if max_corrupt is not None and max_corrupt < 0:
        raise UsageError("max_corrupt is a number of utterances, or a share below 1", got=str(max_corrupt))
    return max_corrupt
