"""Transcribed speech: what its data layers share, the one of manifests, and the checks before training."""

from __future__ import annotations

import math
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from nemo_asr.augmentation import AudioAugmentor, Perturbations, WaveformFeaturizer, augmentor_of
from nemo_asr.data.copied import CopiedRecordings
from nemo_asr.data.dataset import (
    MIXED_DOWN,
    OTHER_DURATION,
    RESAMPLED,
    UNKNOWN,
    BatchLists,
    BatchShape,
    ItemTensors,
    JoinedRows,
    Reading,
    RepeatedRef,
    SpeechDataset,
)
from nemo_asr.data.file_durations import with_file_durations
from nemo_asr.run.arguments import (
    BatchSeconds,
    BatchSize,
    Duration,
    LabelRate,
    SampleRate,
    Unusable,
    Workers,
    source_argument,
)
from nemo_asr.run.manifest import Manifest, ManifestPaths, Mask, R, U, Utterance, Utterances, check_limits, evenly
from nemo_asr.run.text.labels import shown_symbols
from nemo_asr.run.text.parser import EMPTY, CharParser, parser_maker
from nemo_lite.backends.pytorch.data.loaders import Counts, PlannedLoader, UnusableItems, budget_of
from nemo_lite.backends.pytorch.data.order import Batching, CostWords, Plan, Shard, WeightedSets, plans
from nemo_lite.backends.pytorch.data.workers import preload_in_workers
from nemo_lite.backends.pytorch.nm import Copied, DataLayerNM
from nemo_lite.base.errors import DataChangedError, DataError, UsageError, counted, listed
from nemo_lite.base.files import Content, digest_of, digest_of_files
from nemo_lite.base.nemo_logging import LogMode
from nemo_lite.core.neural_types import AudioSignal, LabelsType, LengthsType, NeuralType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import AxisLength, Shape, symbol
from nemo_lite.utils import logging

T = TypeVar("T")

CHECKED_LINES = 20_000
_LONGEST_READ = 2_000
_SHOWN_CHARACTERS = 80
_TRIMMED_SHARE = 0.25
_TRIMMED_LEAST = 0.99  # durations are rounded
_TRIMMED, _SHORTENED = " without the silence at both ends", " after perturbations"
_FAR_FROM_OVERFLOW = 1 << 40
_MOST_SECONDS = 1e6  # a larger duration is a mistake, found when the audio is read; here its samples must fit an int64


class Infeasible(NamedTuple):
    """An utterance whose text does not fit its frames.

    Attributes:
        row: its position.
        place: where it comes from.
        frames: frames that the encoder gives for it.
        needed: frames that its text needs, as the loss says.
        text: its text as written.
        when: what made the frames so few: nothing, silence that is left out, perturbations.
        is_always: not only when perturbations happen to make it short.
    """

    row: int
    place: str
    frames: int
    needed: int
    text: str
    when: str = ""
    is_always: bool = True

    def __str__(self) -> str:
        text = self.text if len(self.text) <= _SHOWN_CHARACTERS else f"{self.text[:_SHOWN_CHARACTERS]}..."
        return f'{self.place}: {self.frames} frames{self.when} cannot hold "{text}", which needs {self.needed}'


# The row of an utterance whose text does not fit, its frames, how many it needs, ``when`` and ``is_always``.
Misfit: TypeAlias = tuple[int, int, int, str, bool]


class ShareWork(Protocol):
    """Divides work on items among the ranks, as ``NeuralModuleFactory.share_work``."""

    def __call__(self, num_items: int, work: Callable[[range], T]) -> list[T]:
        """What ``work`` gives for each part of the items, in their order."""


def in_one_part(num_items: int, work: Callable[[range], T]) -> list[T]:
    """All the work here."""
    return [work(range(num_items))]


def unwritable(
    utterances: Utterances[Any],
    parser: CharParser,
    *,
    files_too: bool = True,
    strict: bool = False,
    limit: int = CHECKED_LINES,
) -> tuple[Mask, bool]:
    """Look at each utterance (at ``limit`` of them, evenly spread, in a larger set) for its text and its audio.

    The rest is looked at when it is read. Characters outside the vocabulary are counted in the parser.

    Args:
        files_too: whether the audio has to be there.
        strict: whether letters, numbers and marks that the labels lack are an error.

    Returns:
        (N,) true where the vocabulary cannot write the text or there is none, and whether all were looked at.

    Raises:
        DataError: audio or text files are missing or empty, or letters are missing: the first few, and how many.
    """
    total, reader = len(utterances), utterances.reader
    rows = evenly(total, limit)
    refused = np.zeros(total, bool)
    problems: list[str] = []
    notes = Counter[str]()
    for row, ref in zip(rows, utterances.refs(rows), strict=True):
        try:
            utterance = reader.utterance(ref)
            notes.update(filter(None, [utterance.note]))
            if files_too:
                reader.check_audio(utterance)
            if strict:
                parser.check_letters(utterance.text, utterance.place)
        except DataChangedError:
            raise
        except DataError as error:
            problems.append(str(error))
            continue
        refused[row] = parser(utterance.text) is None
    if problems:
        raise DataError(listed(problems, len(problems)))
    for note, count in notes.items():
        logging.info(f"{utterances.name}: {count} of {len(rows)} utterances {note}")
    return refused, len(rows) == total


def between_label_rates(
    utterances: U, parser: CharParser, min_label_rate: float | None, max_label_rate: float | None
) -> U:
    """Those whose labels a second are within the limits, inclusive, or that have none; None for no limit.

    Raises:
        UsageError: contradictory limits.
        DataError: nothing would be left.
    """
    if min_label_rate is None and max_label_rate is None:
        return utterances
    if min_label_rate is not None and max_label_rate is not None and min_label_rate > max_label_rate:
        raise UsageError("min_label_rate is above max_label_rate", got=f"{min_label_rate:g} and {max_label_rate:g}")
    counts = np.array([len(parser(text) or ()) for text in utterances.texts(range(len(utterances)))], np.float32)
    rates = counts / utterances.durations
    if max_label_rate is not None:
        many = rates > np.float32(max_label_rate)
        utterances = utterances.without(many, f"with more labels a second than max_label_rate {max_label_rate:g}")
        counts, rates = counts[~many], rates[~many]
    if min_label_rate is not None:
        few = (counts > 0) & (rates < np.float32(min_label_rate))
        utterances = utterances.without(few, f"with fewer labels a second than min_label_rate {min_label_rate:g}")
    return utterances


def _samples_left(dataset: SpeechDataset[Any], utterance: Utterance) -> int:
    """Samples without the silence at both ends. What cannot be read is found when it is read for training."""
    try:
        return len(dataset.samples(utterance, defaultdict(Counter)))
    except DataError:
        return sys.maxsize


def _frames_of_all(frames_of: Callable[[int], int], lengths: Sequence[int]) -> npt.NDArray[Any]:
    if isinstance(frames_of, AxisLength) and max(lengths, default=0) < _FAR_FROM_OVERFLOW:
        return np.asarray(frames_of.of_all(np.array(lengths, np.int64)))
    return np.array([frames_of(length) for length in lengths])


def lengths_in_samples(utterances: Utterances[Any], sample_rate: int) -> npt.NDArray[np.int64]:
    """(N,) samples of each utterance, by its known duration."""
    seconds = np.minimum(utterances.durations.astype(np.float64), _MOST_SECONDS)
    num_samples: npt.NDArray[np.int64] = np.rint(seconds * sample_rate).astype(np.int64)
    return num_samples


preload_in_workers(__name__)

# Completes "12 ..." in the summary of what was kept and dropped.
UNWRITABLE = "without a text that the vocabulary can write"


class SpeechPorts(DataLayerNM):
    """The ports and shapes of transcribed speech, without data. It stands for a data layer where no module runs."""

    def __init__(self, sample_rate: SampleRate, name: str | None = None) -> None:
        super().__init__(name)
        self._sample_rate = sample_rate

    @property
    def output_ports(self) -> Ports:
        """Audio and text of a batch, each with its lengths."""
        return {
            "audio_signal": NeuralType("B T", AudioSignal(self._sample_rate)),
            "a_sig_length": NeuralType("B", LengthsType()),
            "transcripts": NeuralType("B T", LabelsType()),
            "transcript_length": NeuralType("B", LengthsType()),
        }

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

    Arguments of subclasses:
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
        bucketing: in training, utterances of similar duration in a batch, and batches of equal cost on all ranks.
        max_batch_seconds: with bucketing, at most so many seconds in a batch, padding included.
        min_label_rate: labels a second; utterances with fewer are left out and counted, but for those without a text.
        max_label_rate: the same of utterances with more. With either, each text is read before training.
        max_corrupt: how many utterances may be unusable on all ranks together (below 1: which share) before the run
            ends. None: in training one in a thousand, or ten where that is more, but never over a tenth; in evaluation
            none.
        parser: how texts are rewritten. ``auto``: by ``language`` and labels; as ``base`` where a digit is a label.
            ``en``: English; numbers, dates, units, abbreviations and symbols become words, Latin letters with accents
            ASCII. ``base``: any language; Unicode NFC, single spaces, no letter becomes another one. ``none``: as they
            are. Except with ``none`` texts take the case of the labels, where these have one case only.
        language: of the texts, with ``parser: auto``: ``en`` reads them as English, another code (``de``, ``zh``)
            reads numbers out in that language, ``none`` leaves them. None: what the script of the labels tells.
        strict_data: a duration that is not its file's, a path that does not start at the manifest's folder, and a line
            without a text are errors, and so is a text with letters, numbers or marks that the labels lack.
        strip_marks: leave out the vowel marks of Arabic and Hebrew, and tatweel, in training, references and what is
            compared with them. None: where the labels have none. Not with ``parser: none`` and ``en``.

    Raises:
        UsageError: arguments that contradict each other.
        DataError: audio that is not there, or texts of which the vocabulary can write none.
    """

    amount_unit: ClassVar[str] = "audio-s"
    remedy: ClassVar[str] = "mend the files, delete their lines, or raise max_corrupt"
    """What a user can do about unusable utterances."""
    joins_texts: ClassVar[bool] = True
    """Whether several utterances in a row are one: not where a recording has a class."""
    join_reach: ClassVar[int | None] = None
    """How many behind an utterance can follow it in a row; None: all of the set."""

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
        if self._augmentor is not None and self._augmentor.join is not None and not self.joins_texts:
            got, remedy = "recordings with a class each", "delete join"
            raise UsageError("join joins texts", place=f"{self.label}.augmentor.join", got=got, remedy=remedy)
        if self._augmentor is not None and reading.load_audio:
            self._augmentor.check_files()
        self._max_corrupt = max_corrupt
        self._accounts: dict[bool, UnusableItems] = {}
        self._batch_lists: BatchLists | None = None
        self._featurizer = WaveformFeaturizer(reading.sample_rate, reading.int_values, self._augmentor)
        parser = make_parser()
        self.utterances = utterances
        self._textless, self._all_seen = unwritable(
            utterances, parser, files_too=reading.load_audio, strict=reading.strict_data
        )
        logging.info(self.utterances.summary())
        if text_report := parser.report():
            seen = "" if self._all_seen else f" (in {CHECKED_LINES} lines, evenly spread)"
            left_out = f"; they are left out of the texts (read as {parser.describe()})" if parser.unknown else ""
            # As `require_texts` does, of whoever builds a model by its configuration.
            refused = (
                ", but by a model's configuration it refuses lines without a text" if parser.refused[EMPTY] else ""
            )
            empty = f"; training leaves these utterances out{refused}; evaluation scores their texts as they are"
            kept = empty if self._textless.any() else ""
            logging.warning(f"{self.utterances.name}: {text_report}{seen}{left_out}{kept}")

    def __len__(self) -> int:
        return len(self.utterances)

    @property
    def data_iterator(self) -> BatchLists:
        """Batches for scripts that read them by themselves: lists of tensors in port order, another epoch each time.

        In order with ``shuffle=False`` and where some texts are missing, for these are kept here. With ``drop_last``
        without what does not fill the last batch.
        """
        if self._batch_lists is None:
            training = self._batching.shuffle and not self._textless.any()
            drops_last = self._batching.drop_last and not training and self.batch_size > 0  # training drops it itself
            most = len(self) // self.batch_size if drops_last else None
            self._batch_lists = BatchLists(self.loader(training=training, shard=Shard()), most)
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
    def max_batch_seconds(self) -> float | None:
        """At most so many seconds in a batch of training, padding included; None: as many as ``batch_size`` says."""
        return self._batching.max_batch_cost

    @property
    def durations(self) -> npt.NDArray[np.float32]:
        """(N,) seconds of each utterance, as known before it is read."""
        return self.utterances.durations

    def lengths_in_samples(self) -> npt.NDArray[np.int64]:
        """(N,) samples of each utterance, by its known duration."""
        return lengths_in_samples(self.utterances, self._reading.sample_rate)

    def largest_shape(self, rows: npt.NDArray[np.int64] | None = None) -> BatchShape:
        """The largest batch that training may make of the utterances at some positions, of all by default.

        Each utterance of it is as long as the longest, also after perturbations, and its text too. Of a large set the
        texts of the 2,000 longest utterances are read.
        """
        rows = np.arange(len(self)) if rows is None else rows
        seconds = self.durations[rows].astype(np.float64)
        longest = float(seconds.max(initial=0.0))
        dataset = self._new_dataset()
        chosen = rows[np.argsort(-seconds, kind="stable")[:_LONGEST_READ]]
        texts = (dataset.label_ids(self.utterance_of(int(row)).text) for row in np.sort(chosen))
        labels = max((len(ids) for ids in texts if ids), default=1)
        if self._augmentor is not None:
            join = self._augmentor.join
            if join is not None and join[0]:
                most = join[1].max_utterances
                joined = min(most * longest + (most - 1) * join[1].max_gap, join[1].max_duration)
                # Texts grow as durations do.
                labels, longest = math.ceil(labels * max(joined / max(longest, 1e-3), 1)), max(joined, longest)
            longest = float(self._augmentor.max_augmentation_length(longest))
        items = self.batch_size if self.batch_size > 0 else len(self)
        if self._batching.max_batch_cost is not None:
            items = max(1, min(items, int(self._batching.max_batch_cost / max(float(seconds.max()), 1e-3))))
        return BatchShape(min(items, len(self)), longest, labels)

    def made_up_batch(self, shape: BatchShape) -> tuple[Any, ...] | None:
        """A batch of noise of this shape, in port order; None where noise is no input."""
        return self._new_dataset().made_up(shape) if self._reading.load_audio else None

    def largest_batch(self) -> tuple[Any, ...] | None:
        """A batch of noise of the largest shape."""
        return self.made_up_batch(self.largest_shape())

    def infeasible(
        self,
        frames_of: Callable[[int], int],
        frames_needed: Callable[[Sequence[int]], int],
        *,
        training: bool = False,
        share_work: ShareWork = in_one_part,
    ) -> list[Infeasible]:
        """The utterances whose text needs more frames than there are. Their loss would be infinite. Reads every text.

        Frames follow from the known duration. Where silence at both ends is left out, the audio is read of those whose
        text would need a quarter of their frames or more: of the 20,000 with the longest texts for their frames.

        Args:
            frames_of: frames out of the encoder for a number of samples.
            frames_needed: frames that a text of these label ids needs, as a loss says it, at most two for each.
            training: also those whose text does not fit when perturbations make them as short as they can.
            share_work: divides the work among the ranks: ``share_work`` of the factory, which all ranks then call.
        """
        return [self.infeasible_of(misfit) for misfit in self.misfits(frames_of, frames_needed, training, share_work)]

    def infeasible_of(self, misfit: Misfit) -> Infeasible:
        """A misfit with its place and its text."""
        row, frames, needed, when, is_always = misfit
        utterance = self.utterance_of(row)
        return Infeasible(row, utterance.place, frames, needed, utterance.text, when, is_always)

    def misfits(
        self,
        frames_of: Callable[[int], int],
        frames_needed: Callable[[Sequence[int]], int],
        training: bool,
        share_work: ShareWork = in_one_part,
    ) -> list[Misfit]:
        """See :meth:`infeasible`."""
        augmentor = self._augmentor if training else None
        num_samples, dataset = self.lengths_in_samples(), self._new_dataset()
        trims = self._reading.trim_silence and self._reading.load_audio
        share = _TRIMMED_SHARE if trims else 1

        def frames_for(counts: npt.NDArray[np.int64]) -> tuple[list[int], list[int]]:
            """The frames of so many samples, and when perturbations make them as short as they can."""
            lengths, positions = np.unique(counts, return_inverse=True)
            frames = _frames_of_all(frames_of, lengths.tolist())
            if augmentor is None:
                return (frames[positions].tolist(),) * 2
            shortest = [int(augmentor.min_augmentation_length(count)) for count in lengths.tolist()]
            return frames[positions].tolist(), _frames_of_all(frames_of, shortest)[positions].tolist()

        def misfit_of(row: int, needed: int, frames: int, least: int, when: str = "") -> Misfit | None:
            if needed > frames:
                return row, frames, needed, when, True
            return (row, least, needed, f"{when}{_SHORTENED}", False) if needed > least else None

        def read(rows: range) -> tuple[list[Misfit], list[tuple[float, int, int]]]:
            """Misfits among some rows; where silence is left out also which texts are long for their frames."""
            found: list[Misfit] = []
            tight: list[tuple[float, int, int]] = []  # the share of its frames that a text needs; those; the row
            known = frames_for(num_samples[rows.start : rows.stop])
            for row, frames, least, text in zip(rows, *known, self.utterances.texts(rows), strict=True):
                most = dataset.num_ids_at_most(text)
                if most is not None and 2 * most <= least * share:
                    continue  # fits in any case; reading a text takes longer than all the rest
                ids = dataset.label_ids(text)
                if ids is None or 2 * len(ids) <= least * share:
                    continue  # it will be left out for its text, or it fits
                needed = frames_needed(ids)
                misfit = misfit_of(row, needed, frames, least)
                found += [] if misfit is None else [misfit]
                if trims and needed <= frames and needed > least * share:
                    tight.append((needed / max(least, 1), needed, row))
            return found, tight

        parts = share_work(len(self), read)
        misfits = {misfit[0]: misfit for found, _ in parts for misfit in found}
        tightest = sorted((item for _, tight in parts for item in tight), key=lambda item: -item[0])[:CHECKED_LINES]

        def trim(items: range) -> list[int]:
            """Samples without silence of some of the tightest."""
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return list(pool.map(lambda item: _samples_left(dataset, self.utterance_of(tightest[item][2])), items))

        trimmed = [count for part in share_work(len(tightest), trim) for count in part] if tightest else []
        frames, least = frames_for(np.array(trimmed, np.int64))
        for (_, needed, row), count, most, fewest in zip(tightest, trimmed, frames, least, strict=True):
            when = _TRIMMED if count < _TRIMMED_LEAST * num_samples[row] else ""
            if (misfit := misfit_of(row, needed, most, fewest, when)) is not None:
                misfits[row] = misfit
        return [misfits[row] for row in sorted(misfits)]

    def longer_than(self, most: int, share_work: ShareWork = in_one_part) -> list[tuple[int, int]]:
        """The utterances whose text has more labels than this: their positions, and how many labels.

        Args:
            most: labels of a text.
            share_work: as of :meth:`infeasible`.
        """
        dataset = self._new_dataset()

        def read(rows: range) -> list[tuple[int, int]]:
            found = []
            for row, text in zip(rows, self.utterances.texts(rows), strict=True):
                at_most = dataset.num_ids_at_most(text)
                if at_most is None or at_most > most:
                    ids = dataset.label_ids(text) or ()
                    found += [(row, len(ids))] if len(ids) > most else []
            return found

        return [each for part in share_work(len(self), read) for each in part]

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
        if not self._textless.any():
            return
        try:
            self.leave_out(np.flatnonzero(self._textless).tolist(), UNWRITABLE)
        except DataError as error:
            error.remedy = "write texts; for letters that the model lacks, take its labels from them: --set labels=auto"
            raise

    def require_texts(self) -> None:
        """See that each utterance has a text; those whose text the vocabulary cannot write are left out.

        Raises:
            DataError: a text is missing or empty: the first few, and how many.
        """
        rows = np.flatnonzero(self._textless).tolist()
        missing = [self.place_of(row) for row in rows if not self.utterance_of(row).text.strip()]
        if missing:
            problem = "text is missing or empty; write the words, or delete the line"
            raise DataError(listed([f"{place}: {problem}" for place in missing], len(missing)))
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
        """Why utterances turned out unusable while they were read, in any epoch: the reason by position, in order.

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
        rows: JoinedRows | None = None
        if training and self._augmentor is not None and self._augmentor.join is not None:
            most = self._batching.max_batch_cost
            rows = JoinedRows(*self._augmentor.join, self.durations, shard.seed, self.join_reach, most)
        sets = self._weighted_sets(shard) if training else None
        plan_of = self._plans(training, shard, rows, sets)
        if training and not plan_of(0).num_rounds:
            self._refuse_nothing_left(shard)
        return PlannedLoader(
            self._new_dataset(shard.seed),
            plan_of,
            list(self.output_ports),
            shard,
            refs_of=partial(_refs_of_places, self.utterances, rows, sets),
            items_of=sets,
            training=training,
            account=self._account(training),
            num_workers=self.setting("num_workers", None),
            worker_timeout=self.setting("worker_timeout", None),
            multiprocessing_context=self.setting("multiprocessing_context", None),
            pin_memory=self.setting("pin_memory", None),
            device=self._device,
        )

    def _weighted_sets(self, shard: Shard) -> WeightedSets | None:
        """Which utterances each epoch has, where sets have weights; None: each once.

        Raises:
            UsageError: a set is empty, or its share of an epoch.
        """
        weighted = self.utterances.weighted_sets
        if weighted is None:
            return None
        starts, weights = weighted
        try:
            sets = WeightedSets(starts.tolist(), weights, shard.seed, self._batching.shuffle)
        except UsageError as error:
            raise UsageError(error.problem, place=self.utterances.name, got=error.got, remedy=error.remedy) from None
        sizes = np.diff(starts).tolist()
        shares = (
            f"{path} {count} of {size} utterances"
            for path, count, size in zip(self.utterances.paths, sets.num_places, sizes, strict=True)
        )
        logging.info("An epoch takes, by the weights of the sets: %s", ", ".join(shares), mode=LogMode.ONCE)
        return sets

    def _plans(
        self, training: bool, shard: Shard, rows: JoinedRows | None, sets: WeightedSets | None
    ) -> Callable[[int], Plan]:
        """The batches of one rank by epoch."""

        def costs(epoch: int) -> npt.NDArray[np.float32]:
            durations = self.durations if rows is None else rows(epoch).durations
            return durations if sets is None else durations[sets(epoch)]

        return plans(len(self), self._batching, shard, training=training, costs=costs)

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
        fingerprint = dict(super().fingerprint())
        fingerprint.pop(f"{self.label}.{source_argument(type(self))}")
        augmentor = fingerprint.get(f"{self.label}.augmentor")
        sounds: list[Path] = []
        if isinstance(augmentor, Mapping):
            with_paths = {
                name: {key: Path(value) if key.endswith("manifest_path") else value for key, value in settings.items()}
                for name, settings in augmentor.items()
            }
            fingerprint[f"{self.label}.augmentor"] = with_paths
            sounds = [
                value
                for settings in with_paths.values()
                for key, value in settings.items()
                if key.endswith("manifest_path")
            ]
        if weighted := self.utterances.weighted_sets:
            fingerprint[f"weights of {self.label}"] = list(weighted[1])
        files = digest_of_files([*self.utterances.paths, *sounds])
        return {**{name: Content(digest) for name, digest in files.items()}, **fingerprint}


def _refs_of_places(
    utterances: Utterances[R], rows: JoinedRows | None, sets: WeightedSets | None, epoch: int, places: Any
) -> Sequence[Any]:
    """What a worker needs to find the utterances at these places, and those that stand behind them in a row."""
    items = places if sets is None else sets(epoch)[places]
    refs = utterances.refs(items) if rows is None else rows.refs(epoch, items, utterances.refs)
    if sets is None:
        return refs
    turns = sets.turns(epoch)[places].tolist()
    return [RepeatedRef(ref, turn) if turn else ref for ref, turn in zip(refs, turns, strict=True)]


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


_WORDS = CostWords("max_batch_seconds", "utterance", " s", "raise it, or lower max_duration")


class AudioToTextDataLayer(SpeechDataLayer):
    """Utterances of JSON-lines manifests: audio (B, T) at ``sample_rate``, label ids (B, U), and their lengths (B,).

    Every manifest line is checked here; of at most 20,000 lines, evenly spread, also whether the audio file is there
    and the vocabulary can write the text. What cannot be used later (a damaged file) is skipped in training, counted,
    and listed at the end of the epoch; see ``max_corrupt``.

    Durations: an utterance is ``duration`` seconds from its ``offset``, or what the file has of them. Files that are
    longer or shorter by more than 0.1 s and 1 % are counted: of 1,000 files, evenly spread, before training, and of all
    where one of these differs; otherwise while they are read. Durations of 0 or less are left out and counted.
    Texts may be missing, empty, or nothing that the vocabulary can write: training leaves such utterances out and
    counts them, evaluation scores them against the text as it is.
    Relative paths start at the manifest's folder; one that leads nowhere there starts at the working directory.

    The arguments that are not explained here are those of `SpeechDataLayer`.

    Args:
        manifest_filepath: one manifest, several separated by commas, or a list. ``a.json:3,b.json:1`` gives weights: in
            training three of four utterances of an epoch are from the first.

    Raises:
        UsageError: arguments that contradict each other.
        DataError: a manifest that is missing, empty or has lines that are not valid; audio files that are not there.
        ConfigError: labels that cannot be a vocabulary.
    """

    def __init__(
        self,
        manifest_filepath: ManifestPaths,
        labels: Sequence[str],
        batch_size: BatchSize,
        sample_rate: SampleRate = 16000,
        int_values: bool = False,
        bos_id: int | None = None,
        eos_id: int | None = None,
        pad_id: int | None = None,
        min_duration: Duration | None = 0.1,
        max_duration: Duration | None = None,
        normalize_transcripts: bool = True,
        trim_silence: bool = False,
        load_audio: bool = True,
        drop_last: bool = False,
        shuffle: bool = True,
        num_workers: Workers | None = None,
        augmentor: Perturbations | AudioAugmentor | None = None,
        bucketing: bool = False,
        max_batch_seconds: BatchSeconds | None = None,
        max_corrupt: Unusable | None = None,
        parser: str = "auto",
        language: str | None = None,
        pin_memory: bool | None = None,
        strict_data: bool = False,
        name: str | None = None,
        strip_marks: bool | None = None,
        min_label_rate: LabelRate | None = None,
        max_label_rate: LabelRate | None = None,
    ) -> None:
        # What costs nothing to check comes before a large manifest is read.
        new_parser = parser_maker(labels, parser, normalize_transcripts, language, strip_marks)
        check_limits(min_duration, max_duration)
        reading = Reading(sample_rate, int_values, trim_silence, load_audio, bos_id, eos_id, pad_id, strict_data)
        batching = Batching(batch_size, shuffle, bucketing, drop_last, max_batch_seconds, _WORDS)
        written = Manifest.open(manifest_filepath, strict=strict_data, lenient=not strict_data)
        manifest = with_file_durations(written) if load_audio and not strict_data else written
        reading = replace(reading, durations_told=manifest is not written)
        kept = manifest.between(min_duration, max_duration)
        super().__init__(
            between_label_rates(kept, new_parser(), min_label_rate, max_label_rate),
            new_parser,
            reading=reading,
            batching=batching,
            augmentor=augmentor,
            max_corrupt=max_corrupt,
            num_workers=num_workers,
            pin_memory=pin_memory,
            name=name,
        )

    @property
    def _dataset(self) -> ItemTensors:
        """Items by position, for scripts of NeMo that read them."""
        return ItemTensors(self.utterances, self._new_dataset())

    @property
    def manifest(self) -> Manifest:
        """The utterances, and what was left out."""
        assert isinstance(self.utterances, Manifest)
        return self.utterances

    def fingerprint(self) -> Mapping[str, Any]:
        """Also the durations: they follow from the audio files, which may differ between machines."""
        durations = self.durations[~self._textless]  # the same before and after training left the others out
        return {**super().fingerprint(), f"durations of {self.label}": Content(digest_of(durations.tobytes()))}
