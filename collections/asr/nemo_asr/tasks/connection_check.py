"""A recipe's sections, checked by connecting the model on the meta device."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nemo_asr.arguments import MOST_WEIGHTS, SampleRate, parameters_of, source_argument
from nemo_asr.data.labelled import LabelPorts, class_names
from nemo_asr.data.speech_data_layer import Infeasible, SpeechDataLayer, SpeechPorts
from nemo_asr.tasks.registry import DEFAULTS, KNOWN, MODEL_NAMES, TASKS, Signal, connect_by_type, signals_of
from nemo_asr.text.labels import language_code
from nemo_asr.text.parser import vocabulary
from nemo_asr.text.subwords import Subwords, load_subwords
from nemo_asr.training_options import TRAINING_KEYS
from nemo_lite import Dag, DataLayerNM, NeuralModule, NmTensor, TrainableNM, logging
from nemo_lite.backends.pytorch.nm import without_weights
from nemo_lite.config import Config, check_call, is_out_of_range, shown, unknown_key
from nemo_lite.core import AudioSignal, AxisKind, LabelsType
from nemo_lite.core.shapes import frames_of
from nemo_lite.errors import ConfigError, NemoLiteError, NeuralTypeError, UnknownNameError, UsageError, did_you_mean
from nemo_lite.files import path_in_list

# Transcripts longer than the encoder's output: CTC cannot align them.


_MAX_SHOWN = 20


def leave_out_infeasible(data_layer: DataLayerNM, log_probs: NmTensor, loss: NeuralModule | None = None) -> int:
    """Train without the utterances whose frames, after the encoder's stride, cannot hold their text; list them.

    Their CTC loss is infinite. Those that fit, but not when perturbations make them as short as they can, are listed
    too, and kept: the steps in which they do not fit leave them out. Audio is read only where silence at its ends is
    left out. A data layer of another kind than `SpeechDataLayer` keeps all.

    Args:
        data_layer: the utterances.
        log_probs: the wire whose time axis the text has to fit in.
        loss: the loss of training; only CTC needs a frame for each label. None: CTC.

    Returns:
        How many there are.

    Raises:
        DataError: all are.
    """
    if isinstance(data_layer, SpeechDataLayer):
        data_layer.leave_out_textless()
    found = find_infeasible(data_layer, log_probs, loss, training=True)
    _list(data_layer, [each for each in found if not each.is_always], "steps that make them too short leave them out")
    left_out = [each for each in found if each.is_always]
    _list(data_layer, left_out, "they are left out of training")
    if left_out and isinstance(data_layer, SpeechDataLayer):
        data_layer.leave_out([each.row for each in left_out], "with a text that does not fit its frames")
    return len(left_out)


def warn_of_infeasible(data_layer: DataLayerNM, log_probs: NmTensor, loss: NeuralModule | None = None) -> int:
    """List the utterances of an evaluation set whose frames cannot hold their text; returns how many."""
    found = find_infeasible(data_layer, log_probs, loss)
    _list(data_layer, found, "they count as they are recognised, and their loss is infinite")
    return len(found)


def find_infeasible(
    data_layer: DataLayerNM, log_probs: NmTensor, loss: NeuralModule | None = None, *, training: bool = False
) -> list[Infeasible]:
    """The utterances whose frames cannot hold their text; in training also those that may become too short.

    None where the loss does not say ``is_ctc``: others may take more labels than frames.
    """
    if not isinstance(data_layer, SpeechDataLayer) or not (loss is None or getattr(loss, "is_ctc", False)):
        return []
    try:
        num_frames = frames_of(Dag([log_probs]), log_probs)
    except UsageError as error:
        logging.warning("Transcripts are not compared with the encoder's output: %s", error)
        return []
    return data_layer.infeasible(num_frames, training=training)


def _list(data_layer: DataLayerNM, found: Sequence[Infeasible], consequence: str) -> None:
    for infeasible in found[:_MAX_SHOWN]:
        logging.warning("%s", infeasible)
    if found and isinstance(data_layer, SpeechDataLayer):
        more = f" ({len(found) - _MAX_SHOWN} more are not listed)" if len(found) > _MAX_SHOWN else ""
        sometimes = "" if found[0].is_always else " always"
        count = f"{len(found)} of {len(data_layer)} texts do not{sometimes} fit their frames{more}"
        logging.warning(f"{data_layer.utterances.name}: {count}: {consequence} (a smaller stride gives more frames)")


# The schemas that a model's YAML may have, read into parts: a class and its arguments for each role. No checks.
# A section is either the arguments of the class that its key names (NeMo 0.9), or ``header`` and ``init_params``
# (since 0.10). A file that is one header itself is a model: its ``init_params`` hold the sections. Class names are
# looked up in the registry; nothing is imported because a file says so.


MODEL_KEYS = ("model", "name", "sample_rate", "labels", "tokenizer", "language")

_MOST_SECTIONS = 100  # with those that are only there for their anchors
DATA_ROLES = ("train", "eval")
_NEEDED = ("preprocessor", "encoder")
_PACKAGES = ("nemo_asr", "nemo_lite", "nemo")
_HEADER_KEYS = ("header", "init_params")
_ROLES_OF_MODEL = {
    "preprocessor_params": "preprocessor",
    "encoder_params": "encoder",
    "decoder_params": "decoder",
    "spec_augment_params": "augmentation",
}


@dataclass(frozen=True)
class Part:
    """A class, the arguments that the file has for it, those that follow from its older spelling, and its task."""

    target: type[NeuralModule]
    params: Config
    implied: Mapping[str, Any] = field(default_factory=dict)
    task: str = TASKS[0]


class Parts:
    """The parts of a file, whichever schema it has, and what is wrong with its sections.

    Attributes:
        by_role: the parts; the data layer has two, ``train`` and ``eval``. A role that the file leaves out and that has
            a default is there with no arguments.
        task: that of its data layer.
        repeated: keys of the file that are there only for the values that others repeat with aliases.
        problems: one line each.
    """

    def __init__(self, config: Config) -> None:
        self.by_role: dict[str, Part] = {}
        self.repeated: list[str] = []
        self.problems: list[str] = []
        self._config = config
        if set(_HEADER_KEYS) <= config.keys():
            self._read_model()
        elif len(config) > _MOST_SECTIONS:
            self.problems.append(
                f"{config.place()}: the file has {len(config)} sections, wanted at most {_MOST_SECTIONS}"
            )
        else:
            for key in config:
                if key not in (*MODEL_KEYS, *TRAINING_KEYS):
                    self._read_section(key)
        nothing = config.without(*config)
        self.task = next((part.task for role, part in self.by_role.items() if role in DATA_ROLES), TASKS[0])
        for role, target in DEFAULTS[self.task].items():
            for each in DATA_ROLES if role == "data layer" else (role,):
                self.by_role.setdefault(each, Part(target, nothing))
        for role in _NEEDED:
            if role not in self.by_role and not self.problems:
                example = next(known.module_class.__name__ for known in KNOWN.values() if known.role == role)
                self.problems.append(f"{config.place()}: the {role}'s section is missing, such as {example}")

    def _read_section(self, key: str) -> None:
        section = self._config[key]
        if isinstance(section, Config) and "header" in section:
            name, params = self._with_header(self._config, key)
        else:
            name, params = key, section
        if name not in KNOWN:
            if name == key and not self._config.anchored(key):
                self.problems.append(unknown_key(self._config, key, [*KNOWN, *MODEL_KEYS, *TRAINING_KEYS]))
            elif name == key and self._config.overridden(key):
                self._report(self._config, "is only repeated by others; set it where it is used", key)
            elif name == key:
                self.repeated.append(key)
        elif isinstance(params, Config):
            self._add(name, params, key)
        elif params is not None:  # an empty section of an optional module switches it off
            self._report(self._config, "holds no mapping of arguments", key)

    def _read_model(self) -> None:
        self._class_name(self._config, MODEL_NAMES)
        self._refuse_other_keys(self._config.without("tokenizer"))
        sections = self._config["init_params"]
        if not isinstance(sections, Config):
            self._report(self._config, "holds no sections", "init_params")
            return
        for key, section in sections.items():
            role = _ROLES_OF_MODEL.get(key)
            if role is None:
                self.problems.append(unknown_key(sections, key, _ROLES_OF_MODEL))
            elif section is not None:
                name, params = self._with_header(sections, key)
                if name in KNOWN and KNOWN[name].role != role:
                    self._report(sections, f"names {name}, which is no {role}", key)
                elif params is not None:
                    self._set(role, self._part(name, params), sections, key)

    def _with_header(self, parent: Config, key: str) -> tuple[str, Config | None]:
        """The class that a section's header names, and its arguments; ``("", None)`` where they cannot be used."""
        section = parent[key]
        if not isinstance(section, Config) or "header" not in section:
            self._report(parent, "has no header that names its class", key)
            return "", None
        self._refuse_other_keys(section)
        name = self._class_name(section, KNOWN)
        params = section.get("init_params")
        if params is None:
            params = section.without(*section)
        if not isinstance(params, Config):
            self._report(section, "holds no mapping of arguments", "init_params")
            return "", None
        return (name, params) if name else ("", None)

    def _class_name(self, section: Config, known: Collection[str]) -> str:
        """The class that a header names; '' and a problem, if it is none of the known ones."""
        header = section["header"]
        spec = header.get("full_spec") if isinstance(header, Config) else None
        if not isinstance(spec, str):
            self._report(section, "has no full_spec, the class' name", "header")
            return ""
        package, name = spec.split(".")[0], spec.rsplit(".")[-1]
        own = KNOWN[name].module_class.__module__.split(".")[0] if name in KNOWN else ""
        if name in known and package in (*_PACKAGES, own):
            return name
        remedy = did_you_mean(name, known) or f"; known: {', '.join(known)}"
        self._report(section, f'"{spec[:100]}" is not a class for this{remedy}', "header", "full_spec")
        return ""

    def _add(self, name: str, params: Config, key: str) -> None:
        role = KNOWN[name].role
        if role != "data layer":
            self._set(role, self._part(name, params), self._config, key)
            return
        shared = params.without(*DATA_ROLES)
        for each in [each for each in DATA_ROLES if key.endswith(f"_{each}")] or DATA_ROLES:
            own = params.get(each)
            if own is not None and not isinstance(own, Config):
                self._report(params, "holds no mapping of arguments", each)
            both = shared.overlaid(own) if isinstance(own, Config) else shared
            self._set(each, self._part(name, both), self._config, key)

    def _part(self, name: str, params: Config) -> Part:
        """The part, with the arguments of older files turned into today's."""
        known, implied = KNOWN[name], {}
        for older, (newer, values) in known.older.items():
            if older in params:
                value = params[older]
                if value not in values:
                    wanted = f"{' or '.join(values)}{did_you_mean(str(value), values)}"
                    self._report(params, f"is {shown(value)}, wanted {wanted}", older)
                implied[newer] = values.get(value, next(iter(values.values())))
        return Part(known.module_class, params.without(*known.older), implied, known.task)

    def _set(self, role: str, part: Part, section: Config, key: str) -> None:
        if role in self.by_role:
            first = self.by_role[role].params
            problem = f"is a second {role}; another one is {first.path} ({first.spot()})"
            self._report(section, problem, key)
        self.by_role.setdefault(role, part)

    def _refuse_other_keys(self, section: Config) -> None:
        self.problems += [unknown_key(section, key, _HEADER_KEYS) for key in section if key not in _HEADER_KEYS]

    def _report(self, section: Config, problem: str, *keys: str) -> None:
        self.problems.append(f"{section.place(*keys)}: {section.path_of(*keys)} {problem}")


# Classifier: the modules of a model that gives each recording a class, and their connection to a data layer.


@dataclass(frozen=True)
class Classifier:
    """The modules that all DAGs of a classifier share, by role: :func:`connect_classifier` makes DAGs of it.

    ``multiplier`` and ``augmentation`` are for training DAGs.
    """

    preprocessor: NeuralModule
    encoder: NeuralModule
    decoder: NeuralModule
    loss: NeuralModule
    multiplier: NeuralModule | None = None
    augmentation: NeuralModule | None = None


@dataclass(frozen=True)
class ClassWires:
    """What a DAG of a classifier can be asked for: a score for each class, the true classes, and the loss.

    ``embeddings`` are what a decoder for speakers gives beside the scores.
    """

    loss: NmTensor
    logits: NmTensor
    classes: NmTensor
    embeddings: NmTensor | None = None

    @property
    def scored(self) -> list[NmTensor]:
        """What the classification functions of :mod:`nemo_asr.helpers` take, in their order."""
        return [self.loss, self.logits, self.classes]


def connect_classifier(model: Classifier, data_layer: DataLayerNM, training: bool = False) -> ClassWires:
    """From a data layer to scores of the classes and the loss.

    Args:
        model: the modules, see ``Recipe.classifier``.
        data_layer: it gives audio, and the class of each recording.
        training: go through the model's multiplier and augmentation, where it has them.

    Raises:
        NeuralPortNmTensorMismatchError: two modules do not fit each other.
        UsageError: the data layer gives no audio or no classes.
    """
    data = {type(each.values.ntype.elements_type): each for each in signals_of(data_layer())}
    if AudioSignal not in data or LabelsType not in data:
        got = ", ".join(data_layer.output_ports)
        raise UsageError("the data layer does not give audio and classes", place=data_layer.label, got=got)
    classes = data[LabelsType]
    features, *_ = connect_by_type(model.preprocessor, data[AudioSignal])
    if training and model.multiplier:
        features, classes = connect_by_type(model.multiplier, features, classes)
    if training and model.augmentation:
        features, *_ = connect_by_type(model.augmentation, features)
    encoded, *_ = connect_by_type(model.encoder, features)
    logits, *others = connect_by_type(model.decoder, encoded)
    loss, *_ = connect_by_type(model.loss, logits, classes)
    return ClassWires(loss.values, logits.values, classes.values, others[0].values if others else None)


# ConnectionCheck: do the parts of a file fit their constructors, and each other when they are connected?


DEFAULT_SAMPLE_RATE = 16000

# What stands for an argument that the labels or the features decide, where those are wrong.
_STAND_INS = {"labels": ["?"], "vocabulary": ["?"], "num_classes": 1, "feat_in": 1, "frame_splicing": 1}


class ConnectionCheck:
    """Builds every part of a file without weights and connects it to the one before it.

    Args:
        config: the file.
        parts: its parts by role.
        task: that of its data layer.
        folder: where the path of a tokenizer starts.
        carried: the tokenizer of the model whose configuration this is, unless another one was set from outside.

    Attributes:
        problems: one line each.
        sample_rate: of the whole model.
        labels: of the whole model, without the blank.
        tokenizer: the subwords that the labels are; None where they are not.
        derived: for each role the arguments that other parts decide, where its own section leaves them out.
    """

    def __init__(
        self,
        config: Config,
        parts: Mapping[str, Part],
        task: str = TASKS[0],
        folder: str = "",
        carried: Subwords | None = None,
    ) -> None:
        self._config = config
        self._of_classes = task == "classification"
        self._parts = parts
        model = config.without(*(key for key in config if key not in MODEL_KEYS))
        self.problems = check_call(model, _model_keys)
        self.derived: dict[str, dict[str, Any]] = {}
        self._decided: dict[str, dict[str, Any]] = {}  # by role: what other parts decide, also where a section says it
        self._roles: dict[str, str] = {}  # by the module's name
        self._weights: dict[str, int] = {}  # how many, by role
        self._splicing = 1
        self.sample_rate = self._sample_rate(model)
        self.tokenizer = self._tokenizer(folder, carried)
        self.labels = self._labels(model)
        self._language = self._language_of(model)
        for role in DATA_ROLES:
            self._derive_arguments(role, None)
            self._check_arguments(role, from_script=(source_argument(parts[role].target), "batch_size"))
        self._connect()

    def _connect(self) -> None:
        preprocessor = self._parts.get("preprocessor")
        given = preprocessor.params.get("sample_rate") if preprocessor else None
        own_rate = self.sample_rate if given is None or not _is_rate(given) else int(given)  # a wrong one is told
        ports = LabelPorts if self._of_classes else SpeechPorts
        audio, text = signals_of(ports(own_rate, "data_layer").connect())
        features = self._connect_part("preprocessor", audio)
        self._connect_part("multiplier", features, text)
        self._connect_part("augmentation", features)
        encoded = self._connect_part("encoder", features)
        log_probs = self._connect_part("decoder", encoded)
        self._connect_part("loss", log_probs, text)
        if self._has_search(log_probs):
            self._connect_part("greedy", log_probs)
        self._check_size()

    def _has_search(self, log_probs: Signal | None) -> bool:
        """Whether there is a search that fits the decoder. The default one is for CTC heads alone.

        A decoder that a CTC loss trains is one: the loss' port says so. Of others the classes are compared here.
        """
        if "greedy" not in self._parts or _is_ctc(self._parts["loss"]):
            return True
        decoder, loss, search = (self._parts[role] for role in ("decoder", "loss", "greedy"))
        name, searching = decoder.target.__name__, search.target.__name__
        if not search.params.path and not _is_ctc(decoder):
            searches = sorted({each.module_class.__name__ for each in KNOWN.values() if each.role == "greedy"})
            what = f"there is no section of a search for {name}, which {loss.target.__name__} trains"
            remedy = f"name the search that it needs (known: {', '.join(searches)}); of a CTC head, {searching}: {{}}"
            self.problems.append(f"{decoder.params.place()}: {what}; {remedy}")
            return False
        axes = (log_probs.values.ntype.axes or ()) if log_probs else ()
        size = axes[-1].size if axes else None
        if size and self.labels and size != len(self.labels) + 1 and _is_ctc(search):
            wanted = f"{len(self.labels) + 1}: the labels and the blank"
            what = f"{name} is no CTC head, which {searching} needs: got {size} classes, wanted {wanted}"
            self.problems.append(f"{decoder.params.place()}: {what}")
            return False
        return True

    def _check_size(self) -> None:
        """All parts together must not be too large: one line, at the largest."""
        total, largest = sum(self._weights.values()), max(self._weights, key=self._weights.__getitem__, default="")
        if total > MOST_WEIGHTS:
            section, count = self._parts[largest].params, self._weights[largest]
            what = f"{section.path or self._parts[largest].target.__name__} has {count} of the model's {total} weights"
            self.problems.append(f"{section.place()}: {what}, wanted at most {MOST_WEIGHTS} in all")

    def _sample_rate(self, model: Config) -> int:
        holders = [model, *(part.params for part in self._parts.values())]
        holders = [holder for holder in holders if _is_rate(holder.get("sample_rate"))]
        for other in holders[1:]:
            if other["sample_rate"] != holders[0]["sample_rate"]:
                first = _value_and_line(holders[0], "sample_rate")
                self.problems.append(f"{_place_and_value(other, 'sample_rate')}, {first}")
        return int(holders[0]["sample_rate"]) if holders else DEFAULT_SAMPLE_RATE

    def _tokenizer(self, folder: str, carried: Subwords | None) -> Subwords | None:
        path = self._config.get("tokenizer")
        if not isinstance(path, str):  # another type is told of with the other keys
            return None
        if self._of_classes:
            place = self._config.place("tokenizer")
            self.problems.append(f"{place}: tokenizer is for texts, and this model has classes")
            return None
        if self._config.overridden("tokenizer"):
            carried, folder = None, ""
        try:
            return carried or load_subwords(path_in_list(path, folder))
        except NemoLiteError as error:
            self.problems.append(f"{self._config.place('tokenizer')}: tokenizer: {error}")
            return None

    def _labels(self, model: Config) -> list[str]:
        holders = [model, *(part.params for part in self._parts.values())]
        lists = [(each, key) for each in holders for key in ("labels", "vocabulary") if isinstance(each.get(key), list)]
        if self.tokenizer is not None:
            return self._pieces(self.tokenizer, lists)
        if not lists and model.get("tokenizer") is not None and not self._of_classes:
            return []  # what is wrong with the tokenizer is told
        if not lists:
            what = "classes" if self._of_classes else "characters"
            self.problems.append(f"{self._config.place()}: labels is missing, the list of the model's {what}")
            return []
        first, first_key = lists[0]
        for other, key in lists[1:]:
            if other[key] != first[first_key]:
                where = f"{first.path_of(first_key)} ({first.spot(first_key)})"
                self.problems.append(f"{other.place(key)}: {other.path_of(key)} is not the same as {where}")
        try:
            checked = class_names if self._of_classes else vocabulary
            return list(checked(first[first_key], lambda index: first.place(first_key, index)))
        except ConfigError as error:
            self.problems += error.problems
            return []

    def _pieces(self, tokenizer: Subwords, lists: Sequence[tuple[Config, str]]) -> list[str]:
        """The tokenizer's pieces; labels that are given as well must be the same."""
        what = f"the {len(tokenizer)} pieces of tokenizer ({self._config.spot('tokenizer')})"
        for holder, key in lists:
            if holder[key] != list(tokenizer):
                path = holder.path_of(key)
                remedy = f"leave one of the two out (--set {path}=null or --set tokenizer=null)"
                self.problems.append(f"{holder.place(key)}: {path} is not {what}; {remedy}")
        return list(tokenizer)

    def _language_of(self, model: Config) -> str | None:
        """What the file says, at one place or at several."""
        holders = [model, *(part.params for part in self._parts.values())]
        holders = [holder for holder in holders if isinstance(holder.get("language"), str)]
        problems = dict[str, None]()  # a section is that of two roles
        if holders and not any("language" in parameters_of(part.target) for part in self._parts.values()):
            self.problems.append(f"{holders[0].place('language')}: no module here takes a language; leave it out")
            return None
        for holder in holders:
            try:
                language_code(holder["language"])
            except UnknownNameError as error:
                problems[f"{holder.place('language')}: {error}"] = None
            if holder["language"] != holders[0]["language"]:
                first = _value_and_line(holders[0], "language")
                problems[f"{_place_and_value(holder, 'language')}, {first}"] = None
        self.problems += problems
        return str(holders[0]["language"]) if holders else None

    def _connect_part(self, role: str, *signals: Signal | None) -> Signal | None:
        """What the part gives for these signals; None where there is no such part or something is wrong."""
        if role not in self._parts:
            return None
        self._derive_arguments(role, signals[0])
        module = self._try_to_build(role) if self._check_arguments(role) else None
        known = [signal for signal in signals if signal]
        if module is None or len(known) < len(signals):
            return None
        module.label = self._parts[role].target.__name__
        self._weights[role] = module.num_weights
        self._roles[module.label] = role
        if role == "preprocessor":
            self._splicing = module.init_params.get("frame_splicing", 1)
        try:
            return connect_by_type(module, *known)[0]
        except NeuralTypeError as error:
            self._report(error, role, self._roles.get(known[0].values.producer.label, role))
            return None

    def _derive_arguments(self, role: str, source: Signal | None) -> None:
        """Find the arguments that other parts decide; None stands for a value that a wrong part would decide."""
        part = self._parts[role]
        names = parameters_of(part.target)
        labels = self.labels or None
        # The table "argument, filled with" in docs/en/modules.md lists these.
        values: dict[str, Any] = {"sample_rate": self.sample_rate, "labels": labels, "vocabulary": labels}
        if self._language is not None:
            values["language"] = self._language
        values["num_classes"] = labels and len(labels)
        cuts_texts = role in DATA_ROLES and self.tokenizer is not None
        if cuts_texts:
            values["labels"] = self.tokenizer
        if source is None:
            values.update(feat_in=None, frame_splicing=None)
        for axis in source.values.ntype.axes or () if source else ():
            if axis.kind is AxisKind.Dimension and axis.size:
                values["feat_in"] = axis.size // (self._splicing if "frame_splicing" in names else 1)
                values["frame_splicing"] = self._splicing
        self._decided[role] = {name: value for name, value in values.items() if name in names}
        derived = {**part.implied, **self._decided[role]}
        self.derived[role] = {
            name: value
            for name, value in derived.items()
            if name not in part.params or (cuts_texts and name == "labels")
        }

    def _check_arguments(self, role: str, from_script: Collection[str] = ()) -> bool:
        """Whether a part fits its constructor, with its derived arguments and those that the script will give."""
        part = self._parts[role]
        problems = check_call(part.params, part.target, given={*self.derived[role], *from_script} - part.params.keys())
        self.problems += problems
        return not problems

    def _try_to_build(self, role: str) -> NeuralModule | None:
        """The module; None where its constructor refuses, or where an argument that it needs is not known."""
        part, derived = self._parts[role], self.derived[role]
        stand_ins = {name: _STAND_INS[name] for name, value in derived.items() if value is None and name in _STAND_INS}
        try:
            # Modules without weights are small, and may look at their values while they are made.
            with without_weights(issubclass(part.target, TrainableNM)):
                module = part.target(**part.params, **{**derived, **stand_ins})
        except ConfigError as error:
            place = part.params.place_to_blame()
            self.problems += [p if part.params.tells_place(p) else f"{place}: {p}" for p in error.problems]
        except NemoLiteError as error:
            if not stand_ins:
                place = self._contradiction(role) or _place_of(error, part)
                self.problems.append(f"{place}: {str(error).removeprefix(f'{error.place}: ')}")
        else:
            return None if stand_ins else module
        return None

    def _report(self, error: NeuralTypeError, role: str, source: str) -> None:
        """Add a port's error, at the argument that makes the difference or at the section; name the other's line."""
        with_section = role if self._parts[role].params.path else source
        blamed = next((each for each in (role, source) if self._contradiction(each)), with_section)
        place = self._contradiction(blamed) or self._parts[blamed].params.place()
        other = self._parts[source if blamed == role else role]
        line = f" ({other.target.__name__}: {other.params.spot()})" if other.params.path else ""
        text = f"{place}: {error.problem}{line}: got {error.got}, wanted {error.wanted}; {error.remedy}"
        self.problems.append(text.removesuffix("; "))

    def _contradiction(self, role: str) -> str:
        """The first argument of a section that is not what other parts decide, with its place; or ""."""
        params = self._parts[role].params
        for key, value in self._decided[role].items():
            if key in params and value not in (None, params[key]):
                return f"{_place_and_value(params, key)}, wanted {shown(value)}"
        return ""


def _model_keys(
    model: str = "",
    name: str = "",
    sample_rate: SampleRate = DEFAULT_SAMPLE_RATE,
    labels: Sequence[Any] | None = None,
    tokenizer: str | None = None,
    language: str | None = None,
) -> None:
    """The keys of a file that belong to no module."""


def _is_ctc(part: Part) -> bool:
    """Whether a class says that it is for CTC: a loss, a head with a class for each label and the blank, a search."""
    return getattr(part.target, "is_ctc", False) is True


def _is_rate(value: object) -> bool:
    return type(value) is int and not is_out_of_range(value, SampleRate)


def _place_of(error: NemoLiteError, part: Part) -> str:
    """The section whose constructor raised an error, or the item of a list in it that the error names."""
    item = re.fullmatch(rf"{part.target.__name__}\.(\w+)\[(\d+)\]", error.place)
    keys = (item[1], int(item[2])) if item else ()
    place = part.params.place_to_blame()
    return f"{part.params.place(*keys) if place == part.params.place() else place}: {part.params.path_of(*keys)}"


def _place_and_value(section: Config, key: str) -> str:
    return f"{section.place(key)}: {section.path_of(key)} is {shown(section[key])}"


def _value_and_line(section: Config, key: str) -> str:
    return f"{section.path_of(key)} is {shown(section[key])} ({section.spot(key)})"
