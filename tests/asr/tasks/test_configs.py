"""The shipped model files: each loads, has the size that it says, and runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from nemo_asr.models.jasper import JasperEncoder
from nemo_asr.tasks.recipe import Recipe, load_recipe
from nemo_lite.base.config import load_config

CONFIGS = Path(__file__).resolve().parents[3] / "examples" / "asr" / "configs"
# Parameters of encoder and decoder. Jasper 10x5 DR and QuartzNet as published; the others as their first lines say.
PARAMETERS = {
    "contextnet": 8.2e6,
    "conformer_digits": 0.93e6,
    "conformer_digits_streaming": 0.93e6,
    "demo": 0.33e6,
    "digits": 0.33e6,
    "hybrid_att_digits": 1.24e6,
    "hybrid_digits": 1.04e6,
    "jasper10x5dr": 333e6,
    "jasper15x5SEP": 18.9e6,
    "jasper_an4": 5.8e6,
    "quartznet15x5": 18.9e6,
    "quartznet15x5_zh": 22.7e6,
    "quartznet5x5": 6.7e6,
    "quartznet_an4": 0.85e6,
    "tdt_digits": 1.03e6,
    "transducer_digits": 1.03e6,
    "transducer_digits_streaming": 1.03e6,
}
# The same of those whose labels are the characters of the training texts, AISHELL-1's here: 4,230.
OF_AISHELL = {"conformer_aishell": 46_195_726, "u2pp_aishell": 48_345_237 + 12 * 256}
"""Parameters of WeNet's own classes by its YAML, with as many outputs: 4,231. Kernels of 9 stand for 8 in U2++."""
# As published: millions of parameters, and the pieces of words with which they have as many.
CONFORMERS = {
    "conformer_ctc_small": (13.15, 1024),
    "conformer_ctc_medium": (30.77, 1024),
    "conformer_ctc_large": (121.50, 128),
    "fastconformer_ctc_large": (115.60, 1024),
    "fastconformer_ctc_xlarge": (608.80, 1024),
    "fastconformer_ctc_xxlarge": (1062.37, 1024),
    "conformer_rnnt_small": (14.61, 1024),
    "conformer_rnnt_medium": (32.50, 1024),
    "conformer_rnnt_large": (120.44, 1024),
    "fastconformer_rnnt_large": (114.10, 1024),
    "fastconformer_rnnt_xlarge": (616.69, 1024),
    "fastconformer_rnnt_xxlarge": (1070.26, 1024),
    "fastconformer_rnnt_streaming": (114.23, 1024),
    "fastconformer_tdt_large": (114.10, 1024),
    "fastconformer_tdt_xlarge": (616.70, 1024),
    "fastconformer_tdt_xxlarge": (1070.26, 1024),
    "fastconformer_hybrid_large": (114.62, 1024),
}
# Classifiers of two classes.
CLASSIFIERS = {"speech_commands": 0.074e6, "voice_activity": 0.074e6, "speakers": 0.194e6}
CLASSES = ["background", "speech"]
ENGLISH = [" ", *"abcdefghijklmnopqrstuvwxyz", "'"]
# Level 1 of GB 2312: rows 16 to 55 of the table, the last one without its last five places.
LABELS = {
    "quartznet15x5_zh": [
        bytes([0xA0 + row, 0xA0 + place]).decode("gb2312")
        for row in range(16, 56)
        for place in range(1, 95 if row < 55 else 90)
    ]
}


def num_parameters(recipe: Recipe) -> int:
    model = (
        recipe.classifier(with_weights=False) if recipe.task == "classification" else recipe.model(with_weights=False)
    )
    modules = (module for module in model.modules.values() if isinstance(module, torch.nn.Module))
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def test_every_shipped_file_is_checked_here() -> None:
    known = {*PARAMETERS, *CONFORMERS, *OF_AISHELL, *CLASSIFIERS}
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == known


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_shipped_classifier_loads_has_its_size_and_runs(name: str) -> None:
    given = [] if name == "voice_activity" else ["labels=[background, speech]"]
    recipe = load_recipe(CONFIGS / f"{name}.yaml", given)
    assert (recipe.task, recipe.sample_rate, recipe.labels) == ("classification", 16000, CLASSES)
    assert num_parameters(recipe) == pytest.approx(CLASSIFIERS[name], rel=0.02)
    features, frames = recipe.preprocessor()(input_signal=torch.randn(2, 8000), length=torch.tensor([8000, 4000]))
    encoded, encoded_frames = recipe.encoder()(audio_signal=features, length=frames)
    out = recipe.decoder()(encoder_output=encoded, encoded_lengths=encoded_frames)
    assert (out if isinstance(out, torch.Tensor) else out[0]).shape == (2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", PARAMETERS)
def test_a_shipped_file_loads_and_has_the_size_it_says(name: str) -> None:
    recipe = load_recipe(CONFIGS / f"{name}.yaml")
    assert (recipe.sample_rate, recipe.labels) == (16000, LABELS.get(name, ENGLISH))
    tolerance = 0.005 if PARAMETERS[name] in (333e6, 18.9e6) else 0.02
    assert num_parameters(recipe) == pytest.approx(PARAMETERS[name], rel=tolerance)


@pytest.mark.parametrize("name", OF_AISHELL)
def test_a_recipe_of_wenet_has_the_size_of_wenets_model(name: str) -> None:
    characters = [chr(0x4E00 + place) for place in range(4230)]
    recipe = load_recipe(CONFIGS / f"{name}.yaml", [f"labels={json.dumps(characters, ensure_ascii=False)}"])
    assert (recipe.family, num_parameters(recipe)) == ("ctc_attention", OF_AISHELL[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if "xlarge" in name else []) for name in CONFORMERS]
)
def test_a_shipped_conformer_has_as_many_parameters_as_the_published_one(name: str) -> None:
    millions, num_pieces = CONFORMERS[name]
    assert load_recipe(CONFIGS / f"{name}.yaml").labels == ENGLISH
    pieces = ", ".join(f"p{number}" for number in range(num_pieces))
    recipe = load_recipe(CONFIGS / f"{name}.yaml", [f"labels=[{pieces}]"])
    assert num_parameters(recipe) / 1e6 == pytest.approx(millions, abs=0.01)


@pytest.mark.parametrize("name", ["demo", "digits", "quartznet_an4", "jasper_an4"])
def test_a_small_shipped_model_runs(name: str) -> None:
    recipe = load_recipe(CONFIGS / f"{name}.yaml")
    features, frames = recipe.preprocessor()(input_signal=torch.randn(2, 8000), length=torch.tensor([8000, 4000]))
    encoded, encoded_frames = recipe.encoder()(audio_signal=features, length=frames)
    assert encoded_frames.tolist() == [25, 13]
    assert recipe.decoder()(encoder_output=encoded).shape[2] == len(ENGLISH) + 1


def test_the_networks_have_their_papers_blocks() -> None:
    jasper = load_config(CONFIGS / "jasper10x5dr.yaml")["JasperEncoder"]["jasper"]
    assert [(block["repeat"], block.get("residual_dense", False)) for block in jasper] == (
        [(1, False)] + [(5, True)] * 10 + [(1, False)] * 2
    )
    quartz = load_config(CONFIGS / "quartznet15x5.yaml")["JasperEncoder"]["jasper"]
    assert [block["kernel"][0] for block in quartz[1:16:3]] == [33, 39, 51, 63, 75]
    assert load_config(CONFIGS / "jasper15x5SEP.yaml")["JasperEncoder"]["jasper"] == quartz


def test_a_section_with_a_header_is_a_modules_own_configuration() -> None:
    with torch.device("meta"):
        encoder = JasperEncoder.import_from_config(CONFIGS / "jasper_an4.yaml", "JasperEncoder")
    axes = encoder.output_ports["outputs"].axes
    assert axes is not None
    assert axes[1].size == 1024
