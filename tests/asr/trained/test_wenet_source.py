"""Folders of WeNet's own classes with random weights: losses and texts are WeNet's. Skips without its source."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from toys.wenet import MELS, settings, write_folder, written
from toys.wenet_source import FOLDER, needs_wenet, wenet_module

from nemo_asr import AudioToKaldiFbankPreprocessor
from nemo_asr.trained.model import TrainedModel, load_model
from nemo_asr.wenet_keys import load_model_config
from nemo_lite.base.errors import ConfigError

pytestmark = needs_wenet
UNITS = ("<blank>", "<unk>", *"abcdefghi", "<sos/eos>")
END = len(UNITS) - 1
# The decoder, whether convolutions see no frames behind, subsampling, and positions.
CASES = [
    ("transformer", False, "conv2d", "rel_pos"),
    ("bitransformer", True, "conv2d", "rel_pos"),
    ("bitransformer", False, "conv2d6", "rel_pos"),
    ("bitransformer", True, "conv2d8", "rel_pos"),
    ("bitransformer", True, "conv2d", "no_pos"),
]


def config_of(decoder: str, causal: bool, input_layer: str, positions: str) -> dict[str, Any]:
    """Without dropout, so that training computes the same each time."""
    config = settings(causal, decoder)
    config["encoder_conf"] |= {"input_layer": input_layer, "pos_enc_layer_type": positions}
    config["encoder_conf"] |= dict.fromkeys(("dropout_rate", "positional_dropout_rate", "attention_dropout_rate"), 0.0)
    config["decoder_conf"] |= dict.fromkeys(("dropout_rate", "positional_dropout_rate"), 0.0)
    return config


def wenets_model(config: dict[str, Any]) -> Any:
    """Its ``ASRModel`` of a configuration, with random weights."""
    transformer = "models.transformer"
    torch.manual_seed(0)
    cmvn = wenet_module(f"{transformer}.cmvn").GlobalCMVN(10 + torch.randn(MELS), 0.2 + 0.1 * torch.rand(MELS))
    encoder = wenet_module(f"{transformer}.encoder").ConformerEncoder(
        MELS, global_cmvn=cmvn, **{**config["encoder_conf"], "use_dynamic_chunk": False}
    )
    names = {"transformer": "TransformerDecoder", "bitransformer": "BiTransformerDecoder"}
    decoders = wenet_module(f"{transformer}.decoder")
    decoder = getattr(decoders, names[config["decoder"]])(len(UNITS), encoder.output_size(), **config["decoder_conf"])
    ctc = wenet_module(f"{transformer}.ctc").CTC(len(UNITS), encoder.output_size())
    model = wenet_module(f"{transformer}.asr_model").ASRModel(len(UNITS), encoder, decoder, ctc, **config["model_conf"])
    with torch.no_grad():  # so that outputs differ, and, as training makes it, no text has a blank, nor frames an end
        for name, parameter in model.named_parameters():
            if name.startswith("decoder."):
                parameter.normal_(std=0.06 if name.endswith("bias") else 0.3)
            if "output_layer.weight" in name or "ctc_lo.weight" in name or "depthwise_conv.weight" in name:
                parameter.mul_(4.0)
            if name.endswith("output_layer.bias"):
                parameter[[0, END]] = torch.tensor([-100.0, 1.8])
        model.ctc.ctc_lo.bias[END] = -100.0
        for name, buffer in model.named_buffers():
            if "running" in name:
                buffer.uniform_(0.5, 1.5)
    return model


def audio() -> tuple[Tensor, Tensor]:
    """Tones in noise: (B, T) and lengths (B,)."""
    draw = torch.Generator().manual_seed(0)
    tones = torch.randint(100, 6000, (3, 10), generator=draw).repeat_interleave(1600, 1)
    noise = torch.randn(3, 16000, generator=draw)
    waves = (tones * torch.arange(16000) * (2 * torch.pi / 16000)).sin()
    return 0.3 * waves + 0.001 * noise, torch.tensor([16000, 9000, 12345])


def features() -> tuple[Tensor, Tensor]:
    """(B, T, MELS) and frames (B,)."""
    computed, frames = AudioToKaldiFbankPreprocessor(features=MELS).eval().forward(*audio())
    return computed.transpose(1, 2), frames


@pytest.fixture(params=CASES, ids=lambda case: " ".join(map(str, case)))
def models(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, TrainedModel]:
    """WeNet's, and ours of its folder."""
    config = config_of(*request.param)
    theirs = wenets_model(config).eval()
    return theirs, load_model(write_folder(tmp_path / "m", theirs, config, UNITS))


def test_the_page_counts_the_recipes_that_are_read() -> None:
    files = sorted(FOLDER.parent.glob("examples/*/*/conf/*.yaml"))
    page = (Path(__file__).parents[3] / "docs/en/wenet.md").read_text()
    if f"Of the {len(files)} files" not in page:
        pytest.skip("this checkout has other recipes than the commit on the page")
    num_read = 0
    for file in files:
        with suppress(ConfigError):
            load_model_config(file)
            num_read += 1
    assert f"{num_read} are read" in page


def test_texts_of_all_heads_are_wenets(models: tuple[Any, TrainedModel]) -> None:
    theirs, trained = models
    heads = {"ctc": "ctc_greedy_search", "attention": "attention", "attention_rescoring": "attention_rescoring"}
    options = {"beam_size": 10, "ctc_weight": 0.5, "reverse_weight": theirs.reverse_weight}
    found = set[str]()
    signals, speech = zip(*audio(), strict=True), zip(*features(), strict=True)
    for (signal, length), (feature, frames) in zip(signals, speech, strict=True):
        with torch.no_grad():
            wanted = theirs.decode([*heads.values()], feature[None, :frames], frames[None], **options)
        for head, method in heads.items():
            (got,) = trained.transcribe([signal[:length].numpy()], sample_rate=16000, head=head, cutting=None)
            text = " ".join(written(wanted[method][0].tokens, UNITS).split())
            assert (head, got.text) == (head, text)
            found.add(text)
    assert len(found) > 5


def test_encodings_are_wenets(models: tuple[Any, TrainedModel]) -> None:
    """Within 1e-5 of the largest value."""
    theirs, trained = models
    modules = trained.modules
    signals, speech = zip(*audio(), strict=True), zip(*features(), strict=True)
    for (signal, length), (feature, frames) in zip(signals, speech, strict=True):
        with torch.no_grad():
            wanted, mask = theirs.encoder(feature[None, :frames], frames[None])
            processed, num_frames = modules.preprocessor(input_signal=signal[None, :length], length=length[None])
            encoded, num_frames = modules.encoder(audio_signal=processed, length=num_frames)
        assert num_frames.tolist() == mask.sum(2).flatten().tolist()
        difference = (encoded.transpose(1, 2)[:, : num_frames[0]] - wanted[:, : num_frames[0]]).abs().max()
        assert difference < 1e-5 * wanted.abs().max()


def test_losses_are_wenets(models: tuple[Any, TrainedModel]) -> None:
    """Of utterances alone: beside longer ones, WeNet's convolutions that see frames behind see padding."""
    theirs, trained = models
    modules = trained.modules
    modules.loss.train()  # smoothing is for training
    texts = torch.tensor([3, 1, 3, 2]), torch.tensor([4, 4]), torch.tensor([7])
    signals, speech = zip(*audio(), strict=True), zip(*features(), strict=True)
    for (signal, length), (feature, frames), text in zip(signals, speech, texts, strict=True):
        num_labels = torch.tensor([len(text)])
        batch = {"feats": feature[None, :frames], "feats_lengths": frames[None], "target_lengths": num_labels}
        batch |= {"target": text[None] + 1, "langs": [], "tasks": []}  # the blank is the first unit
        wanted = theirs(batch, torch.device("cpu"))
        processed, num_frames = modules.preprocessor(input_signal=signal[None, :length], length=length[None])
        encoded, num_frames = modules.encoder(audio_signal=processed, length=num_frames)
        of_text = {"labels": text[None], "num_labels": num_labels}
        sides = modules.others["attention"](encoded=encoded, num_frames=num_frames, **of_text, force_pt=True)
        left, right = (
            modules.loss(log_probs=side, **of_text, force_pt=True)
            for side in (sides if isinstance(sides, tuple) else (sides, sides))
        )
        of_ctc = modules.others["ctc_loss"](
            log_probs=modules.decoder(encoder_output=encoded), targets=text[None], input_length=num_frames,
            target_length=num_labels, force_pt=True,
        )  # fmt: skip
        share, weight = theirs.reverse_weight, theirs.ctc_weight
        of_attention = (1 - share) * left + share * right
        total = weight * of_ctc + (1 - weight) * of_attention
        for got, name in ((of_attention, "loss_att"), (of_ctc, "loss_ctc"), (total, "loss")):
            torch.testing.assert_close(got, wanted[name], rtol=1e-6, atol=1e-5)
