"""AudioAugmentor: which perturbations act on a waveform, each with its probability. What they do: `perturbation`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import numpy as np

from nemo_asr.arguments import NumbersRng, Share, generator_from
from nemo_asr.audio import perturbation
from nemo_asr.audio.perturbation import Perturbation
from nemo_asr.audio.reading import Samples
from nemo_asr.audio.segment import AudioSegment
from nemo_lite.config import Config, check_call, unknown_key
from nemo_lite.config.ranges import Checked, Items
from nemo_lite.errors import UnknownNameError, UsageError, did_you_mean

perturbation_types: dict[str, type[Perturbation]] = {
    "speed": perturbation.SpeedPerturbation,
    "time_stretch": perturbation.TimeStretchPerturbation,
    "gain": perturbation.GainPerturbation,
    "impulse": perturbation.ImpulsePerturbation,
    "shift": perturbation.ShiftPerturbation,
    "noise": perturbation.NoisePerturbation,
    "white_noise": perturbation.WhiteNoisePerturbation,
}
"""The perturbations that a configuration can name."""


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

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would quote it


class MissingProbabilityError(UsageError, KeyError):
    """A perturbation without its probability."""

    def __str__(self) -> str:
        return str(self.args[0])


def perturbation_problems(section: Config) -> list[str]:
    """One line for each problem with the keys of ``augmentor`` in a file: names, probabilities, arguments."""
    problems = []
    for name, arguments in section.items():
        if name not in perturbation_types:
            problems.append(f"{unknown_key(section, name, perturbation_types)}; one of your own needs --import FILE")
        elif not isinstance(arguments, Config):
            problems.append(f"{section.place(name)}: {section.path_of(name)} holds no mapping of arguments")
        else:
            others = arguments.without("prob")
            problems += check_call(arguments.without(*others), _act) + check_call(others, perturbation_types[name])
    return problems


def _act(prob: Share) -> None:
    """The key that all perturbations have."""


Perturbations: TypeAlias = Annotated[Mapping[str, Any], Items(0, 100), Checked(perturbation_problems)]


class AudioAugmentor:
    """Perturbations, each applied with its own probability, one after the other.

    Args:
        perturbations: (probability, perturbation) pairs.
        rng: generator of the draws of :meth:`perturb`, Python's or NumPy's; by default one of its own.

    Raises:
        UsageError: a probability outside 0 to 1.
    """

    def __init__(
        self, perturbations: Sequence[tuple[float, Perturbation]] | None = None, rng: NumbersRng | None = None
    ) -> None:
        self._rng = generator_from(rng) or np.random.default_rng()
        self._pipeline = list(perturbations or [])
        for probability, one in self._pipeline:
            if not 0.0 <= probability <= 1.0:
                place = type(one).__name__
                raise UsageError("prob is no probability", place=place, got=str(probability), wanted="0 to 1")

    def perturb(self, segment: AudioSegment) -> None:
        """Change a segment in place."""
        for probability, one in self._pipeline:
            if self._rng.random() < probability:
                one.perturb(segment)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        """Perturbed samples (T',) float32; the given (T,) stay as they are. All draws come from ``rng``."""
        for probability, one in self._pipeline:
            if rng.random() < probability:
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
            sections = [(entry.get("aug_type", ""), {**entry.get("cfg", {}), **_prob_of(entry)}) for entry in config]
        return cls([_from_section(name, arguments) for name, arguments in sections])


def augmentor_of(given: Mapping[str, Mapping[str, Any]] | AudioAugmentor | None) -> AudioAugmentor | None:
    """The augmentor that a data layer was given, perhaps as a configuration.

    Raises:
        UsageError: it is neither.
    """
    if isinstance(given, Mapping):
        return AudioAugmentor.from_config(given)
    if given is not None and not isinstance(given, AudioAugmentor):
        wanted = "a dictionary or an AudioAugmentor"
        raise UsageError("augmentor is not usable", got=type(given).__name__, wanted=wanted)
    return given


def _prob_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: entry[key] for key in ("prob",) if key in entry}


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
    return probability, perturbation_class(**arguments)
