"""FrameMoments: those of valid frames, as NumPy computes them; an exported model measures what the model does."""

import msgspec
import numpy as np
import pytest
import torch
from toys.random_models import RATE, noise
from toys.random_transducers import TDT, config_of, random_transducer

from nemo_asr.decoding.moments import FrameMoments
from nemo_asr.export.onnx_export import export_onnx
from nemo_asr.run.onnx.onnx_model import OnnxModel
from nemo_asr.run.transcribe.domain import Domain, moments_of
from nemo_asr.trained.model import TrainedModel
from nemo_lite.core.neural_types import EncodedRepresentation, NeuralType


@pytest.mark.parametrize("dims", [6, 300])
@pytest.mark.parametrize("axes", ["B T D", "B D T"])
def test_moments_of_a_batch_are_those_of_the_valid_frames_of_each(axes, dims):
    batch = np.random.default_rng(0).normal(size=(3, 20, dims))
    batch[1, 12:] = np.nan
    lengths = [20, 12, 0]
    frames = torch.from_numpy(batch).movedim(1, axes.split().index("T"))
    found = FrameMoments(NeuralType(axes, EncodedRepresentation()))(frames, torch.tensor(lengths)).numpy()
    for each, row, length in zip(found, batch, lengths, strict=True):
        np.testing.assert_allclose(each, moments_of(row[:length]), rtol=1e-9, atol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("family", ["transducer", "hybrid"])
def test_an_exported_model_measures_what_the_model_does(tmp_path, family):
    pytest.importorskip("onnxruntime")
    known = random_transducer(tmp_path, config_of(TDT, family=family))
    card = msgspec.structs.replace(known.card, domain=Domain())
    model = TrainedModel(known.place, known.recipe, known.modules, card)
    export_onnx(model, tmp_path / "m.onnx")
    exported = OnnxModel(tmp_path / "m.onnx")
    sounds = [noise(2), noise(3)]
    for own, other in zip(
        model.transcribe(sounds, RATE), exported.transcribe(sounds, audio_rate=RATE).or_error(), strict=True
    ):
        assert own.moments[0, 0] > 5  # frames
        np.testing.assert_allclose(other.moments, own.moments, rtol=1e-3, atol=1e-2)
