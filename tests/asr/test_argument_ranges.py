"""Every argument that a file or a script gives to a module has a range, which stands beside the parameter."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest

import nemo_asr
import nemo_lite
from nemo_asr.audio.augmentation import perturbation_types
from nemo_asr.commands.reference import is_own
from nemo_asr.decoding.prefix_beam_search import Limits
from nemo_asr.decoding.words import Weights
from nemo_asr.models.jasper import JasperBlockSpec
from nemo_asr.tasks.registry import KNOWN
from nemo_lite.config import annotations_of, without_range
from nemo_lite.core.neural_module import NeuralModule, subclasses

# What no file can hold: lists of objects, and ports; and sections of a whole model, which the recipe checks.
NOT_IN_FILES = {
    "MultiDataLayer": {"data_layers"},
    "RecordingsDataLayer": {"recordings"},
    "TrainableNeuralModuleWrapper": {"input_ports_dict", "output_ports_dict"},
    "Windowed": {"outputs"},
    "ZerosDataLayer": {"output_ports", "dtype"},
    "_Waveforms": {"sample_rate"},  # a stand-in of the export
}
for model in ("ASRConvCTCModel", "JasperNet", "QuartzNet"):
    NOT_IN_FILES[model] = {"preprocessor_params", "encoder_params", "decoder_params", "spec_augment_params"}


def module_classes() -> list[type[NeuralModule]]:
    """All classes of modules of both packages."""
    for package in (nemo_lite, nemo_asr):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
    own = {cls for cls in subclasses(NeuralModule) if cls.__module__.startswith(("nemo_lite.", "nemo_asr."))}
    return sorted(own, key=lambda cls: (cls.__module__, cls.__qualname__))


def missing_ranges(function: Callable[..., Any]) -> dict[str, list[str]]:
    """By parameter, what of its annotation has no range. The range of a name is in NeuralModule."""
    annotations = annotations_of(function)
    _, *parameters = inspect.signature(function).parameters.values()
    names = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD and each.name != "name"]
    found = {name: without_range(annotations[name]) if name in annotations else ["no type"] for name in names}
    return {name: missing for name, missing in found.items() if missing}


def test_every_number_text_and_list_of_every_module_has_a_range():
    classes = module_classes()
    assert {known.module_class for known in KNOWN.values() if is_own(known)} <= {*classes}
    found = {cls.__name__: missing_ranges(cls.__init__) for cls in classes}  # type: ignore[misc]  # of each class
    without = {
        f"{name}.{parameter}": missing
        for name, parameters in found.items()
        for parameter, missing in parameters.items()
        if parameter not in NOT_IN_FILES.get(name, ())
    }
    assert without == {}


@pytest.mark.parametrize(
    "target", [JasperBlockSpec, Limits, Weights, *perturbation_types.values()], ids=lambda target: target.__name__
)
def test_every_number_text_and_list_of_a_block_or_a_perturbation_has_a_range(target):
    assert missing_ranges(target.__init__) == {}


def test_a_parameter_without_a_range_is_found():
    def module(self: object, rates: list[float], size: int = 3, *, is_on: bool = False) -> None: ...

    assert missing_ranges(module) == {"rates": ["a list of float", "float"], "size": ["int"]}
