"""ConnectionCheck: do the parts of a file fit their constructors, and each other when they are connected?"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, get_origin

from nemo_asr.data.labelled import LabelPorts, class_names
from nemo_asr.data.speech_data_layer import SpeechPorts
from nemo_asr.run.arguments import MOST_WEIGHTS, SampleRate, parameters_of, source_argument
from nemo_asr.run.text.languages import language_code
from nemo_asr.run.text.parser import vocabulary
from nemo_asr.run.text.subwords import Subwords, load_subwords
from nemo_asr.tasks.families import ClassWires
from nemo_asr.tasks.family import Data, Family, Signal, Wires, connect_by_type, signals_of
from nemo_asr.tasks.registry import DATA_ROLES, MODEL_KEYS, ModuleSection, defaults_of
from nemo_asr.text.proposal import AUTO, PUNCTUATED
from nemo_lite import NeuralModule, TrainableNM, logging
from nemo_lite.backends.pytorch.nm import without_weights
from nemo_lite.base.config import Config, check_call, shown, unknown_key
from nemo_lite.base.errors import ConfigError, NemoLiteError, NeuralTypeError, UnknownNameError, with_line
from nemo_lite.base.files import path_in_list
from nemo_lite.base.ranges import annotations_of, is_out_of_range
from nemo_lite.core import AxisKind, Reference
from nemo_lite.core.neural_module import keywords_of

DEFAULT_SAMPLE_RATE = 16000

# What stands for an argument that the labels or the features decide, where those are wrong.
_STAND_INS = {
    "labels": ["?"],
    "vocabulary": ["?"],
    **dict.fromkeys(("num_classes", "vocab_size", "feat_in", "frame_splicing"), 1),
}


class _NotConnectedError(Exception):
    """A part is wrong, so those behind it have no signals."""


class ConnectionCheck:
    """Builds every part of a file without weights and connects it to the one before it.

    Args:
        config: the file.
        parts: its parts by role.
        family: of the model.
        folder: where the path of a tokenizer starts.
        carried: the tokenizer of the model whose configuration this is, unless another one was set from outside.

    Attributes:
        problems: one line each; ``raise_if`` sorts them, and leaves out repeated ones.
        sample_rate: of the whole model.
        labels: of the whole model, without the blank.
        tokenizer: the subwords that the labels are; None where they are not.
        derived: for each role the arguments that other parts decide, where its own section leaves them out.
    """

    def __init__(
        self,
        config: Config,
        parts: Mapping[str, ModuleSection],
        family: Family,
        folder: str = "",
        carried: Subwords | None = None,
    ) -> None:
        self._config = config
        self._family, self._of_classes = family, family.task == "classification"
        self._parts = parts
        self._modules: dict[str, NeuralModule] = {}
        model = config.without(*(key for key in config if key not in MODEL_KEYS))
        self.problems = check_call(model, _model_keys)
        self.derived: dict[str, dict[str, Any]] = {}
        self._decided: dict[str, dict[str, Any]] = {}  # by role: what other parts decide, also where a section says it
        self._holders = [model, *(part.params for part in parts.values())]  # of what is of the whole model
        self.sample_rate = int(self._agreed("sample_rate", _is_rate) or DEFAULT_SAMPLE_RATE)
        self.tokenizer = self._tokenizer(folder, carried)
        self.labels = self._labels(model)
        self._language = self._language_of()
        for role in DATA_ROLES:
            self._derive_arguments(role, None)
            self._check_arguments(role, from_script=(source_argument(parts[role].target), "batch_size"))
        self._connect()

    def _connect(self) -> None:
        preprocessor = self._parts.get("preprocessor")
        rate = preprocessor.params.get("sample_rate") if preprocessor else None
        own_rate = self.sample_rate if rate is None or not _is_rate(rate) else int(rate)  # a wrong one is a problem
        data_layer = (LabelPorts if self._of_classes else SpeechPorts)(own_rate)
        data_layer.label = "data_layer"  # no name, which only one of several threads that load a model could have
        audio, labels = signals_of(data_layer.connect())
        roles = [role for role in self._family.roles if role in self._parts]
        if set(self._family.needed_roles) <= set(roles):
            classes = {role: self._parts[role].target for role in roles}
            in_file = [role for role in roles if self._parts[role].params.path]
            try:
                role, problem = self._family.problem(classes, in_file)
                if problem:
                    self.problems.append(f"{self._parts[role].params.place()}: {problem}")
                wires = self._family.connect(self, Data(audio, labels), training=True)
                if not isinstance(wires, (Wires, ClassWires)):
                    self._report_family(f"connect gives {type(wires).__name__}, wanted Wires")
            except _NotConnectedError:
                pass
            except Exception as error:  # a family of a user's own may raise anything
                if not self.problems:  # else one of them may be the reason
                    kind = type(self._family)
                    code = "" if kind.__module__.startswith("nemo_asr.") else kind  # a module may have raised it
                    self._report_family(f"it cannot connect the modules: {with_line(error, code)}")
        for role in roles:
            if role not in self.derived:  # something before it is wrong
                self._built(role, None)
            if self._refers_to_itself(role):
                part = self._parts[role]
                problem = f"{part.target.__name__} refers to itself, by references of its own or of other modules"
                self.problems.append(f"{part.params.place()}: {problem}")
        self._check_size()

    def _refers_to_itself(self, role: str) -> bool:
        reached, pending = set[str](), [role]
        while pending:
            names = set(references_in(self._parts[pending.pop()].target)) & self._parts.keys() - reached
            reached |= names
            pending += names
        return role in reached

    def __contains__(self, role: object) -> bool:
        return role in self._parts

    def __call__(self, role: str, *signals: Signal) -> list[Signal]:
        """What the part gives for these signals.

        Raises:
            _NotConnectedError: something is wrong with it, and it is not for training only; or there is none.
        """
        if role not in self._parts:
            self._report_family(f"it connects a {role}, and there is no section for one")
            raise _NotConnectedError
        module = self._built(role, signals[0])
        outputs: list[Signal] = []
        try:
            outputs = connect_by_type(module, *signals) if module is not None else []
        except NeuralTypeError as error:
            producer = signals[0].values.producer
            self._report(error, role, next((name for name, other in self._modules.items() if other is producer), role))
        if self._family.roles[role].training_only:
            return list(signals)  # whose axes have sizes
        if not outputs:
            raise _NotConnectedError
        return outputs

    def _built(self, role: str, source: Signal | None) -> NeuralModule | None:
        """The module without weights; None where something is wrong."""
        self._derive_arguments(role, source)
        module = self._try_to_build(role) if self._check_arguments(role, source=source) else None
        if module is not None:
            module.label = self._parts[role].target.__name__
            self._modules[role] = module
        return module

    def _check_size(self) -> None:
        """All parts together must not be too large: one line, at the largest."""
        num_weights = {role: module.num_weights for role, module in self._modules.items()}
        total = sum(num_weights.values())
        if total > MOST_WEIGHTS:
            largest = max(num_weights, key=num_weights.__getitem__)
            section, name = self._parts[largest].params, self._parts[largest].target.__name__
            what = f"{section.path or name} has {num_weights[largest]} of the model's {total} weights"
            self.problems.append(f"{section.place()}: {what}, wanted at most {MOST_WEIGHTS} in all")

    def _agreed(self, key: str, is_valid: Callable[[object], bool]) -> Any:
        """What the file says at one place or at several, where it must be the same; None where it says nothing."""
        holders = [holder for holder in self._holders if is_valid(holder.get(key))]
        for other in holders[1:]:
            if other[key] != holders[0][key]:
                first = f"{holders[0].path_of(key)} is {shown(holders[0][key])} ({holders[0].spot(key)})"
                self.problems.append(f"{_place_and_value(other, key)}, {first}")
        return holders[0][key] if holders else None

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
        lists = [(h, key) for h in self._holders for key in ("labels", "vocabulary") if isinstance(h.get(key), list)]
        if self.tokenizer is not None:
            return self._pieces(self.tokenizer, lists)
        if not lists and model.get("tokenizer") is not None and not self._of_classes:
            return []  # what is wrong with the tokenizer is told
        if not lists and model.get("labels") in (AUTO, PUNCTUATED):
            problem = f"labels is {model.get('labels')}: only training finds them, in its texts"
            remedy = "give the folder of the run or its model in place of the configuration, or write the labels out"
            self.problems.append(f"{self._config.place('labels')}: {problem}; {remedy}")
            return []
        if not lists and model.get("labels") is not None:
            got = shown(model.get("labels"))
            wanted = "a list of the " + ("classes" if self._of_classes else f"characters or {AUTO}")
            self.problems.append(f"{self._config.place('labels')}: labels is {got}, wanted {wanted}")
            return []
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

    def _language_of(self) -> str | None:
        holders = [holder for holder in self._holders if isinstance(holder.get("language"), str)]
        if holders and not any("language" in parameters_of(part.target) for part in self._parts.values()):
            self.problems.append(f"{holders[0].place('language')}: no module here takes a language; leave it out")
            return None
        for holder in holders:
            try:
                language_code(holder["language"])
            except UnknownNameError as error:
                self.problems.append(f"{holder.place('language')}: {error}")
        language: str | None = self._agreed("language", lambda value: isinstance(value, str))
        return language

    def _derive_arguments(self, role: str, source: Signal | None) -> None:
        """Find the arguments that other parts decide; None stands for a value that a wrong part would decide."""
        part = self._parts[role]
        names = parameters_of(part.target)
        labels = self.labels or None
        # The table "argument, filled with" in docs/en/modules.md lists these.
        values: dict[str, Any] = {"sample_rate": self.sample_rate, "labels": labels, "vocabulary": labels}
        if self._language is not None:
            values["language"] = self._language
        values["num_classes"] = values["vocab_size"] = labels and len(labels)
        cuts_texts = role in DATA_ROLES and self.tokenizer is not None
        if cuts_texts:
            values["labels"] = self.tokenizer
        if source is None:
            values.update(feat_in=None, frame_splicing=None)
        for axis in source.values.ntype.axes or () if source else ():
            if axis.kind is AxisKind.Dimension and axis.size:
                preprocessor = self._modules.get("preprocessor")
                splicing = preprocessor.init_params.get("frame_splicing", 1) if preprocessor else 1
                values["feat_in"] = axis.size // (splicing if "frame_splicing" in names else 1)
                values["frame_splicing"] = splicing
        self._decided[role] = {name: value for name, value in values.items() if name in names}
        derived = {**part.implied, **self._decided[role]}
        self.derived[role] = {
            name: value
            for name, value in derived.items()
            if name not in part.params or (cuts_texts and name == "labels")
        }

    def _check_arguments(self, role: str, from_script: Collection[str] = (), source: Signal | None = None) -> bool:
        """Whether a part fits its constructor, with its derived arguments and those that the script will give."""
        part = self._parts[role]
        filled_in = {*self.derived[role], *references_in(part.target), *from_script}
        problems = check_call(part.params, part.target, given=filled_in - part.params.keys())
        known = keywords_of(part.target.__init__)
        if known is not None and len(known) < len(parameters_of(part.target)):  # a base leaves out what it gets
            problems += [unknown_key(part.params, key, known) for key in part.params if key not in known]
        without_size = f"{part.params.place()}: {part.params.path_of('feat_in')} is missing"
        if source and without_size in problems:  # the wire does not say how large its D axis is
            wire = source.values
            axes = [str(axis) for axis in wire.ntype.axes or ()]
            with_size = " ".join("D=64" if axis == "D" else axis for axis in axes)
            in_port = f'write it there, as in "{with_size}", or feat_in here' if "D" in axes else "write feat_in here"
            port = f'{type(wire.producer).__name__}.{wire.output_port_name} is "{" ".join(axes)}"'
            problems[problems.index(without_size)] += f"; {port}, which has no size of D: {in_port}"
        self.problems += problems
        return not problems

    def _try_to_build(self, role: str) -> NeuralModule | None:
        """The module; None where its constructor refuses, or where an argument that it needs is not known."""
        part, derived = self._parts[role], self.derived[role]
        references = {name: self._modules.get(name) or self._referenced(name) for name in references_in(part.target)}
        if None in references.values():
            missing = [name for name in references if name not in self._parts]
            for name in missing:
                of_none = "" if name in self._family.roles else f", which family {self._family.name} has not"
                self.problems.append(f"{part.params.place()}: {part.target.__name__} needs a {name}{of_none}")
            return None
        arguments = {**derived, **{name: Reference(module) for name, module in references.items() if module}}
        stand_ins = {name: _STAND_INS[name] for name, value in derived.items() if value is None and name in _STAND_INS}
        try:
            # Modules without weights are small, and may look at their values while they are made.
            with without_weights(issubclass(part.target, TrainableNM)):
                module = part.target(**part.params, **{**arguments, **stand_ins})
        except ConfigError as error:
            place = part.params.place_to_blame()
            self.problems += [p if part.params.tells_place(p) else f"{place}: {p}" for p in error.problems]
        except NemoLiteError as error:
            if not stand_ins:
                place = self._contradiction(role) or _place_of(error, part)
                self.problems.append(f"{place}: {str(error).removeprefix(f'{error.place}: ')}")
        except Exception as error:  # a constructor may raise anything, a stand-in may be the reason
            if not stand_ins:
                self.problems.append(constructor_problem(part, error))
        else:
            left_out = [key for key in part.params if key in module.left_out]
            self.problems += [unknown_key(part.params, key, parameters_of(part.target)) for key in left_out]
            return None if stand_ins or left_out else module
        return None

    def _referenced(self, role: str) -> NeuralModule | None:
        """A module to which another one refers before it is connected itself; None where it is wrong or not there."""
        if role in self.derived or role not in self._parts:
            return None  # it is made now, or was: what is wrong with it is told
        return self._built(role, None)

    def _report_family(self, problem: str) -> None:
        self.problems.append(f"{self._config.place('family')}: {type(self._family).__name__}: {problem}")

    def _report(self, error: NeuralTypeError, role: str, source: str) -> None:
        """Add a port's error, at the argument that makes the difference or at the section; name the other's line."""
        with_section = role if self._parts[role].params.path else source
        blamed = next((suspect for suspect in (role, source) if self._contradiction(suspect)), with_section)
        place = self._contradiction(blamed) or self._parts[blamed].params.place()
        other = self._parts[source if blamed == role else role]
        line = f" ({other.target.__name__}: {other.params.spot()})" if other.params.path else ""
        parts = [f"{place}: {error.problem}{line}: got {error.got}, wanted {error.wanted}", error.remedy]
        default = defaults_of(self._family.name).get(blamed)
        if default and self._parts[blamed].target is not default:
            parts.append(f"family {self._family.name} has {default.__name__} as its {blamed}")
        self.problems.append("; ".join(filter(None, parts)))

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
    family: str = "",
    sample_rate: SampleRate = DEFAULT_SAMPLE_RATE,
    labels: Sequence[Any] | str | None = None,
    tokenizer: str | None = None,
    language: str | None = None,
) -> None:
    """The keys of a file that belong to no module."""


def references_in(target: type) -> list[str]:
    """The parameters of a constructor that take a ``Reference``: to the module in the role of that name."""
    annotations = annotations_of(target.__init__)  # type: ignore[misc]  # of the class itself
    return [name for name, annotation in annotations.items() if Reference in (annotation, get_origin(annotation))]


def constructor_problem(part: ModuleSection, error: Exception) -> str:
    """The line for an error of any kind that a constructor raised: the section, the error, and where it was raised."""
    logging.debug("%s cannot be made:", part.target.__name__, exc_info=error)
    problem = f"{part.target.__name__} cannot be made: {with_line(error, part.target)}"
    return f"{part.params.place_to_blame()}: {problem}"


def _is_rate(value: object) -> bool:
    return type(value) is int and not is_out_of_range(value, SampleRate)


def _place_of(error: NemoLiteError, part: ModuleSection) -> str:
    """The section whose constructor raised an error, or the item of a list in it that the error names."""
    item = re.fullmatch(rf"{part.target.__name__}\.(\w+)\[(\d+)\]", error.place)
    keys = (item[1], int(item[2])) if item else ()
    place = part.params.place_to_blame()
    section = part.params.path_of(*keys) or part.target.__name__  # a default has no section
    return f"{part.params.place(*keys) if place == part.params.place() else place}: {section}"


def _place_and_value(section: Config, key: str) -> str:
    return f"{section.place(key)}: {section.path_of(key)} is {shown(section[key])}"
