"""Whole steps of training and evaluation on the meta device, which refuses host reads and tensors of mixed devices.

It stands for a GPU: what runs here takes the paths of an accelerator, without values. Only the CTC kernel has no form
for it and has a stand-in, and torch.autocast does not know it.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from itertools import chain

import pytest
import torch
from toys.host_reads import BetweenLoggingSteps, HostReads
from toys.tone_corpus import make_corpus

import nemo_asr
import nemo_lite as nemo
from nemo_lite.backends.pytorch import placement
from nemo_lite.backends.pytorch.actions import PtActions
from nemo_lite.backends.pytorch.distributed.comm import SingleProcess
from nemo_lite.backends.pytorch.engine.evaluation import Evaluation
from nemo_lite.backends.pytorch.precision import Autocast, Precision
from nemo_lite.core.run_options import Optimization

META = torch.device("meta")
CONFIG = """model: Rehearsed
sample_rate: 16000
AudioToTextDataLayer:
  train: {shuffle: true}
  eval: {shuffle: false}
AudioToMelSpectrogramPreprocessor: {features: 16, n_fft: 512, dither: 0.00001}
SpectrogramAugmentation: {freq_masks: 2, time_masks: 2, rect_masks: 1}
JasperEncoder:
  activation: relu
  conv_mask: true
  jasper:
    - {filters: 16, repeat: 1, kernel: [11], stride: [2], dilation: [1], dropout: 0.1, residual: false, separable: true}
    - {filters: 16, repeat: 2, kernel: [5], stride: [1], dilation: [1], dropout: 0.1, residual: true, separable: true}
    - {filters: 24, repeat: 1, kernel: [3], stride: [1], dilation: [2], dropout: 0.0, residual: true, se: true}
    - {filters: 24, repeat: 1, kernel: [1], stride: [1], dilation: [1], dropout: 0.0, residual: false}
labels: [" ", "a", "b", "c"]
"""
CONFORMER = """ConformerEncoder:
  n_layers: 2
  d_model: 16
  subsampling: dw_striding
  att_context_style: chunked_limited
  att_context_size: [[4, 1], [4, 0]]
  stochastic_depth_drop_prob: 0.1
  dropout_att: 0.1
  conv_kernel_size: 5
"""


DECODER = """family: ctc_attention
TransformerDecoder: {linear_units: 32, num_blocks: 2, r_num_blocks: 1, reverse_weight: 0.3}
"""
REGULARIZED = {"overrides": ["CTCLossNM.label_smoothing=0.1", "CTCLossNM.skip_start=3"], "intermediate_ctc": 0.3}


@pytest.fixture
def on_meta(request, monkeypatch, tmp_path):
    """A training loss, and wires to evaluate, of a small QuartzNet (or Conformer) on the meta device."""
    make_corpus(tmp_path)
    options = getattr(request, "param", {})
    sections = re.sub(r"JasperEncoder:.*(?=labels)", CONFORMER, CONFIG, flags=re.DOTALL)
    text = sections if options.get("conformer") else CONFIG
    (tmp_path / "rehearsed.yaml").write_text(text + DECODER if options.get("attention") else text)
    recipe = nemo_asr.load_recipe(tmp_path / "rehearsed.yaml", options.get("overrides", ()))
    monkeypatch.setattr(Autocast, "forward", lambda self: nullcontext())
    # The one host read of a step, made a step later, has no values here.
    monkeypatch.setattr(placement.HostCopy, "values", lambda self: [0.0] * len(self._numbers))
    monkeypatch.setattr("nemo_asr.models.losses.ctc_losses", stand_in_for_ctc)
    nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
    model = recipe.model(intermediate_ctc=options.get("intermediate_ctc", 0.0))
    layers = {
        training: recipe.data_layer(str(tmp_path / "train.json"), training=training, batch_size=2)
        for training in (True, False)
    }
    trained = nemo_asr.connect(model, layers[True], training=True)
    evaluated = nemo_asr.connect(model, layers[False])
    return trained.loss, [evaluated.loss, evaluated.predictions]


def stand_in_for_ctc(log_probs, targets, input_lengths, target_lengths, blank):
    assert {each.device for each in (log_probs, targets, input_lengths, target_lengths)} == {META}
    return log_probs.mean(dim=(0, 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "dtype", "optimizer"),
    [("O0", None, "novograd"), ("O0", None, "sgd"), ("O1", "bfloat16", "lamb"), ("O1", "float16", "adam_w")],
)
def test_whole_steps_of_training_run_on_the_meta_device_and_read_nothing(on_meta, level, dtype, optimizer):
    loss, _ = on_meta
    actions, watch = PtActions(device=META, optimization_level=level, amp_dtype=dtype), BetweenLoggingSteps(last=2)
    params = {"lr": 0.01, "max_steps": 3, "grad_norm_clip": 1.0}
    actions.train([loss], optimizer=optimizer, callbacks=[watch], optimization_params=params, batches_per_step=2)
    assert watch.reads.found == []
    assert actions.step == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "on_meta", [pytest.param(REGULARIZED, marks=pytest.mark.long), {**REGULARIZED, "conformer": True}], indirect=True
)
@pytest.mark.parametrize("level", ["O0", "O1"])
def test_smoothing_intermediate_losses_and_averages_of_weights_read_nothing_either(on_meta, level):
    loss, _ = on_meta
    actions, watch = PtActions(device=META, optimization_level=level, amp_dtype="float16"), BetweenLoggingSteps(last=2)
    params = {"lr": 0.01, "max_steps": 3, "ema_decay": 0.9, "decay_weights_only": True, "weight_decay": 0.1}
    actions.train([loss], optimizer="adam_w", callbacks=[watch], optimization_params=params)
    assert watch.reads.found == []
    assert actions.step == 2


@pytest.mark.slow
@pytest.mark.parametrize("on_meta", [{"conformer": True, "attention": True}], indirect=True)
@pytest.mark.parametrize("level", ["O0", "O1"])
def test_an_attention_decoder_that_reads_from_both_sides_trains_beside_ctc_and_reads_nothing(on_meta, level):
    loss, _ = on_meta
    actions, watch = PtActions(device=META, optimization_level=level, amp_dtype="float16"), BetweenLoggingSteps(last=2)
    params = {"lr": 0.01, "max_steps": 3, "grad_norm_clip": 1.0}
    actions.train([loss], optimizer="adam_w", callbacks=[watch], optimization_params=params, batches_per_step=2)
    assert watch.reads.found == []
    assert actions.step == 2


@pytest.mark.parametrize("on_meta", [{}, {"conformer": True}], indirect=True)
def test_evaluation_runs_on_the_meta_device_and_reads_nothing(on_meta):
    _, wires = on_meta
    blocks = Evaluation(wires, META, Precision(Optimization.mxprO0, META)).blocks(SingleProcess())
    rows = chain.from_iterable(blocks)
    values = next(rows).values  # the seed of the epoch's loader is read, on the host
    with HostReads() as reads:
        others = [row.values for row in rows]
    assert reads.found == []
    assert len(others) == 5
    assert {value.device for value in values} == {META}


@pytest.mark.parametrize("read", [torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.cpu, torch.Tensor.nonzero])
def test_the_meta_device_refuses_what_a_gpu_would_wait_for(read):
    with pytest.raises((RuntimeError, NotImplementedError)):
        read(torch.ones(3, device=META).sum())
