"""Trial: the parts of a file against their constructors, and against each other by connecting them without weights."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nemo_asr.recipe.sections import MODEL_KEYS, Part
from nemo_asr.recipe.wiring import Signal, pass_through, signals_of
from nemo_asr.text.parser import vocabulary
from nemo_lite import DataLayerNM, NeuralModule, TrainableNM
from nemo_lite.backends.pytorch.nm import without_weights
from nemo_lite.config import Config, check_call, shown
from nemo_lite.core import AudioSignal, AxisKind, AxisType, LabelsType, LengthsType, NeuralType, Ports
from nemo_lite.errors import ConfigError, NemoLiteError, NeuralTypeError

DEFAULT_SAMPLE_RATE = 16000

# Arguments that follow from the labels or from the features, and what stands for them in a trial where those are wrong.
_STAND_INS = {"labels": ["?"], "vocabulary": ["?"], "num_classes": 1, "feat_in": 1, "frame_splicing": 1}


def parameters_of(target: type) -> list[str]:
    """The names of a constructor's parameters."""
    return list(inspect.signature(target.__init__).parameters)[1:]  # type: ignore[misc]  # of the class itself


class Trial:
    """Builds every part of a file without weights and connects it to the one before it.

    Attributes:
        problems: one line each.
        sample_rate: of the whole model.
        labels: of the whole model, without the blank.
        given: for each role the arguments that follow from other parts, where its own section leaves them out.
    """

    def __init__(self, config: Config, parts: Mapping[str, Part]) -> None:
        self._config, self._parts = config, parts
        model = config.without(*(key for key in config if key not in MODEL_KEYS))
        self.problems = check_call(model, _model_keys)
        self.given: dict[str, dict[str, Any]] = {}
        self._roles: dict[str, str] = {}  # by the module's name
        self._follows: dict[str, dict[str, Any]] = {}
        self._splicing = 1
        self.sample_rate = self._sample_rate(model)
        self.labels = self._labels(model)
        for role in ("train", "eval"):
            self._fits(role, None, later=(parameters_of(parts[role].target)[0], "batch_size"))
        self._connect()

    def _connect(self) -> None:
        preprocessor = self._parts.get("preprocessor")
        own_rate = preprocessor.params.get("sample_rate", self.sample_rate) if preprocessor else self.sample_rate
        audio, text = signals_of(_DataStandIn(own_rate).connect())
        features = self._after("preprocessor", audio)
        self._after("multiplier", features, text)
        self._after("augmentation", features)
        log_probs = self._after("decoder", self._after("encoder", features))
        self._after("loss", log_probs, text)
        self._after("greedy", log_probs)

    def _sample_rate(self, model: Config) -> int:
        holders = [model, *(part.params for part in self._parts.values())]
        said = [holder for holder in holders if type(holder.get("sample_rate")) is int]
        for other in said[1:]:
            if other["sample_rate"] != said[0]["sample_rate"]:
                self.problems.append(f"{_placed(other, 'sample_rate')}, {_said(said[0], 'sample_rate')}")
        return int(said[0]["sample_rate"]) if said else DEFAULT_SAMPLE_RATE

    def _labels(self, model: Config) -> list[str]:
        holders = [model, *(part.params for part in self._parts.values())]
        said = [(each, key) for each in holders for key in ("labels", "vocabulary") if isinstance(each.get(key), list)]
        if not said:
            self.problems.append(f"{self._config.place()}: labels is missing, the list of the model's characters")
            return []
        first, first_key = said[0]
        for other, key in said[1:]:
            if other[key] != first[first_key]:
                where = f"{first.path_of(first_key)} (line {first.line(first_key)})"
                self.problems.append(f"{other.place(key)}: {other.path_of(key)} is not the same as {where}")
        try:
            return list(vocabulary(first[first_key], lambda index: first.place(first_key, index)))
        except ConfigError as error:
            self.problems += error.problems
            return []

    def _after(self, role: str, *signals: Signal | None) -> Signal | None:
        """What the part gives for these signals; None where there is no such part or something is wrong."""
        if role not in self._parts:
            return None
        fits = self._fits(role, signals[0])
        module = self._built(role) if fits else None
        known = [signal for signal in signals if signal]
        if module is None or len(known) < len(signals):
            return None
        module.name = self._parts[role].target.__name__
        self._roles[module.name] = role
        if role == "preprocessor":
            self._splicing = module.init_params.get("frame_splicing", 1)
        try:
            return pass_through(module, *known)[0]
        except NeuralTypeError as error:
            self._tell(error, role, self._roles.get(known[0].values.producer_name, role))
            return None

    def _what_follows(self, role: str, source: Signal | None) -> dict[str, Any]:
        """The arguments that a part may leave out, by name; None where what they follow from is wrong."""
        names = parameters_of(self._parts[role].target)
        labels = self.labels or None
        facts: dict[str, Any] = {"sample_rate": self.sample_rate, "labels": labels, "vocabulary": labels}
        facts["num_classes"] = labels and len(labels)
        axes = source.values.ntype.axes or () if source else [AxisType(AxisKind.Dimension)]
        for size in (axis.size for axis in axes if axis.kind is AxisKind.Dimension):
            if size:
                facts["feat_in"] = size // self._splicing if "frame_splicing" in names else size
                facts["frame_splicing"] = self._splicing
            elif source is None:
                facts.update(feat_in=None, frame_splicing=None)
        return {name: value for name, value in facts.items() if name in names}

    def _fits(self, role: str, source: Signal | None, later: Collection[str] = ()) -> bool:
        """Whether a part fits its constructor, with what other parts say and what the script will say ``later``."""
        part = self._parts[role]
        self._follows[role] = self._what_follows(role, source)
        given = {**part.implied, **self._follows[role]}
        self.given[role] = {name: value for name, value in given.items() if name not in part.params}
        problems = check_call(part.params, part.target, given={*self.given[role], *later} - part.params.keys())
        self.problems += problems
        return not problems

    def _built(self, role: str) -> NeuralModule | None:
        """A trial, for what only the constructor knows; None where it refuses, or where what it needs is not known."""
        part, given = self._parts[role], self.given[role]
        unknown = [name for name, value in given.items() if value is None and name in _STAND_INS]
        try:
            # Modules without weights are small, and may look at their values while they are made.
            with without_weights(issubclass(part.target, TrainableNM)):
                module = part.target(**part.params, **{**given, **{name: _STAND_INS[name] for name in unknown}})
        except ConfigError as error:
            file = self._config.place().rsplit(":", 2)[0]
            self.problems += [p if p.startswith(f"{file}:") else f"{part.params.place()}: {p}" for p in error.problems]
        except NemoLiteError as error:
            if not unknown:
                place = self._misfit(role) or f"{part.params.place()}: {part.params.path}"
                self.problems.append(f"{place}: {str(error).removeprefix(f'{part.target.__name__}: ')}")
        else:
            return None if unknown else module
        return None

    def _tell(self, error: NeuralTypeError, role: str, source: str) -> None:
        """A port's error at the argument that makes the difference, else at the section; with the other side's line."""
        misfits = ((each, self._misfit(each)) for each in (role, source))
        blamed, place = next(((each, misfit) for each, misfit in misfits if misfit), ("", ""))
        if not place:
            blamed = role if self._parts[role].params.path else source
            place = self._parts[blamed].params.place()
        other = self._parts[source if blamed == role else role]
        line = f" ({other.target.__name__}: line {other.params.line()})" if other.params.path else ""
        text = f"{place}: {error.problem}{line}: got {error.got}, wanted {error.wanted}; {error.remedy}"
        self.problems.append(text.removesuffix("; "))

    def _misfit(self, role: str) -> str:
        """The first argument of a section that contradicts what follows from other parts."""
        params = self._parts[role].params
        known = ((key, value) for key, value in self._follows[role].items() if key in params and value is not None)
        return next((f"{_placed(params, k)}, wanted {shown(value)}" for k, value in known if params[k] != value), "")


class _DataStandIn(DataLayerNM):
    """Has the ports of a data layer of speech and no data."""

    def __init__(self, sample_rate: int) -> None:
        super().__init__("data_layer")
        self._sample_rate = sample_rate

    @property
    def output_ports(self) -> Ports:
        return {
            "audio_signal": NeuralType("B T", AudioSignal(self._sample_rate)),
            "a_sig_length": NeuralType("B", LengthsType()),
            "transcripts": NeuralType("B T", LabelsType()),
            "transcript_length": NeuralType("B", LengthsType()),
        }


def _model_keys(
    model: str = "", name: str = "", sample_rate: int = DEFAULT_SAMPLE_RATE, labels: Sequence[Any] = ()
) -> None:
    """The keys of a file that belong to no module."""


def _placed(section: Config, key: str) -> str:
    return f"{section.place(key)}: {section.path_of(key)} is {shown(section[key])}"


def _said(section: Config, key: str) -> str:
    return f"{section.path_of(key)} is {shown(section[key])} (line {section.line(key)})"
