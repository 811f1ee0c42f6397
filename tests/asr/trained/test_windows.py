"""Windows of long recordings: equal to the whole where the encoder's context is known."""

import pytest
import torch
from toys.tone_corpus import CONFIG

import nemo_asr
from nemo_asr.tasks.family import StandIn, connect_by_type, signals_of
from nemo_asr.trained.engine import RecordingsDataLayer
from nemo_asr.trained.windows import Windowed, WindowPlan, context_frames, plan_windows, stride_of
from nemo_lite import DeviceType, NeuralModuleFactory, logging

SEPARABLE = "kernel: [11], stride: [2], dilation: [1], dropout: 0.0, residual: false, separable: true"
# Two blocks of several sub-blocks, strides in both, dilation and a residual.
DEEP = f"""    - {{filters: 32, repeat: 1, {SEPARABLE}}}
    - {{filters: 32, repeat: 2, kernel: [5], stride: [2], dilation: [1], dropout: 0.1, residual: false}}
    - {{filters: 64, repeat: 3, kernel: [7], stride: [1], dilation: [2], dropout: 0.1, residual: true}}
"""


@pytest.fixture
def factory():
    return NeuralModuleFactory(placement=DeviceType.CPU, set_default=False)


def model_of(folder, blocks=None):
    """A model with random weights and running statistics."""
    text = CONFIG
    if blocks is not None:
        head, _, rest = CONFIG.partition("  jasper:\n")
        text = f"{head}  jasper:\n{blocks}labels:{rest.partition('labels:')[2]}"
    (folder / "model.yaml").write_text(text)
    torch.manual_seed(0)
    model = nemo_asr.load_recipe(folder / "model.yaml").model()
    encoder = model.encoder
    assert isinstance(encoder, torch.nn.Module)
    for part in encoder.modules():
        if isinstance(part, torch.nn.BatchNorm1d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 2)
    return model


def windowed(model, plan, factory):
    """The part behind the features, that gives log-probabilities and lengths."""
    features = signals_of(model.preprocessor.connect(**_audio(model)))[0]
    source = signals_of(StandIn({"features": features.values.ntype, "length": features.lengths.ntype})())[0]
    encoded, *_ = connect_by_type(model.encoder, source)
    log_probs = connect_by_type(model.decoder, encoded)[0]
    module = Windowed([log_probs.values], log_probs.lengths, plan, factory)
    return module.eval(), stride_of(log_probs.values)


def _audio(model):
    layer = RecordingsDataLayer([], 16000)
    signal = signals_of(layer())[0]
    return {"input_signal": signal.values, "length": signal.lengths}


FEATURES = torch.randn(2, 32, 3001, generator=torch.Generator().manual_seed(1))
LENGTHS = torch.tensor([3001, 1234])


@pytest.mark.parametrize("blocks", [None, DEEP])
def test_windows_give_the_frames_of_the_whole_recording(blocks, tmp_path, factory):
    model = model_of(tmp_path, blocks)
    whole, stride = windowed(model, None, factory)
    plan = plan_windows(stride, context_frames([model.encoder, model.decoder]), 200, 0)
    assert plan.is_exact
    assert 4 * plan.longest < FEATURES.shape[2]
    with torch.no_grad():
        expected, expected_lengths = whole(features=FEATURES, length=LENGTHS)
        got, lengths = windowed(model, plan, factory)[0](features=FEATURES, length=LENGTHS)
    assert got.shape == expected.shape
    assert lengths.tolist() == expected_lengths.tolist()
    for row, end in enumerate(lengths.tolist()):
        assert (got[row, :end] - expected[row, :end]).abs().max() < 1e-5


def test_the_context_is_as_large_as_it_must_be(tmp_path, factory):
    """With one stride less the frames differ: the test above can fail."""
    model = model_of(tmp_path, DEEP)
    whole, stride = windowed(model, None, factory)
    needed = plan_windows(stride, context_frames([model.encoder, model.decoder]), 200, 0)
    short = WindowPlan(needed.core, needed.context - 2 * stride, stride, is_exact=True)
    with torch.no_grad():
        expected = whole(features=FEATURES, length=LENGTHS)[0]
        got = windowed(model, short, factory)[0](features=FEATURES, length=LENGTHS)[0]
    assert (got[0] - expected[0]).abs().max() > 1e-4


def test_the_context_is_what_a_gradient_reaches(tmp_path):
    model = model_of(tmp_path)
    assert context_frames([model.encoder, model.decoder]) == 5
    encoder = model_of(tmp_path, DEEP).encoder.eval()
    features = torch.randn(1, 32, 801, requires_grad=True)
    encoded, _ = encoder(audio_signal=features, length=torch.tensor([801]))
    stride = 800 // (encoded.shape[2] - 1)
    middle = 400 // stride
    encoded[0, :, middle].sum().backward()
    reached = features.grad.abs().sum((0, 1)).nonzero().flatten()
    assert middle * stride - int(reached[0]) == encoder.context_frames
    assert int(reached[-1]) - middle * stride == encoder.context_frames


@pytest.mark.parametrize("key", ["se: true, se_reduction_ratio: 4", "normalization_mode: layer"])
def test_an_encoder_that_sees_everything_says_so_and_is_warned_of(key, tmp_path, factory, monkeypatch):
    block = "filters: 32, repeat: 1, kernel: [11], stride: [2], dilation: [1], dropout: 0.0, residual: false"
    model = model_of(tmp_path, f"    - {{{block}, {key}}}\n" if "se:" in key else f"    - {{{block}}}\n  {key}\n")
    assert context_frames([model.encoder, model.decoder]) is None
    told = []
    monkeypatch.setattr(logging, "warning", lambda text, *_: told.append(text))
    module, stride = windowed(model, plan_windows(2, None, 400, 100), factory)
    with torch.no_grad():
        for _ in range(2):
            log_probs, lengths = module(features=FEATURES, length=LENGTHS)
    assert (log_probs.shape[1], lengths.tolist(), stride) == (1501, [1501, 617], 2)
    assert len(told) == 1
    assert "may get another text than in one piece" in told[0]


def test_windows_are_longer_where_the_context_asks_for_it():
    assert plan_windows(2, 10, 100, 0) == WindowPlan(80, 10, 2, True)
    assert plan_windows(2, 1001, 100, 0) == WindowPlan(2004, 1002, 2, True)
    assert plan_windows(8, None, 100, 20) == WindowPlan(56, 24, 8, False)
    assert plan_windows(4, 0, 1, 0) == WindowPlan(4, 0, 4, True)
