"""The configuration reference: written from the constructors, complete, and the page in the docs is the newest."""

from __future__ import annotations

import inspect
import re

import pytest
from toys.sources import ROOT

from nemo_asr.audio.augmentor import perturbation_types
from nemo_asr.models.jasper_spec import JasperBlockSpec
from nemo_asr.recipe.reference import argument_texts, keys_of, reference
from nemo_asr.recipe.registry import KNOWN

MODULES = sorted({known.module_class for known in KNOWN.values()}, key=lambda cls: cls.__name__)
CLASSES = [*MODULES, JasperBlockSpec, *perturbation_types.values()]


def test_the_page_in_the_docs_is_what_the_constructors_say():
    page = (ROOT / "docs/en/configuration.md").read_text(encoding="utf-8")
    assert page == reference(), "run: python -m nemo_asr.recipe.reference > docs/en/configuration.md"


@pytest.mark.parametrize(
    "target", [*CLASSES, JasperBlockSpec, *perturbation_types.values()], ids=lambda target: target.__name__
)
def test_every_key_has_a_type_a_default_and_a_text(target):
    keys = keys_of(target)
    names = [*inspect.signature(target.__init__).parameters][1:]
    assert {key.name for key in keys} == {*names} - {"name", "rng", "batch_size"}
    assert [key.name for key in keys if not key.text] == []
    assert [key.name for key in keys if re.search(r"typing|None|\[", key.type) or not key.type] == []


def test_a_text_of_several_lines_is_one():
    texts = argument_texts(JasperBlockSpec)
    assert texts["filters"] == "output channels."
    assert texts["kernel"].endswith("the window is then symmetric and the number of frames stays.")


def test_defaults_are_written_as_yaml_has_them():
    defaults = {key.name: key.default for key in keys_of(JasperBlockSpec)}
    assert (defaults["filters"], defaults["separable"], defaults["residual_mode"]) == ("needed", "`false`", "`null`")
    assert defaults["se_interpolation_mode"] == "`nearest`"
