"""The modules that a recipe may name, their roles, and how a model is connected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nemo_asr.arguments import source_argument
from nemo_lite import Dag, DataLayerNM, LossNM, NeuralModule, NmTensor
from nemo_lite.core import (
    AcousticEncodedRepresentation,
    AudioSignal,
    ElementType,
    LabelsType,
    LengthsType,
    LogprobsType,
    LossType,
    NeuralType,
    Ports,
    PredictionsType,
    SpectrogramType,
)
from nemo_lite.core.ports import refuse_unconnected
from nemo_lite.errors import UnknownNameError, UsageError

# The module classes that a model's YAML may name, and the role of each. No class is named in this file.
# ``register(MyModule)`` makes a class known: in ``nemo_asr/tasks/known_modules.py``, in a package or in a user's file.
# Nothing is imported because a YAML file names it.


Elements = tuple[type[ElementType], ...]

# A role: what its module takes, and what it gives. Lengths, optional inputs and further outputs do not count.
ROLES: dict[str, tuple[Elements, Elements]] = {
    "data layer": ((), (AudioSignal,)),
    "preprocessor": ((AudioSignal,), (SpectrogramType,)),
    "multiplier": ((SpectrogramType, LabelsType), (SpectrogramType, LabelsType)),
    "augmentation": ((SpectrogramType,), (SpectrogramType,)),
    "encoder": ((SpectrogramType,), (AcousticEncodedRepresentation,)),
    "decoder": ((AcousticEncodedRepresentation,), (LogprobsType,)),
    "loss": ((LogprobsType, LabelsType), (LossType,)),
    "greedy": ((LogprobsType,), (PredictionsType,)),
}

# What a recipe's model gives for a recording: its text, or a class of a list. The data layer decides.
TASKS = ("transcription", "classification")

_ROLES_OF_BASES: dict[type[NeuralModule], str] = {DataLayerNM: "data layer", LossNM: "loss"}


class OlderArgument(NamedTuple):
    """What became of an argument of older files: today's argument, and today's value of each older value."""

    newer: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Known:
    """A registered class, its role, the arguments that older files have, and the task that it is of."""

    module_class: type[NeuralModule]
    role: str
    older: Mapping[str, OlderArgument] = field(default_factory=dict)
    task: str = TASKS[0]


KNOWN: dict[str, Known] = {}
DEFAULTS: dict[str, dict[str, type[NeuralModule]]] = {task: {} for task in TASKS}
"""By task and role, what fills it where a file has no section for it."""
MODEL_NAMES: list[str] = []
"""Classes of whole models that a file's own header may name."""


def register(
    module_class: type[NeuralModule],
    *,
    role: str = "",
    default: bool = False,
    older_names: Iterable[str] = (),
    older_arguments: Mapping[str, OlderArgument] | None = None,
    task: str = TASKS[0],
) -> None:
    """Make a module class usable in YAML files, under its name.

    Args:
        module_class: the class. A class of the same name that was registered before is replaced.
        role: one of :data:`ROLES`; needed where the ports are properties, which only an object has.
        default: it fills its role in files without a section for it.
        older_names: further names that it has in older files.
        older_arguments: arguments of older files, and what became of each.
        task: one of :data:`TASKS`: of a data layer, that of the recipes which have it; else, where it is a default.

    Raises:
        UsageError: the ports are of no role, or are properties and ``role`` is missing; or the first argument of a data
            layer is not its source.
        UnknownNameError: another role or task.
    """
    if role and role not in ROLES:
        raise UnknownNameError("role", role, ROLES, place=module_class.__name__)
    if task not in TASKS:
        raise UnknownNameError("task", task, TASKS, place=module_class.__name__)
    known = Known(module_class, role or role_of(module_class), older_arguments or {}, task)
    if known.role == "data layer":
        source_argument(module_class)
    for name in (module_class.__name__, *older_names):
        KNOWN[name] = known
    if default:
        DEFAULTS[task][known.role] = module_class


def register_models(*names: str) -> None:
    """Make names of whole models known: files whose own header names one hold its sections."""
    MODEL_NAMES.extend(names)


def role_of(module_class: type[NeuralModule]) -> str:
    """The role of a class: that of its base for data layers and losses, else by the element types of its ports.

    Raises:
        UsageError: the ports are of no role, or are properties.
    """
    for base, role in _ROLES_OF_BASES.items():
        if issubclass(module_class, base):
            return role
    inputs, outputs = (getattr(module_class, ports) for ports in ("input_ports", "output_ports"))
    if isinstance(inputs, property) or isinstance(outputs, property):
        problem, remedy = "its ports cannot be read before its constructor has run", "give register the role as well"
        raise UsageError(problem, place=module_class.__name__, got="properties", remedy=remedy)
    taken, given = _values_of(inputs), _values_of(outputs)
    for role, (takes, gives) in ROLES.items():
        if _all_found(takes, taken) and len(takes) == len(taken) and _all_found(gives, given):
            return role
    raise UsageError(
        "its ports are of no role in a recipe",
        place=module_class.__name__,
        got=f"takes {_written(taken)}, gives {_written(given)}",
        wanted="; ".join(f"{role}: {_written(takes)} -> {_written(gives)}" for role, (takes, gives) in ROLES.items()),
    )


def _values_of(ports: Ports) -> Elements:
    kinds = [type(port.elements_type) for port in ports.values() if not port.optional]
    return tuple(kind for kind in kinds if kind is not LengthsType)


def _all_found(wanted: Elements, kinds: Elements) -> bool:
    return all(any(issubclass(kind, want) or issubclass(want, kind) for kind in kinds) for want in wanted)


def _written(elements: Elements) -> str:
    return " and ".join(element.__name__ for element in elements) or "nothing"


# connect: a model's modules on the wires of a data layer, by the types of their ports. No YAML in this file.


@dataclass(frozen=True)
class IntermediateCTC:
    """A second CTC loss, of an output in the middle of the encoder: the layers before it learn to tell labels apart.

    The training loss is ``(1 - w)`` times that of the encoder's end and ``w`` times this one.

    Source: Lee and Watanabe, "Intermediate Loss Regularization for CTC-based Speech Recognition", ICASSP 2021.

    Attributes:
        decoder: from the intermediate output to log-probabilities.
        loss: of them.
        total: takes the losses of the end and of the middle, and weighs them.
    """

    decoder: NeuralModule
    loss: NeuralModule
    total: NeuralModule


@dataclass(frozen=True)
class Model:
    """The modules that all DAGs of a model share, by role. It has no ``forward``: :func:`connect` makes DAGs of it.

    ``multiplier``, ``augmentation`` and ``intermediate`` are for training DAGs.
    """

    preprocessor: NeuralModule
    encoder: NeuralModule
    decoder: NeuralModule
    loss: NeuralModule
    greedy: NeuralModule
    multiplier: NeuralModule | None = None
    augmentation: NeuralModule | None = None
    intermediate: IntermediateCTC | None = None


@dataclass(frozen=True)
class Wires:
    """What a DAG of a model can be asked for. Without texts in the data there is no loss and no transcript.

    ``features`` are what the encoder takes. Frames of ``log_probs`` beyond ``log_probs_lengths`` are padding.
    """

    log_probs: NmTensor
    predictions: NmTensor
    loss: NmTensor | None = None
    transcripts: NmTensor | None = None
    transcript_lengths: NmTensor | None = None
    features: NmTensor | None = None
    feature_lengths: NmTensor | None = None
    log_probs_lengths: NmTensor | None = None

    @property
    def scored(self) -> list[NmTensor]:
        """What the callback functions of :mod:`nemo_asr.helpers` take, in their order: the loss comes first.

        Raises:
            UsageError: the data layer gives no texts.
        """
        if self.loss is None or self.transcripts is None or self.transcript_lengths is None:
            raise UsageError("the data layer gives no texts", place=Dag([self.log_probs]).data_layer.label)
        return [self.loss, self.predictions, self.transcripts, self.transcript_lengths]


class Signal(NamedTuple):
    """A padded wire, and the wire of its valid lengths where there is one."""

    values: NmTensor
    lengths: NmTensor | None


def connect(model: Model, data_layer: DataLayerNM, training: bool = False) -> Wires:
    """From a data layer to log-probabilities, predictions and, where it gives texts, the loss.

    Args:
        model: the modules, see ``Recipe.model``.
        data_layer: it gives audio, and texts as label ids.
        training: go through the model's multiplier and augmentation, and add its intermediate CTC, where it has them.

    Raises:
        NeuralPortNmTensorMismatchError: two modules do not fit each other.
        UsageError: the data layer gives no audio.
    """
    data = signals_of(data_layer())
    audio, text = (next((s for s in data if _is(s, element)), None) for element in (AudioSignal, LabelsType))
    if audio is None:
        ports = ", ".join(data_layer.output_ports)
        raise UsageError("the data layer gives no audio", place=data_layer.label, got=ports)
    features, *_ = connect_by_type(model.preprocessor, audio)
    if training and model.multiplier and text:
        features, text = connect_by_type(model.multiplier, features, text)
    if training and model.augmentation:
        features, *_ = connect_by_type(model.augmentation, features)
    encoded, *others = connect_by_type(model.encoder, features)
    log_probs, *_ = connect_by_type(model.decoder, encoded)
    loss = connect_by_type(model.loss, log_probs, text)[0].values if text else None
    if training and model.intermediate and loss and text:
        middle, *_ = connect_by_type(model.intermediate.decoder, *others)
        (of_middle, _), *_ = connect_by_type(model.intermediate.loss, middle, text)
        loss = model.intermediate.total(loss_1=loss, loss_2=of_middle)
    predictions = connect_by_type(model.greedy, log_probs)[0].values
    transcripts, transcript_lengths = text or (None, None)
    return Wires(log_probs.values, predictions, loss, transcripts, transcript_lengths, *features, log_probs.lengths)


def connect_by_type(module: NeuralModule, *signals: Signal) -> list[Signal]:
    """Connect a module to signals; what it gives. Lengths that it does not give are those of the first signal.

    A port takes the first signal of its element type that is left; a port that needs one and finds none takes the first
    that is left, so that the connection says what does not fit. The k-th port for lengths belongs to the k-th other
    port, among inputs and among outputs.
    """
    ports = module.input_ports
    value_ports = [port for port, ntype in ports.items() if not _is_lengths(ntype)]
    length_ports = [port for port, ntype in ports.items() if _is_lengths(ntype)]
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
    own = [wire for wire in wires if _is_lengths(wire.ntype)]
    values = [wire for wire in wires if not _is_lengths(wire.ntype)]
    return [Signal(wire, own[k] if k < len(own) else lengths) for k, wire in enumerate(values)]


def _is_lengths(ntype: NeuralType) -> bool:
    return isinstance(ntype.elements_type, LengthsType)


def _is(signal: Signal, element: type[ElementType]) -> bool:
    return isinstance(signal.values.ntype.elements_type, element)
