"""AudioToSpeechLabelDataLayer: recordings with a class each: commands, speech or background, speakers.

And the names of classes: which a manifest has, and from a name to its number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from torch import Tensor

from nemo_asr.augmentation import AudioAugmentor, Perturbations
from nemo_asr.data.dataset import Item, Reading, SpeechDataset
from nemo_asr.data.file_durations import with_file_durations
from nemo_asr.data.speech_data_layer import SpeechDataLayer, SpeechPorts
from nemo_asr.run.arguments import BatchSeconds, BatchSize, Duration, SampleRate, Unusable, Workers
from nemo_asr.run.audio.files import Samples
from nemo_asr.run.manifest import LineReader, Manifest, ManifestPaths, R, UtteranceReader, check_limits, class_of
from nemo_asr.run.manifest_kinds import CLASS_KEYS
from nemo_asr.run.text.parser import CharParser
from nemo_lite.backends.pytorch.data.loaders import Counts, Request
from nemo_lite.backends.pytorch.data.order import Batching, CostWords
from nemo_lite.base.errors import MAX_LISTED, ConfigError, DataError, did_you_mean, listed
from nemo_lite.base.files import Content, digest_of
from nemo_lite.base.ranges import Between
from nemo_lite.core.neural_types import AudioSignal, LabelsType, LengthsType, NeuralType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, symbol

_MOST_SHOWN = 12


class UnknownLabelError(DataError, KeyError):
    """A manifest has a class that the model does not know."""


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


_WORDS = CostWords("max_batch_seconds", "recording", " s", "raise it, or lower max_duration")


class LabelPorts(SpeechPorts):
    """The ports and shapes of classified recordings, without data."""

    @property
    def output_ports(self) -> Ports:
        """Audio of a batch with its lengths, and a class for each recording."""
        return {
            "audio_signal": NeuralType("B T", AudioSignal(self._sample_rate)),
            "a_sig_length": NeuralType("B", LengthsType()),
            "label": NeuralType("B", LabelsType()),
            "label_length": NeuralType("B", LengthsType()),
        }

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """Samples, and one class for each."""
        batch = (symbol("B"),)
        return dict(zip(self.output_ports, ((*batch, symbol("samples")), batch, batch, batch), strict=True))


class LabelDataset(SpeechDataset[R]):
    """Samples and class numbers; a batch is audio (B, T), its lengths (B,), class numbers (B,), ones (B,).

    Args:
        reader: finds recordings.
        parser: from the name of a class to its number.
        reading: how audio is read.
        augmentor: perturbs audio in training.
        seed: base of the draws.
        num_samples: bring each recording to this length; 0 leaves it as it is.

    Attributes:
        labels: the names of the classes; num_commands: how many.
        label2id, id2label: from a name to its number, and back.
    """

    def __init__(
        self,
        reader: UtteranceReader[R],
        parser: ClassParser,
        reading: Reading,
        augmentor: AudioAugmentor | None = None,
        seed: int = 0,
        num_samples: int = 0,
    ) -> None:
        super().__init__(reader, parser, reading, augmentor, seed)
        self.num_samples = num_samples
        self.labels, self.num_commands = list(parser.labels), len(parser.labels)
        self.label2id = {name: number for number, name in enumerate(self.labels)}
        self.id2label = dict(enumerate(self.labels))

    def read(self, position: int, ref: R, request: Request[R], counts: Counts) -> Item:
        """Samples (T,) and a list of the class number of one recording."""
        samples, ids = super().read(position, ref, request, counts)
        if self.num_samples and len(samples):
            surplus = max(len(samples) - self.num_samples, 0)
            # In training another part in each epoch; in evaluation the middle, so that a result can be repeated.
            rng = np.random.default_rng([self.seed, request.epoch, position])
            first = int(rng.integers(surplus + 1)) if request.training else surplus // 2
            samples = of_length(samples, self.num_samples, first)
        return samples, ids

    def _made_up_length(self, seconds: float) -> int:
        return self.num_samples or super()._made_up_length(seconds)

    def collate(self, items: Sequence[Item]) -> tuple[Tensor, ...]:
        """As in the class' text."""
        audio, audio_lens, ids, id_lens = super().collate(items)
        return audio, audio_lens, ids[:, 0].contiguous(), id_lens


def of_length(samples: Samples, num_samples: int, first: int = 0) -> Samples:
    """So many samples: those from ``first`` on, or all, repeated; what is then missing is filled from their end."""
    if len(samples) >= num_samples:
        return samples[first : first + num_samples]
    times, missing = divmod(num_samples, len(samples))
    return np.concatenate([*[samples] * times, samples[len(samples) - missing :]])


class AudioToSpeechLabelDataLayer(LabelPorts, SpeechDataLayer):
    """Recordings of JSON-lines manifests: audio (B, T) at ``sample_rate`` with lengths (B,), classes (B,), ones (B,).

    A line names the class under ``command``, ``target`` or ``label``: the first of them that is there. Otherwise
    manifests, durations, paths and damaged files are as in `AudioToTextDataLayer`.

    The arguments that are not explained here are those of `SpeechDataLayer`.

    Args:
        manifest_filepath: one manifest, several separated by commas, or a list.
        labels: the classes; a class' position is its number. None: those of the manifest, sorted as texts.
        load_audio: False gives audio of no samples, for work on the classes.
        time_length: seconds; every recording is brought to this length. A longer one is cut, at a random place in
            training and in the middle in evaluation; a shorter one is repeated. 0: recordings stay as they are.

    Attributes:
        labels: the names of the classes.
        num_classes: how many.

    Raises:
        UsageError: arguments that contradict each other.
        DataError: a manifest that is missing, empty or has lines that are not valid; audio files that are not there.
        UnknownClassError: a class of the manifest is not in ``labels``; it is a DataError and a KeyError.
        ConfigError: labels that are empty or repeated.
    """

    joins_texts = False

    def __init__(
        self,
        *,
        manifest_filepath: ManifestPaths,
        labels: Sequence[str] | None = None,
        batch_size: BatchSize,
        sample_rate: SampleRate = 16000,
        int_values: bool = False,
        num_workers: Workers | None = None,
        shuffle: bool = True,
        min_duration: Duration | None = 0.1,
        max_duration: Duration | None = None,
        trim_silence: bool = False,
        drop_last: bool = False,
        load_audio: bool = True,
        augmentor: Perturbations | AudioAugmentor | None = None,
        time_length: Annotated[float, Between(0, 100_000)] = 0,
        bucketing: bool = False,
        max_batch_seconds: BatchSeconds | None = None,
        max_corrupt: Unusable | None = None,
        pin_memory: bool | None = None,
        strict_data: bool = False,
        name: str | None = None,
    ) -> None:
        names = None if labels is None else class_names(labels)
        check_limits(min_duration, max_duration)
        reading = Reading(sample_rate, int_values, trim_silence, load_audio, strict_data=strict_data)
        batching = Batching(batch_size, shuffle, bucketing, drop_last, max_batch_seconds, _WORDS)
        manifest = Manifest.open(manifest_filepath, strict=strict_data, lenient=True)
        if load_audio and not strict_data:
            manifest = with_file_durations(manifest)
        manifest = manifest.between(min_duration, max_duration)
        classes = classes_of(manifest)
        self.labels = sorted(set(classes)) if names is None else list(names)
        check_known(manifest, classes, self.labels)
        self.num_classes, self._num_samples = len(self.labels), round(time_length * sample_rate)
        super().__init__(
            with_classes(manifest),
            partial(ClassParser, self.labels),
            reading=reading,
            batching=batching,
            augmentor=augmentor,
            max_corrupt=max_corrupt,
            num_workers=num_workers,
            pin_memory=pin_memory,
            name=name,
        )
        self._dataset = self._new_dataset()

    def _new_dataset(self, seed: int = 0) -> LabelDataset[Any]:
        parser = ClassParser(self.labels)
        return LabelDataset(
            self.utterances.reader, parser, self._reading, self._augmentor, seed, num_samples=self._num_samples
        )

    def fingerprint(self) -> Mapping[str, Any]:
        """Also the durations: they follow from the audio files, which may differ between machines."""
        return {**super().fingerprint(), f"durations of {self.label}": Content(digest_of(self.durations.tobytes()))}
