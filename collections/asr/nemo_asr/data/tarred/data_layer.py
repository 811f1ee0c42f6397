"""TarredAudioToTextDataLayer: transcribed speech from tar shards. What it shares with others: `speech_data_layer`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

from torch import Tensor
from torch.utils.data import Dataset

from nemo_asr.arguments import BatchSize, Duration, LabelId, Labels, PadId, SampleRate, Unusable, Word, Workers
from nemo_asr.audio.augmentor import AudioAugmentor, Perturbations
from nemo_asr.data.dataset import Reading, collate
from nemo_asr.data.iteration import ItemTensors
from nemo_asr.data.manifest import ManifestPaths
from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_asr.data.tarred.shards import ShardPaths
from nemo_asr.data.tarred.utterances import TarredReader, TarredUtterances
from nemo_asr.data.utterances import check_limits
from nemo_asr.text.parser import make_parser
from nemo_lite.backends.pytorch.data import Batching, Plan, Shard, sequential_plans
from nemo_lite.config.ranges import Between
from nemo_lite.utils.digests import Content, digest_of


class TarredAudioToTextDataLayer(SpeechDataLayer):
    """Utterances of tar shards: audio (B, T) at ``sample_rate``, label ids (B, U), and their lengths (B,).

    A recording in a shard belongs to the manifest line whose audio path has its name, without folders and ending.
    Recordings without a line, and lines without a recording, are counted, warned of and not used; the others are
    ``len(layer)``. Recordings are read from the shards; nothing is unpacked to disk.

    In training the shards come in another order in each epoch. Laid end to end they are cut into one stretch for each
    rank, of equal numbers of utterances but for one. A rank reads its stretch from front to back, so any number of
    shards suits any number of ranks, and each utterance comes once. The order is a pure function of (shards, seed,
    epoch, rank, world size): the number of workers does not matter. In evaluation the order is that of the shards.

    Args:
        audio_tar_filepaths: the shards: a path, with braces for several (``audio_{0..63}.tar``, in shells that expand
            them ``audio__OP_0..63_CL_.tar``), or a list.
        manifest_filepath: one manifest, several separated by commas, or a list: the lines of all recordings.
        labels: the vocabulary; a label's position is its id.
        batch_size: utterances in a batch on one rank; -1 for the whole set.
        sample_rate: samples a second; recordings of another rate are resampled.
        int_values: read through 32-bit integers: floats beyond full scale are clipped.
        bos_id: id before each text, or None.
        eos_id: id after each text, or None.
        pad_id: id that fills up shorter texts; None is 0.
        min_duration: seconds; shorter utterances are left out and counted.
        max_duration: seconds; longer utterances are left out and counted. None: no limit.
        normalize_transcripts: let the parser rewrite texts (case, white space, numbers), or take them as they are.
        trim_silence: leave out what is more than 60 dB below the loudest part at both ends.
        shuffle_n: in training this many neighbours are shuffled among themselves; they are read within this window. 0:
            utterances come in the order of their shard.
        num_workers: processes that load batches; 0 loads in this one. None: 0, or a GPU's share of the cores.
        augmentor: perturbations in training, ``{name: {prob: ..., ...}}`` or an `AudioAugmentor`.
        drop_last: in training, leave out the utterances that do not fill the last step.
        shuffle: in training, another order of the shards in each epoch.
        max_corrupt: as of `AudioToTextDataLayer`.
        parser: as of `AudioToTextDataLayer`.
        language: as of `AudioToTextDataLayer`.
        pin_memory: page-locked tensors, which go to a GPU faster. None: where there is one.
        strict_data: as of `AudioToTextDataLayer`; also a recording without a line, and a line whose recording is in no
            shard, are errors.
        strip_marks: as of `AudioToTextDataLayer`.
        name: the module's name.

    Raises:
        UsageError: arguments that contradict each other.
        DataError: a shard that is missing, damaged, compressed or ends early; a manifest that is missing, empty or has
            lines that are not valid; two recordings of one name.
        ConfigError: labels that cannot be a vocabulary.
    """

    remedy: ClassVar[str] = "make the tar shards again without the damaged files, or raise max_corrupt"

    def __init__(
        self,
        audio_tar_filepaths: ShardPaths,
        manifest_filepath: ManifestPaths,
        labels: Labels,
        batch_size: BatchSize,
        sample_rate: SampleRate = 16000,
        int_values: bool = False,
        bos_id: LabelId | None = None,
        eos_id: LabelId | None = None,
        pad_id: PadId | None = None,
        min_duration: Duration | None = 0.1,
        max_duration: Duration | None = None,
        normalize_transcripts: bool = True,
        trim_silence: bool = False,
        shuffle_n: Annotated[int, Between(0, 1_000_000_000)] = 0,
        num_workers: Workers | None = None,
        augmentor: Perturbations | AudioAugmentor | None = None,
        drop_last: bool = False,
        shuffle: bool = True,
        max_corrupt: Unusable | None = None,
        parser: Word = "auto",
        language: Word | None = None,
        pin_memory: bool | None = None,
        strict_data: bool = False,
        name: str | None = None,
        strip_marks: bool | None = None,
    ) -> None:
        # What costs nothing to check comes before the shards are read.
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
        batching = Batching(batch_size, shuffle, drop_last=drop_last)
        utterances = TarredUtterances.open(audio_tar_filepaths, manifest_filepath, strict=strict_data)
        super().__init__(
            utterances.between(min_duration, max_duration),
            new_parser,
            reading=Reading(sample_rate, int_values, trim_silence, True, bos_id, eos_id, pad_id, strict_data),
            batching=batching,
            augmentor=augmentor,
            max_corrupt=max_corrupt,
            num_workers=num_workers,
            pin_memory=pin_memory,
            name=name,
        )
        self._shuffle_n = shuffle_n

    @property
    def dataset(self) -> Dataset[tuple[Tensor, ...]]:
        """Single utterances in the order of the shards, for scripts that make batches with ``collate_fn``.

        Each is audio (T,), its length, label ids (U,) and their number, unperturbed.
        """
        return ItemTensors(self.utterances, self._new_dataset())

    def collate_fn(self, items: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """A batch of items of ``dataset``, in port order."""
        audio, labels = [item[0].numpy() for item in items], [item[2].tolist() for item in items]
        return collate(audio, labels, self._reading.pad_id or 0)

    def _plans(self, training: bool, shard: Shard) -> Callable[[int], Plan]:
        if not training:
            return super()._plans(training, shard)
        assert isinstance(self.utterances, TarredUtterances)
        starts, batching, window = self.utterances.starts, self._batching, self._shuffle_n
        return sequential_plans(starts, batching, shard, window)

    def fingerprint(self) -> Mapping[str, Any]:
        """The manifests' content, the names and sizes of the shards, where the recordings are; no folders."""
        found = dict(super().fingerprint())
        found.pop(f"{self.label}.manifest_filepath")  # its content counts
        utterances = self.utterances
        assert isinstance(utterances, TarredUtterances)
        assert isinstance(utterances.reader, TarredReader)
        shards = utterances.reader.shards
        names = [os.path.basename(path) for path in shards.paths]
        used = ~self._textless  # the same before and after training left the others out
        spans = [column[used].tobytes() for column in (utterances.rows, utterances.shards, utterances.firsts)]
        return {**found, f"tar shards of {self.label}": Content(digest_of([names, shards.sizes, *spans]))}
