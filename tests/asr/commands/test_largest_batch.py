"""A run starts with its largest batch: memory lacks there or never, and nothing of the run changes."""

import random

import numpy as np
import pytest
import torch
from toys.tone_corpus import make_corpus

import nemo_asr
from nemo_asr.argparse import AsrArgParser
from nemo_asr.commands.training import TrainingRun
from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_lite import NeMoCallback
from nemo_lite.base.errors import UsageError

DROPS = [
    "AudioToTextDataLayer.train.augmentor={white_noise: {prob: 0.5}, speed: {prob: 0.5, sr: 16000}}",
    "JasperEncoder.jasper.0.dropout=0.2",
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("tones"))


class Losses(NeMoCallback):
    def __init__(self):
        self.losses = []

    def on_step_end(self, state):
        self.losses.append(state["tensors"].get_tensor("loss").item())


def trained(corpus, folder, *more, config="tones.yaml"):
    """Losses of the steps, weights and statistics, and the next number of torch's generator."""
    line = ["--model_config", str(corpus / config), "--train_dataset", str(corpus / "train.json")]
    line += ["--batch_size", "5", "--max_steps", "4", "--checkpoint_dir", str(folder), "--num_workers", "0", *more]
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    run = TrainingRun(AsrArgParser(prog="train").parse_args(line))
    record = Losses()
    run._fine_tuning = lambda: [record]
    run.train(nemo_asr.connect(run.model, run.training_data, training=True), {})
    modules = [module for module in run.model.modules.values() if isinstance(module, torch.nn.Module)]
    state = [value.clone() for module in modules for value in module.state_dict().values()]
    return record.losses, state, torch.rand(1).item()


@pytest.fixture
def rehearsed(monkeypatch):
    """The shapes of the batches that were made up."""
    shapes, before = [], SpeechDataLayer.largest_batch

    def noted(layer):
        batch = before(layer)
        shapes.append([tuple(value.shape) for value in batch])
        return batch

    monkeypatch.setattr(SpeechDataLayer, "largest_batch", noted)
    return shapes


@pytest.mark.parametrize(
    "more",
    # With a seed each epoch seeds the generators anew; without one they go on from where they are.
    [[], ["--amp_opt_level", "O1", "--amp_dtype", "bfloat16"], ["--cudnn_benchmark"]],
    ids=["float32", "O1", "without a seed"],
)
def test_a_run_that_starts_with_its_largest_batch_is_equal_to_the_bit_to_one_that_does_not(
    corpus, tmp_path, monkeypatch, rehearsed, more
):
    settings = [part for setting in DROPS for part in ("--set", setting)]
    losses, state, drawn = trained(corpus, tmp_path / "with", *settings, *more)
    assert len(rehearsed) == 1
    monkeypatch.setattr(SpeechDataLayer, "largest_batch", lambda layer: None)
    plain_losses, plain_state, plain_drawn = trained(corpus, tmp_path / "without", *settings, *more)
    assert losses == plain_losses
    assert len(losses) == 4
    assert drawn == plain_drawn
    assert all(torch.equal(one, other) for one, other in zip(state, plain_state, strict=True))


def test_no_batch_of_the_run_is_larger(corpus, tmp_path, rehearsed):
    layer = nemo_asr.load_recipe(str(corpus / "tones.yaml"), []).data_layer(
        str(corpus / "train.json"), training=True, batch_size=5, num_workers=0
    )
    sizes = [[tuple(value.shape) for value in batch] for _ in range(3) for batch in layer.data_iterator]
    (audio, _, texts, _) = (np.array(shapes) for shapes in zip(*sizes, strict=True))
    made_up = [tuple(value.shape) for value in layer.largest_batch()]
    assert (audio.max(0) == made_up[0]).all()
    assert (texts.max(0) == made_up[2]).all()


def test_memory_that_lacks_ends_a_run_before_its_first_step_with_one_line(corpus, tmp_path, monkeypatch):
    def lacks(module, *values, **named):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(nemo_asr.JasperEncoder, "forward", lacks)
    with pytest.raises(UsageError) as ended:
        trained(corpus, tmp_path / "run")
    text = str(ended.value)
    assert text.startswith(
        "audio_to_text_data_layer: memory lacks for the largest batch that training may read: got CUDA"
    )
    assert "\n" not in text
    assert "nemo-lite plan --find_batch" in text
    assert not list((tmp_path / "run").glob("checkpoint-*"))
