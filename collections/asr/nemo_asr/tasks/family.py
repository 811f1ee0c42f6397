"""What a family of models is: the roles of its modules, and how these are connected. Our own: `families`.

A family says its roles and its wiring once. Checking a YAML file, training, evaluating, transcribing and exporting all
go through ``Family.connect``. Port types decide which wire goes to which port. No YAML in this file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from nemo_asr.run.options import SearchOptions
from nemo_lite import Dag, DataLayerNM, NeuralModule, NmTensor, logging
from nemo_lite.backends.pytorch.common import LossAggregatorNM
from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.core import (
    AcousticEncodedRepresentation,
    AudioSignal,
    ElementType,
    LabelsType,
    LengthsType,
    NeuralType,
    SpectrogramType,
)
from nemo_lite.core.neural_module import refuse_unconnected
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, symbol

Elements = tuple[type[ElementType], ...]


class Role(NamedTuple):
    """What a module in this role takes and gives. Lengths, optional inputs and further outputs do not count.

    Attributes:
        takes: element types of the ports that need a wire.
        gives: element types of the outputs.
        needed: a file without it is refused, unless a class is the default.
        training_only: it is no part of evaluation; it gives what it takes.
    """

    takes: Elements
    gives: Elements
    needed: bool = False
    training_only: bool = False

    def __str__(self) -> str:
        return f"{written(self.takes)} -> {written(self.gives)}"


def written(elements: Elements) -> str:
    """Element types for a message."""
    return " and ".join(element.__name__ for element in elements) or "nothing"


SPEECH_ROLES: Mapping[str, Role] = {
    "data layer": Role((), (AudioSignal,)),
    "preprocessor": Role((AudioSignal,), (SpectrogramType,), needed=True),
    "multiplier": Role((SpectrogramType, LabelsType), (SpectrogramType, LabelsType), training_only=True),
    "augmentation": Role((SpectrogramType,), (SpectrogramType,), training_only=True),
    "encoder": Role((SpectrogramType,), (AcousticEncodedRepresentation,), needed=True),
}
"""The roles that all families have."""


class Signal(NamedTuple):
    """A padded wire, and the wire of its valid lengths where there is one."""

    values: NmTensor
    lengths: NmTensor | None


class Data(NamedTuple):
    """The wires of a data layer: audio, and the labels of texts (or of classes) where it gives them."""

    audio: Signal
    labels: Signal | None


class Modules(Protocol):
    """The modules of a model, as a family connects them: ``encoded, *_ = modules("encoder", features)``."""

    def __contains__(self, role: object) -> bool:
        """Whether the model has a module in this role."""

    def __call__(self, role: str, *signals: Signal) -> list[Signal]:
        """Connect the module in this role by the types of its ports; see :func:`connect_by_type`."""


class Weighted(NamedTuple):
    """One of several losses, and its factor in the sum that is trained."""

    loss: NmTensor
    weight: float


@dataclass(frozen=True)
class Wires:
    """What a DAG of a model that transcribes can be asked for. Without texts in the data there is no loss.

    Attributes:
        predictions: of the search: a path of labels (B, T), or hypotheses (B, N, U) of ``HypothesesType``.
        loss: of training and evaluation; of a family that gives ``losses``, their weighted sum.
        transcripts, transcript_lengths: the texts of the data, as label ids.
        features, feature_lengths: what the encoder takes.
        log_probs, log_probs_lengths: logarithms of probabilities of the labels and the blank in each frame, such as a
            CTC head gives; None where a family has none. Frames beyond the lengths are padding.
        frames: the wire whose time axis a text has to fit; its frames are those of hypotheses.
        losses: the parts of the loss by name. Training logs each of several, as it reduces its batch.
    """

    predictions: NmTensor
    frames: NmTensor
    loss: NmTensor | None = None
    transcripts: NmTensor | None = None
    transcript_lengths: NmTensor | None = None
    features: NmTensor | None = None
    feature_lengths: NmTensor | None = None
    log_probs: NmTensor | None = None
    log_probs_lengths: NmTensor | None = None
    losses: Mapping[str, Weighted] = field(default_factory=dict)

    @staticmethod
    def of(
        predictions: Signal,
        frames: Signal,
        features: Signal,
        labels: Signal | None,
        losses: Mapping[str, Weighted],
        log_probs: Signal | None = None,
    ) -> Wires:
        """The same from signals, whose lengths are those of the attributes."""
        return Wires(
            predictions=predictions.values,
            frames=frames.values,
            losses=losses,
            transcripts=labels and labels.values,
            transcript_lengths=labels and labels.lengths,
            features=features.values,
            feature_lengths=features.lengths,
            log_probs=log_probs and log_probs.values,
            log_probs_lengths=log_probs and log_probs.lengths,
        )

    def __post_init__(self) -> None:
        parts = list(self.losses.values())
        if len(parts) == 1 and parts[0].weight == 1.0:
            object.__setattr__(self, "loss", parts[0].loss)
        elif parts:
            weights = [part.weight for part in parts]
            total = LossAggregatorNM(len(weights), weights)
            inputs = {port: part.loss for port, part in zip(total.input_ports, parts, strict=True)}
            (loss,) = signals_of(total.connect(**inputs))
            object.__setattr__(self, "loss", loss.values)

    @property
    def scored(self) -> list[NmTensor]:
        """What an evaluation scores, in the order of ``ScoredSet``: the loss comes first.

        Raises:
            UsageError: the data layer gives no texts.
        """
        if self.loss is None or self.transcripts is None or self.transcript_lengths is None:
            raise UsageError("the data layer gives no texts", place=Dag([self.frames]).data_layer.label)
        return [self.loss, self.predictions, self.transcripts, self.transcript_lengths]


class Exported(NamedTuple):
    """A file of an export: what computes some wires from the ports of their data layer, which are its inputs.

    Attributes:
        outputs: the wires by their names in the file. A wire of lengths stands behind the one that it is of.
        examples: a value of each input, in the order of the ports, whose free axes have 2 entries or more; None: audio.
        search: the family in ``known_searches`` whose search reads the file; "" where none does.
        settings: of the first file: what the search has to know beside the labels, as JSON has it.
    """

    outputs: Mapping[str, NmTensor]
    examples: Sequence[Tensor] | None = None
    search: str = ""
    settings: Mapping[str, Any] = MappingProxyType({})


class StandIn(DataLayerNM):
    """Stands for a data layer where a model, or a part of it, is lowered or exported: ports, and no data."""

    def __init__(self, ports: Ports, name: str | None = None) -> None:
        super().__init__(name)
        self._ports = ports

    @property
    def output_ports(self) -> Ports:
        return self._ports

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """Each kind of axis has one size, which is free."""
        kinds = {port: [axis.kind.name for axis in ntype.axes or ()] for port, ntype in self._ports.items()}
        return {port: tuple(map(symbol, names)) for port, names in kinds.items()}


class Family:
    """A kind of model. Derive, say roles and wiring, and make it known: ``register_family("name", MyFamily())``.

    Attributes:
        task: ``transcription`` or ``classification``: what the data layer gives, and what scripts do with the model.
        roles: all roles by name.
        heads: by the name of each head, as ``--head`` takes it, the family of a model that has this head alone; the
            first is used where none is chosen.
        label_roles: those whose weights have a row for each label and, last, one for what is no label: a blank, an end.
            Fine-tuning with other labels takes over the rows of labels that both models have. A module whose weights
            may have more rows behind the labels', or others of the same size, names them: ``label_tensors``.
    """

    task: ClassVar[str] = "transcription"
    roles: ClassVar[Mapping[str, Role]] = SPEECH_ROLES
    heads: ClassVar[Mapping[str, str]] = {}
    label_roles: ClassVar[Sequence[str]] = ("decoder",)

    @property
    def needed_roles(self) -> list[str]:
        """The roles without which it cannot be connected."""
        return [name for name, role in self.roles.items() if role.needed]

    def connect(self, modules: Modules, data: Data, training: bool) -> Any:
        """From the wires of data to those that a DAG can be asked for: :class:`Wires`, or the family's own.

        Args:
            modules: by role.
            data: audio and labels.
            training: go through modules that are for training only.
        """
        raise NotImplementedError(f"{type(self).__name__} has no connect")

    @property
    def name(self) -> str:
        """As YAML files have it."""
        return next((name for name, family in FAMILIES.items() if family is self), type(self).__name__)

    def search(
        self, labels: Sequence[str], options: SearchOptions | None, modules: Mapping[str, NeuralModule]
    ) -> NeuralModule:
        """A search over the family's own wires: a module that takes the place of the model's in the role ``search``.

        Where it has a method ``stream``, as `nemo_asr.run.search.search.Search` says, the model streams by frames;
        where it has ``several(nbest)``, that gives a search of several hypotheses.

        Args:
            labels: the vocabulary.
            options: what is asked of it; None: the model's own search.
            modules: of the model, by role.

        Raises:
            UsageError: it cannot do what is asked for.
        """
        if options is not None:
            options.refuse_others((), f"family {self.name}")
        return modules["search"]

    def with_head(self, head: str, model: Model, labels: Sequence[str]) -> Model:
        """The model of one of its ``heads`` alone, with the same modules.

        Args:
            head: its name.
            model: of this family, with several heads.
            labels: its vocabulary.
        """
        raise NotImplementedError(f"{type(self).__name__} has no with_head")

    def exported(self, wires: Wires, modules: Mapping[str, NeuralModule]) -> dict[str, Exported]:
        """The files of an export by name. The first one takes audio, and gives what the search reads.

        Args:
            wires: from audio.
            modules: of the model, by role.
        """
        search = wires.predictions.call
        return {"model": Exported(dict(search.inputs), search=self.name)}

    def frames_needed(self, labels: Sequence[int]) -> int:
        """Frames without which a text of these label ids cannot be, where no loss is at hand that says it."""
        return 0

    def intermediate(
        self, channels: int, num_classes: int, weight: float, loss: Callable[[], NeuralModule]
    ) -> dict[str, Any]:
        """The modules of training by role, for a second loss of an output in the middle of the encoder.

        Args:
            channels: of that output.
            num_classes: labels.
            weight: of the second loss; 1 - weight is that of the first.
            loss: makes one like the family's own.

        Raises:
            UsageError: it has no such loss.
        """
        remedy = "train without intermediate CTC"
        raise UsageError(f"family {self.name} has no loss in the middle of its encoder", remedy=remedy)

    def problem(self, classes: Mapping[str, type[NeuralModule]], in_file: Iterable[str]) -> tuple[str, str]:
        """What is wrong with the classes of a file: a role and a sentence; two empty texts if nothing is.

        Args:
            classes: by role.
            in_file: the roles that have a section in the file; the others are filled by defaults.
        """
        return "", ""


FAMILY_OF_TASK = {"transcription": "ctc", "classification": "classification"}
"""The families of NeMo's files, which do not name one: by what the data layer gives."""
FAMILIES: dict[str, Family] = {}


def register_family(name: str, family: Family) -> None:
    """Make a family known to YAML files: ``family: NAME``. It replaces one of the same name, and a line says so."""
    if name in FAMILIES:
        tell_of_replacing(name, type(FAMILIES[name]), type(family))
    FAMILIES[name] = family


def tell_of_replacing(name: str, before: type, now: type) -> None:
    """Log that another class stands for a name of YAML files from now on; not where its own file runs once more."""
    places = [f"{cls.__module__}.{cls.__qualname__}" for cls in (before, now)]
    if places[0] != places[1]:
        logging.warning("In YAML files %s is %s from now on, no longer %s", name, places[1], places[0])


def family_of(name: str) -> Family:
    """The family of this name.

    Raises:
        UnknownNameError: there is none.
    """
    if name not in FAMILIES:
        raise UnknownNameError("family", name, FAMILIES)
    return FAMILIES[name]


@dataclass(frozen=True)
class Model:
    """The modules that all DAGs of a model share, by role. It has no ``forward``: :func:`connect` makes DAGs of it.

    ``multiplier``, ``augmentation`` and ``intermediate`` are for training DAGs.

    Attributes:
        intermediate: modules of training that are not saved with the model, by role.
        others: modules in roles that are not named here.
        family: the name of its family.
    """

    preprocessor: NeuralModule
    encoder: NeuralModule
    decoder: NeuralModule | None = None
    loss: NeuralModule | None = None
    search: NeuralModule | None = None
    multiplier: NeuralModule | None = None
    augmentation: NeuralModule | None = None
    intermediate: Mapping[str, NeuralModule] = field(default_factory=dict)
    others: Mapping[str, NeuralModule] = field(default_factory=dict)
    family: str = FAMILY_OF_TASK["transcription"]

    @property
    def modules(self) -> dict[str, NeuralModule]:
        """The modules by role, without ``intermediate``."""
        named = {role: module for role, module in vars(self).items() if isinstance(module, NeuralModule)}
        return {**named, **self.others}

    @staticmethod
    def of(modules: Mapping[str, NeuralModule], family: str, intermediate: Mapping[str, NeuralModule]) -> Model:
        """The model of modules by role."""
        named = {role: module for role, module in modules.items() if role in Model.__dataclass_fields__}
        others = {role: module for role, module in modules.items() if role not in named}
        return Model(**named, intermediate=intermediate, others=others, family=family)


def connect(model: Model, data: DataLayerNM | Sequence[NmTensor], training: bool = False) -> Wires:
    """From a data layer to predictions and, where it gives texts, the loss.

    Args:
        model: the modules, see ``Recipe.model``.
        data: a data layer that gives audio, and texts as label ids; or the wires of one, which several models share.
        training: go through the modules that are for training only.

    Raises:
        NeuralPortNmTensorMismatchError: two modules do not fit each other.
        UsageError: the data layer gives no audio.
    """
    outputs = data() if isinstance(data, DataLayerNM) else tuple(data)
    modules = _Connector(model)
    signals = data_of(outputs)
    wires: Wires = family_of(model.family).connect(modules, signals, training)
    if training and signals.labels and (left := model.intermediate.keys() - modules.connected):
        problem, remedy = f"family {model.family} does not connect {', '.join(sorted(left))}", "train without these"
        raise UsageError(problem, remedy=remedy)
    return wires


def search_of(model: Model, labels: Sequence[str], options: SearchOptions | None = None) -> NeuralModule:
    """The search of a model with these options, or its own; see :meth:`Family.search`."""
    return family_of(model.family).search(labels, options, model.modules)


def with_nbest(search: NeuralModule, nbest: int) -> NeuralModule:
    """The search with so many hypotheses of each utterance.

    Raises:
        UsageError: it gives one.
    """
    several: Callable[[int], NeuralModule] | None = getattr(search, "several", None)
    if several is not None:
        return several(nbest)
    problem, remedy = "this decoder gives one text", "search with a beam, or give a decoder that has several(nbest)"
    raise UsageError(problem, got=f"nbest {nbest}, {type(search).__name__}", remedy=remedy)


def connect_features(model: Model, features: Signal) -> Wires:
    """The wires of a model behind its preprocessor, from features."""
    wires: Wires = family_of(model.family).connect(_Connector(model, [features]), Data(features, None), training=False)
    return wires


class _Connector:
    """Connects the modules of a model; ``features`` stand for what its preprocessor gives."""

    def __init__(self, model: Model, features: list[Signal] | None = None) -> None:
        self._modules = {**model.modules, **model.intermediate}
        self._features = features
        self.connected = set[str]()

    def __contains__(self, role: object) -> bool:
        return role in self._modules

    def __call__(self, role: str, *signals: Signal) -> list[Signal]:
        if role == "preprocessor" and self._features is not None:
            return self._features
        self.connected.add(role)
        return connect_by_type(self._modules[role], *signals)


def data_of(outputs: NmTensor | tuple[NmTensor, ...]) -> Data:
    """The audio that a data layer gives, and the labels where they are there.

    Raises:
        UsageError: it gives no audio.
    """
    signals = signals_of(outputs)
    audio, labels = (next((s for s in signals if _is(s, element)), None) for element in (AudioSignal, LabelsType))
    if audio is None:
        call = signals[0].values.call
        got = ", ".join(call.outputs)
        raise UsageError("the data layer gives no audio", place=call.module.label, got=got)
    return Data(audio, labels)


def augmented_features(modules: Modules, data: Data, training: bool) -> tuple[Signal, Signal | None]:
    """The features of audio and the labels; in training through multiplier and augmentation, where there are some."""
    features, *_ = modules("preprocessor", data.audio)
    labels = data.labels
    if training and "multiplier" in modules and labels:
        features, labels = modules("multiplier", features, labels)
    if training and "augmentation" in modules:
        features, *_ = modules("augmentation", features)
    return features, labels


def connect_by_type(module: NeuralModule, *signals: Signal) -> list[Signal]:
    """Connect a module to signals; what it gives. Lengths that it does not give are those of the first signal.

    A port takes the first signal of its element type that is left; a port that needs one and finds none takes the first
    that is left, so that the connection says what does not fit. The k-th port for lengths belongs to the k-th other
    port, among inputs and among outputs.
    """
    ports = module.input_ports
    value_ports = [port for port, ntype in ports.items() if not is_lengths(ntype)]
    length_ports = [port for port, ntype in ports.items() if is_lengths(ntype)]
    left = list(signals)
    chosen: list[Signal | None] = []
    for ntype in (ports[port] for port in value_ports):
        fallback = left[0] if left and not ntype.optional else None
        signal = next((signal for signal in left if _is(signal, type(ntype.elements_type))), fallback)
        chosen.append(signal)
        if signal:
            left.remove(signal)
    inputs = {port: signal.values for port, signal in zip(value_ports, chosen, strict=True) if signal}
    for port, signal in zip(length_ports, chosen, strict=False):
        if signal and signal.lengths:
            inputs[port] = signal.lengths
    outputs = module.connect(**inputs)
    refuse_unconnected(module.label, ports, inputs)
    return signals_of(outputs, signals[0].lengths)


def signals_of(outputs: NmTensor | tuple[NmTensor, ...], lengths: NmTensor | None = None) -> list[Signal]:
    """The wires of a call as signals; ``lengths`` for those that have none of their own."""
    wires = (outputs,) if isinstance(outputs, NmTensor) else outputs
    own_lengths = [wire for wire in wires if is_lengths(wire.ntype)]
    values = [wire for wire in wires if not is_lengths(wire.ntype)]
    return [Signal(wire, own_lengths[k] if k < len(own_lengths) else lengths) for k, wire in enumerate(values)]


def is_lengths(ntype: NeuralType) -> bool:
    """Whether a wire, or a port, is of lengths."""
    return isinstance(ntype.elements_type, LengthsType)


def _is(signal: Signal, element: type[ElementType]) -> bool:
    return isinstance(signal.values.ntype.elements_type, element)
