"""The augmentor: perturbations by name, each with its probability; and NeMo's featurizer around it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import get_worker_info

from nemo_asr.augmentation.channel import ClipPerturbation, CodecPerturbation, LowPassPerturbation
from nemo_asr.augmentation.pauses import JoinPerturbation, SilencePerturbation
from nemo_asr.augmentation.perturbation import (
    ColouredNoisePerturbation,
    GainPerturbation,
    Perturbation,
    ShiftPerturbation,
    TrimTailPerturbation,
    WhiteNoisePerturbation,
)
from nemo_asr.augmentation.recordings import (
    BabblePerturbation,
    ImpulsePerturbation,
    NoisePerturbation,
    RirNoisePerturbation,
)
from nemo_asr.augmentation.segment import AnyFile, AudioSegment
from nemo_asr.augmentation.speed import SpeedPerturbation, TimeStretchPerturbation
from nemo_asr.rng import NumbersRng, generator_from, generators_of, reseed, seed_from, seeded_from
from nemo_asr.run.audio.files import Samples
from nemo_lite.base.config import Checked, Config, check_call, unknown_key
from nemo_lite.base.errors import UnknownNameError, UsageError, did_you_mean
from nemo_lite.base.ranges import Share, refuse_out_of_range

perturbation_types: dict[str, type[Perturbation]] = {
    "speed": SpeedPerturbation,
    "time_stretch": TimeStretchPerturbation,
    "gain": GainPerturbation,
    "impulse": ImpulsePerturbation,
    "shift": ShiftPerturbation,
    "trim_tail": TrimTailPerturbation,
    "noise": NoisePerturbation,
    "white_noise": WhiteNoisePerturbation,
    "coloured_noise": ColouredNoisePerturbation,
    "silence": SilencePerturbation,
    "join": JoinPerturbation,
    "rir_noise": RirNoisePerturbation,
    "babble": BabblePerturbation,
    "codec": CodecPerturbation,
    "low_pass": LowPassPerturbation,
    "clip": ClipPerturbation,
}
"""The perturbations that a configuration can name."""


_OURS = f"{__package__}."


def register_perturbation(name: str, perturbation: type[Perturbation]) -> None:
    """Let configurations use a class under ``name``.

    Raises:
        UsageError: the name is taken.
    """
    if name in perturbation_types:
        wanted = f"a name other than {perturbation_types[name].__name__}'s"
        raise UsageError(f'perturbation "{name}" exists', got=perturbation.__name__, wanted=wanted)
    perturbation_types[name] = perturbation


class UnknownPerturbationError(UnknownNameError, KeyError):
    """A perturbation that is not registered."""


class MissingProbabilityError(UsageError, KeyError):
    """A perturbation without its probability."""


def perturbation_problems(section: Config) -> list[str]:
    """One line for each problem with the keys of ``augmentor`` in a file: names, probabilities, arguments."""
    problems = []
    for name, arguments in section.items():
        if name not in perturbation_types:
            problems.append(f"{unknown_key(section, name, perturbation_types)}; one of your own needs --import FILE")
        elif not isinstance(arguments, Config):
            problems.append(f"{section.place(name)}: {section.path_of(name)} holds no mapping of arguments")
        else:
            settings = arguments.without("prob")
            problems += check_call(arguments.without(*settings), _act)
            problems += check_call(settings, perturbation_types[name])
    return problems


def _act(prob: Share) -> None:
    """The key that all perturbations have."""


Perturbations: TypeAlias = Annotated[Mapping[str, Any], Checked(perturbation_problems)]


class AudioAugmentor:
    """Perturbations, each applied with its own probability, one after the other.

    Args:
        perturbations: (probability, perturbation) pairs.
        rng: generator of the draws of :meth:`perturb`, Python's or NumPy's; by default one of its own.

    Attributes:
        join: how often utterances are joined, and how, which a data layer does; None: never.

    Raises:
        UsageError: a probability outside 0 to 1, or two that join.
    """

    def __init__(
        self, perturbations: Sequence[tuple[float, Perturbation]] | None = None, rng: NumbersRng | None = None
    ) -> None:
        self._rng = generator_from(rng) or np.random.default_rng()
        self._worker_seed: int | None = None
        self._pipeline: list[tuple[float, Perturbation]] = []
        self.join: tuple[float, JoinPerturbation] | None = None
        for probability, one in perturbations or []:
            if not 0.0 <= probability <= 1.0:
                place = type(one).__name__
                raise UsageError("prob is no probability", place=place, got=str(probability), wanted="0 to 1")
            if not isinstance(one, JoinPerturbation):
                self._pipeline.append((probability, one))
            elif self.join is not None:
                raise UsageError("join is given twice", place="augmentor.join", remedy="raise max_utterances of one")
            else:
                self.join = (probability, one)

    def perturb(self, segment: AudioSegment) -> None:
        """Change a segment in place.

        Raises:
            UsageError: it joins utterances, and here is one waveform only.
        """
        self._seed_in_worker()
        if self.join is not None:
            self.join[1].perturb(segment)
        for probability, one in self._pipeline:
            if self._rng.random() < probability:
                one.perturb(segment)

    def _seed_in_worker(self) -> None:
        """In a data worker of torch: draw something else than the other workers and epochs, once for each."""
        worker = get_worker_info()
        if worker is not None and worker.seed != self._worker_seed:
            self._worker_seed, seed = worker.seed, seed_from(self._rng)
            own = [generator for _, one in self._pipeline for generator in generators_of(one)]
            reseed([self._rng, *own], seed, worker.seed)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        """Perturbed samples (T',) float32; the given (T,) stay as they are. All draws come from ``rng``."""
        for probability, one in self._pipeline:
            if rng.random() < probability:
                with seeded_from(rng, generators_of(one)) if _may_draw_by_itself(one) else nullcontext():
                    samples = one.perturbed(samples, sample_rate, rng)
        return samples

    def max_augmentation_length(self, length: float) -> float:
        """The longest that audio of this length can become, in the same unit."""
        for _, one in self._pipeline:
            length = one.max_augmentation_length(length)
        return length

    def min_augmentation_length(self, length: float) -> float:
        """The shortest that audio of this length can become, in the same unit."""
        for probability, one in self._pipeline:
            if probability:
                length = one.min_augmentation_length(length)
        return length

    def check_files(self) -> None:
        """See that the files which the perturbations read are there, before training.

        Raises:
            DataError: files that cannot be used.
        """
        for probability, one in self._pipeline:
            if probability:
                one.check_files()

    @classmethod
    def from_config(cls, config: Mapping[str, Mapping[str, Any]] | Sequence[Mapping[str, Any]]) -> AudioAugmentor:
        """An augmentor from ``{name: {prob: ..., argument: ...}}`` or ``[{aug_type: name, prob: ..., cfg: {...}}]``.

        Raises:
            UnknownPerturbationError: a perturbation that is not registered.
            MissingProbabilityError: no probability.
            UsageError: an impossible probability, or unknown or missing arguments.
        """
        if isinstance(config, Mapping):
            sections = [(name, {**arguments}) for name, arguments in config.items()]
        else:
            sections = [
                (entry.get("aug_type", ""), entry.get("cfg", {}) | ({"prob": entry["prob"]} if "prob" in entry else {}))
                for entry in config
            ]
        return cls([_from_section(name, arguments) for name, arguments in sections])


def _may_draw_by_itself(one: Perturbation) -> bool:
    """Whether its ``perturbed`` is a user's, who may have a generator beside the one that is given."""
    function = getattr(type(one), "perturbed", None)
    return not str(getattr(function, "__module__", "")).startswith(_OURS)


def augmentor_of(setting: Mapping[str, Mapping[str, Any]] | AudioAugmentor | None) -> AudioAugmentor | None:
    """The augmentor of a data layer, perhaps described by a configuration.

    Raises:
        UsageError: it is neither.
    """
    if isinstance(setting, Mapping):
        return AudioAugmentor.from_config(setting)
    if setting is not None and not isinstance(setting, AudioAugmentor):
        wanted = "a dictionary or an AudioAugmentor"
        raise UsageError("augmentor is not usable", got=type(setting).__name__, wanted=wanted)
    return setting


def _from_section(name: str, arguments: dict[str, Any]) -> tuple[float, Perturbation]:
    place = f"augmentor.{name}"
    if name not in perturbation_types:
        raise UnknownPerturbationError("perturbation", name, perturbation_types, place="augmentor")
    perturbation_class = perturbation_types[name]
    if "prob" not in arguments:
        raise MissingProbabilityError("prob is missing", place=place, remedy="say how often it acts, from 0 to 1")
    probability = arguments.pop("prob")
    parameters = inspect.signature(perturbation_class).parameters
    for key in arguments.keys() - parameters.keys():
        raise UsageError(f"{key} is not an argument{did_you_mean(key, parameters)}", place=place)
    for parameter in parameters.values():
        if parameter.default is parameter.empty and parameter.name not in arguments:
            raise UsageError(f"{parameter.name} is missing", place=place)
    refuse_out_of_range(perturbation_class.__init__, arguments, perturbation_class.__name__)
    return probability, perturbation_class(**arguments)


class WaveformFeaturizer:
    """Reads files as samples at one rate.

    Args:
        sample_rate: Hz.
        int_values: read through 32-bit integers.
        augmentor: perturbs what is read; None: nothing does.
    """

    def __init__(
        self, sample_rate: int = 16000, int_values: bool = False, augmentor: AudioAugmentor | None = None
    ) -> None:
        self.sample_rate, self.int_values = sample_rate, int_values
        self.augmentor = AudioAugmentor() if augmentor is None else augmentor

    def max_augmentation_length(self, length: float) -> float:
        """The longest that audio of this length can become, in the same unit."""
        return self.augmentor.max_augmentation_length(length)

    def process(self, file_path: AnyFile, offset: float = 0, duration: float = 0, trim: bool = False) -> torch.Tensor:
        """(T,) float32 samples of a path or an open file; see `AudioSegment.from_file`."""
        segment = AudioSegment.from_file(file_path, self.sample_rate, self.int_values, offset, duration, trim)
        return self.process_segment(segment)

    def process_segment(self, audio_segment: AudioSegment) -> torch.Tensor:
        """(T,) float32 samples of a segment, which is perturbed in place."""
        self.augmentor.perturb(audio_segment)
        return torch.tensor(audio_segment.samples, dtype=torch.float)

    @classmethod
    def from_config(
        cls,
        input_config: Mapping[str, Any],
        perturbation_configs: Mapping[str, Mapping[str, Any]] | Sequence[Mapping[str, Any]] | None = None,
    ) -> WaveformFeaturizer:
        """Made from ``sample_rate`` and ``int_values``, and from perturbations as `AudioAugmentor.from_config`."""
        augmentor = None if perturbation_configs is None else AudioAugmentor.from_config(perturbation_configs)
        return cls(input_config.get("sample_rate", 16000), input_config.get("int_values", False), augmentor)
