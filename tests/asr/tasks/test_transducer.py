"""Transducers and hybrids: they connect, search, stream as they search, and say in one line what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from toys.random_models import RATE, noise

import nemo_asr
from nemo_asr import EndpointRules
from nemo_asr.export.torch_export import export_torch
from nemo_asr.tasks.recipe import recipe_from_text
from nemo_asr.trained.model import TrainedModel, describe
from nemo_lite.base.errors import ConfigError, UsageError

CONTEXTS = [[8, 3], [8, 1], [8, 0]]
KINDS = {"rnnt": "[]", "tdt": "[0, 1, 2, 3, 4]", "tdt without 0": "[1, 2]", "long": "[0, 1, 3, 8]"}


def config(family: str = "transducer", durations: str = "[]", joint: str = "", decoder: str = "") -> str:
    """A small model that streams by frames of 0.04 s."""
    return f"""
family: {family}
sample_rate: 16000
AudioToMelSpectrogramPreprocessor: {{normalize: null, features: 32, pad_to: 0, dither: 0.0}}
ConformerEncoder:
  {{n_layers: 2, d_model: 32, n_heads: 4, subsampling: dw_striding, subsampling_factor: 4, conv_kernel_size: 9,
    subsampling_conv_channels: 8, causal_downsampling: true, att_context_style: chunked_limited,
    att_context_size: {CONTEXTS}, conv_context_size: causal, conv_norm_type: layer_norm}}
{decoder or "RNNTDecoder: {prednet: {pred_hidden: 24, pred_rnn_layers: 2}}"}
RNNTJoint: {{jointnet: {{joint_hidden: 40, pred_hidden: 24}}, durations: {durations}{joint}}}
labels: [" ", "a", "b", "c"]
"""


STATELESS = "StatelessTransducerDecoder: {prednet: {pred_hidden: 24}, context_size: 2}"


def random_model(**of_config: str) -> TrainedModel:
    """With random weights, whose outputs differ from frame to frame."""
    recipe = recipe_from_text(config(**of_config), "model.yaml")
    torch.manual_seed(0)
    modules: Any = recipe.model()
    with torch.no_grad():
        joint = modules.others["joint"]
        joint.enc.weight *= 5
        joint.joint_net[-1].weight *= 10
    for module in modules.modules.values():
        if isinstance(module, torch.nn.Module):
            module.eval()
    return TrainedModel("random", recipe, modules, describe(recipe))


def times(transcript: Any) -> list[tuple[str, float, float]]:
    return [(word.text, word.start, word.end) for word in transcript.words]


@pytest.mark.slow
@pytest.mark.parametrize("context", CONTEXTS, ids=str)
@pytest.mark.parametrize("kind", [*KINDS, "stateless", "hybrid"])
def test_a_stream_has_the_words_and_times_of_the_whole_recording_for_every_context(
    kind: str, context: list[int]
) -> None:
    family = "hybrid" if kind == "hybrid" else "transducer"
    model = random_model(
        family=family,
        durations=KINDS.get(kind, "[0, 1, 2, 3, 4]"),
        decoder=STATELESS if kind == "stateless" else "",
    )
    model.set_att_context_size(context)
    samples = noise(2)
    (whole,) = model.transcribe([samples], RATE, cutting=None)
    assert len(whole.text) > 5
    for size in (701, 4001):  # a duration leads over the ends of most chunks
        stream = model.stream(rules=EndpointRules(silence=9, pause=9))
        for first in range(0, len(samples), size):
            stream.accept(samples[first : first + size])
        *_, final = stream.finish()
        assert stream.text == whole.text
        assert times(final) == times(whole)


def test_a_hybrid_has_log_probabilities_and_both_losses() -> None:
    recipe = recipe_from_text(config("hybrid"), "model.yaml")
    modules = recipe.model(with_weights=False).modules
    assert {"prediction", "joint", "loss", "decoder", "ctc_loss", "search"} <= modules.keys()
    assert {type(modules[role]).__name__ for role in ("decoder", "ctc_loss")} == {
        "JasperDecoderForCTC",
        "AuxiliaryCTCLoss",
    }


MISTAKES = {
    "model.yaml:10:1: RNNTJoint: a joint network has durations or big blanks: got both": {
        "durations": "[0, 1]",
        "joint": ", big_blank_durations: [2, 4]",
    },
    "no duration leads on: got [0], wanted one above 0": {"durations": "[0]"},
    ": RNNTLoss: no loss has these durations: got [2, 4], wanted different": {"durations": "[2, 4]"},
    "num_extra_outputs are not the durations: got 3, of 2 durations, wanted 2": {
        "durations": "[0, 1]",
        "joint": ", num_extra_outputs: 3",
    },
    "model.yaml:9:25: RNNTDecoder.prednet.pred_hiden is not a key (did you mean pred_hidden?)": {
        "decoder": "RNNTDecoder: {prednet: {pred_hiden: 24}}"
    },
    "a projection makes states smaller: got rnn_hidden_size 24, pred_hidden 24": {
        "decoder": "RNNTDecoder: {prednet: {pred_hidden: 24, rnn_hidden_size: 24}}"
    },
    "there is no room for so many labels: got pred_hidden 2, context_size 4": {
        "decoder": "StatelessTransducerDecoder: {prednet: {pred_hidden: 2}, context_size: 4}"
    },
    "D=20 ": {"decoder": "RNNTDecoder: {prednet: {pred_hidden: 20}}"},
    "CTCLossNM.log_probs cannot take ConformerEncoder.outputs": {"joint": "}\nCTCLossNM: {"},
    "; family transducer has RNNTLoss as its loss": {"joint": "}\nCTCLossNM: {"},
}


@pytest.mark.parametrize("message", MISTAKES)
def test_what_does_not_fit_is_one_line_with_its_place(message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe_from_text(config(**MISTAKES[message]), "model.yaml")
    assert message in str(caught.value)


def test_the_loss_of_a_transducer_in_a_file_of_ctc_is_told_by_the_family() -> None:
    with pytest.raises(ConfigError) as caught:
        nemo_asr.load_recipe("conformer_digits", ["RNNTLoss={}"])
    assert str(caught.value).endswith(": RNNTLoss needs a joint, which family ctc has not")


@pytest.mark.parametrize("family", ["transducer", "hybrid"])
def test_intermediate_ctc_is_refused_by_the_name_of_the_family(family: str) -> None:
    recipe = recipe_from_text(config(family), "model.yaml")
    with pytest.raises(UsageError, match=f"^family {family} has no loss in the middle of its encoder; train without"):
        recipe.model(with_weights=False, intermediate_ctc=0.3)


@pytest.mark.parametrize(("family", "remedy"), [("transducer", "write --format"), ("hybrid", "give --head ctc, write")])
def test_a_file_of_log_probabilities_names_the_head_that_gives_them(tmp_path: Path, family: str, remedy: str) -> None:
    with pytest.raises(UsageError, match=f"does not give log_probs, .*: got encoder: frames, .*; {remedy}"):
        export_torch(random_model(family=family), tmp_path / "m.pt2")
    assert not list(tmp_path.iterdir())
