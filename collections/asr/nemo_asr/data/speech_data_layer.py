"""SpeechDataLayer: the base of data layers of transcribed speech. Its subclasses say which utterances there are."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from nemo_asr.arguments import SampleRate, Unusable, Workers, source_argument
from nemo_asr.audio.augmentor import AudioAugmentor, Perturbations, augmentor_of
from nemo_asr.audio.featurizer import WaveformFeaturizer
from nemo_asr.data import preflight
from nemo_asr.data.copied import CopiedRecordings
from nemo_asr.data.dataset import MIXED_DOWN, OTHER_DURATION, RESAMPLED, UNKNOWN, Reading, SpeechDataset
from nemo_asr.data.iteration import BatchLists
from nemo_asr.data.preflight import Infeasible
from nemo_asr.data.utterances import Utterance, Utterances
from nemo_asr.text.parser import CharParser, shown_symbols
from nemo_lite.backends.pytorch.data import (
    Batching,
    Counts,
    Plan,
    PlannedLoader,
    Shard,
    UnusableItems,
    budget_of,
    plans,
    preload_in_workers,
)
from nemo_lite.backends.pytorch.nm import Copied, DataLayerNM
from nemo_lite.core.neural_types import AudioSignal, LabelsType, LengthsType, NeuralType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, symbol
from nemo_lite.errors import UsageError, counted
from nemo_lite.utils import logging
from nemo_lite.utils.digests import Content, digest_of_files

preload_in_workers(__name__)

# Completes "12 ..." in the summary of what was kept and dropped.
UNWRITABLE = "without a text that the vocabulary can write"


def speech_ports(sample_rate: int) -> Ports:
    """What every data layer of transcribed speech gives."""
    return {
        "audio_signal": NeuralType("B T", AudioSignal(sample_rate)),
        "a_sig_length": NeuralType("B", LengthsType()),
        "transcripts": NeuralType("B T", LabelsType()),
        "transcript_length": NeuralType("B", LengthsType()),
    }


class SpeechPorts(DataLayerNM):
    """The ports and shapes of transcribed speech, without data. It stands for a data layer where no module runs."""

    def __init__(self, sample_rate: SampleRate, name: str | None = None) -> None:
        super().__init__(name)
        self._sample_rate = sample_rate

    @property
    def output_ports(self) -> Ports:
        """Audio and text of a batch, each with its lengths."""
        return speech_ports(self._sample_rate)

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """Samples and labels, each with a name of its own: both are time axes, but not the same time."""
        batch = (symbol("B"),)
        audio, text = (*batch, symbol("samples")), (*batch, symbol("U"))
        return dict(zip(self.output_ports, (audio, batch, text, batch), strict=True))


class SpeechDataLayer(SpeechPorts):
    """Transcribed speech: audio (B, T) at the sample rate, label ids (B, U), and their lengths (B,).

    A subclass gives the utterances. Its first argument says where they are. It shares the rest: reading, perturbing,
    batches of equal cost, the account of unusable utterances, and the checks before training.

    Args:
        utterances: where each is, and how long.
        make_parser: gives a text parser; called once for each loader.
        reading: how audio is read.
        batching: how utterances are gathered into batches.
        augmentor: perturbations in training, ``{name: {prob: ..., ...}}`` or an `AudioAugmentor`.
        max_corrupt: see `budget_of`.
        num_workers: processes that load batches; 0 loads in this one. None: 0, or a GPU's share of the cores.
        pin_memory: page-locked tensors, which go to a GPU faster. None: where there is one.
        name: the module's name.

    Raises:
        UsageError: arguments that contradict each other.
        DataError: audio that is not there, or texts of which the vocabulary can write none.
    """

    amount_unit: ClassVar[str] = "audio-s"
    remedy: ClassVar[str] = "mend the files, delete their lines, or raise max_corrupt"
    """What a user can do about unusable utterances."""

    def __init__(
        self,
        utterances: Utterances[Any],
        make_parser: Callable[[], CharParser],
        *,
        reading: Reading,
        batching: Batching,
        augmentor: Perturbations | AudioAugmentor | None = None,
        max_corrupt: Unusable | None = None,
        num_workers: Workers | None = None,
        pin_memory: bool | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(reading.sample_rate, name)
        self.batch_size, self.num_workers, self.pin_memory = batching.batch_size, num_workers, pin_memory
        self._batching, self._reading, self.new_parser = batching, reading, make_parser
        self._augmentor = augmentor_of(augmentor)
        if self._augmentor is not None and reading.load_audio:
            self._augmentor.check_files()
        self._max_corrupt = max_corrupt
        self._accounts: dict[bool, UnusableItems] = {}
        self._batch_lists: BatchLists | None = None
        self._featurizer = WaveformFeaturizer(reading.sample_rate, reading.int_values, self._augmentor)
        parser = make_parser()
        self.utterances = utterances
        self._textless, self._all_seen = preflight.unwritable(
            utterances, parser, files_too=reading.load_audio, strict=reading.strict_data
        )
        logging.info(self.utterances.summary())
        if text_report := parser.report():
            seen = "" if self._all_seen else f" (in {preflight.CHECKED_LINES} lines, evenly spread)"
            left_out = f"; they are left out of the texts (read as {parser.describe()})" if parser.unknown else ""
            empty = "; training leaves these utterances out, evaluation scores their texts as they are"
            kept = empty if self._textless.any() else ""
            logging.warning(f"{self.utterances.name}: {text_report}{seen}{left_out}{kept}")

    def __len__(self) -> int:
        return len(self.utterances)

    @property
    def data_iterator(self) -> BatchLists:
        """Batches for scripts that read them by themselves: lists of tensors in port order, another epoch each time.

        In order with ``shuffle=False`` and where some texts are missing, for these are kept here.
        """
        if self._batch_lists is None:
            training = self._batching.shuffle and not self._textless.any()
            self._batch_lists = BatchLists(self.loader(training=training, shard=Shard()))
        return self._batch_lists

    @property
    def _dataloader(self) -> BatchLists:
        """NeMo's name of it."""
        return self.data_iterator

    def compared_in_evaluation(self) -> Mapping[str, Any]:
        """The labels, and how audio is read."""
        reading = self._reading
        audio = {"trim_silence": reading.trim_silence, "int_values": reading.int_values}
        return {"labels": list(self.init_params.get("labels") or ()), "bos_id": reading.bos_id, **audio}

    @property
    def durations(self) -> npt.NDArray[np.float32]:
        """(N,) seconds of each utterance, as known before it is read."""
        return self.utterances.durations

    def lengths_in_samples(self) -> npt.NDArray[np.int64]:
        """(N,) samples of each utterance, by its known duration."""
        return preflight.lengths_in_samples(self.utterances, self._reading.sample_rate)

    def infeasible(self, frames_of: Callable[[int], int], *, training: bool = False) -> list[Infeasible]:
        """The utterances whose text needs more frames than there are; see `preflight.infeasible`. Reads every text.

        Args:
            frames_of: frames out of the encoder for a number of samples.
            training: also those whose text does not fit when perturbations make them as short as they can.
        """
        augmentor = self._augmentor if training else None
        return preflight.infeasible(
            self.utterances, self._new_dataset(), frames_of, self.lengths_in_samples(), augmentor
        )

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
        self.utterances = self.utterances.without(refused, reason)
        self._textless = self._textless[~refused]
        self._batch_lists = None
        self._accounts.clear()  # they know utterances by their positions

    def leave_out_textless(self) -> None:
        """Go on without the utterances whose text is missing, or nothing that the vocabulary can write.

        A loader for training does this: such an utterance would teach that its speech is silence.

        Raises:
            DataError: nothing would be left.
        """
        if self._textless.any():
            self.leave_out(np.flatnonzero(self._textless).tolist(), UNWRITABLE)

    def require_texts(self) -> None:
        """See that each utterance has a text; those whose text the vocabulary cannot write are left out.

        Raises:
            DataError: a text is missing or empty: the first few, and how many.
        """
        preflight.require_texts(self.utterances, np.flatnonzero(self._textless).tolist())
        self.leave_out_textless()

    def place_of(self, item: int) -> str:
        """Where the utterance at a position comes from: ``manifest:line``."""
        return self.utterances.place(item)

    def utterance_of(self, item: int) -> Utterance:
        """The utterance at a position, without its audio. Reads its line again."""
        return self.utterances.utterance(item)

    def id_of(self, item: int) -> str:
        """The same without folders: machines may keep the data in different ones."""
        place = self.place_of(item)
        path = next((path for path in self.utterances.paths if place.startswith(path)), "")
        return os.path.basename(path) + place.removeprefix(path)

    @property
    def unusable(self) -> dict[int, str]:
        """What turned out unusable while it was read, in any epoch: the reason by position, in order.

        Of several ranks: what this rank read itself, and what all read in the epochs that are over.
        """
        faults = {row: fault for account in self._accounts.values() for row, fault in account.faults.items()}
        return dict(sorted(faults.items()))

    def copied(self) -> Copied:
        """The recordings: files, or parts of archives."""
        return CopiedRecordings(self.utterances)

    def report_unusable(self) -> None:
        """List them all: for the end of a run, when the first messages about them are far above."""
        if faults := self.unusable:
            lines = "\n".join(f"  {fault}" for fault in faults.values())
            logging.warning(
                f"{self.utterances.name}: {len(faults)} of {len(self)} utterances could not be used:\n{lines}"
            )

    def corrupt_budget(self, training: bool) -> int:
        """How many utterances may turn out unusable before the run ends."""
        return budget_of(self._max_corrupt, len(self), training)

    def loader(self, *, training: bool, shard: Shard) -> PlannedLoader:
        """The batches of one rank. In evaluation every utterance comes once, in order, unperturbed.

        Training goes on without the utterances that have no text, see :meth:`leave_out_textless`.

        Raises:
            UsageError: no step is left by ``drop_last`` or by the shard's ``uneven``, or utterances are left over that
                it does not allow, or ``max_batch_seconds`` is less than an utterance.
        """
        if training and self._textless.any():
            self.leave_out_textless()
            logging.info(self.utterances.summary())
        plan_of = self._plans(training, shard)
        if training and not plan_of(0).num_rounds:
            self._refuse_nothing_left(shard)
        return PlannedLoader(
            self._new_dataset(shard.seed),
            plan_of,
            list(self.output_ports),
            shard,
            refs_of=self.utterances.refs,
            training=training,
            account=self._account(training),
            num_workers=self.setting("num_workers", None),
            worker_timeout=self.setting("worker_timeout", None),
            multiprocessing_context=self.setting("multiprocessing_context", None),
            pin_memory=self.setting("pin_memory", None),
            device=self._device,
        )

    def _plans(self, training: bool, shard: Shard) -> Callable[[int], Plan]:
        """The batches of one rank by epoch."""
        return plans(len(self), self._batching, shard, training=training, costs=self.durations)

    def _refuse_nothing_left(self, shard: Shard) -> None:
        cause, least, why, remedy = "uneven=drop", 1, "one for each rank", "use fewer ranks, or uneven=pad"
        if self._batching.drop_last:
            cause, least, why = "drop_last", max(self.batch_size, 1), "batch_size x ranks"
            remedy = "lower batch_size, or set drop_last to false"
        problem = f"{cause} leaves no batch of {len(self)} utterances"
        wanted = f"at least {least * shard.world_size} ({why})"
        raise UsageError(problem, place=self.label, wanted=wanted, remedy=remedy)

    def _account(self, training: bool) -> UnusableItems:
        """One for all loaders of a kind: what an epoch has told, the next need not tell again."""
        if training not in self._accounts:
            self._accounts[training] = UnusableItems(
                self.utterances.name,
                self.corrupt_budget(training),
                self.place_of,
                noun="utterance",
                remedy=self.remedy,
                tell_counts=partial(_tell_counts, self.utterances.name, self._reading.sample_rate, not self._all_seen),
            )
        return self._accounts[training]

    def _new_dataset(self, seed: int = 0) -> SpeechDataset[Any]:
        return SpeechDataset(self.utterances.reader, self.new_parser(), self._reading, self._augmentor, seed)

    def fingerprint(self) -> Mapping[str, Any]:
        """The content of each file under its name, the vocabulary, and the other arguments; no folders.

        Manifests of noises and impulse responses count in the same way.
        """
        found = dict(super().fingerprint())
        found.pop(f"{self.label}.{source_argument(type(self))}")
        augmentor = found.get(f"{self.label}.augmentor")
        sounds: list[Path] = []
        if isinstance(augmentor, Mapping):
            with_paths = {name: _with_paths(settings) for name, settings in augmentor.items()}
            found[f"{self.label}.augmentor"] = with_paths
            sounds = [settings["manifest_path"] for settings in with_paths.values() if "manifest_path" in settings]
        files = digest_of_files([*self.utterances.paths, *sounds])
        return {**{name: Content(digest) for name, digest in files.items()}, **found}


def _tell_counts(name: str, sample_rate: int, with_unknown: bool, counts: Counts) -> None:
    """Log what was converted on the way and, where not all texts were checked before, which characters were lost."""
    converted = []
    if resampled := counts[RESAMPLED]:
        rates = ", ".join(map(str, sorted(resampled)))
        converted.append(f"{counted(resampled.total(), 'utterance')} resampled from {rates} Hz to {sample_rate} Hz")
    if mixed_down := counts[MIXED_DOWN].total():
        converted.append(f"{counted(mixed_down, 'utterance')} of several channels averaged to one")
    if converted:
        logging.info(f"{name}: {', '.join(converted)}")
    if differences := counts[OTHER_DURATION]:
        largest = max(differences, key=abs)
        logging.warning(
            f"{name}: {counted(differences.total(), 'utterance')} whose file is not as long as the manifest says; at "
            f"most the stated duration was read. The largest difference: {largest:+.1f} s "
            "(nemo-lite data check lists them)"
        )
    if with_unknown and (unknown := counts[UNKNOWN]):
        logging.warning(
            f"{name}: {counted(len(unknown), 'character')} outside the vocabulary: {shown_symbols(unknown)}"
        )


def _with_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: Path(value) if key == "manifest_path" else value for key, value in settings.items()}
