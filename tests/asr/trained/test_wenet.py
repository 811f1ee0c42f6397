"""WeNet's folders become recipes of ours; the numbers are those of WeNet's definitions, written anew in a toy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from toys.subwords import small_subwords
from toys.wenet import MELS, UNITS, Model, older_settings, settings, texts, write_folder

from nemo_asr import AudioToKaldiFbankPreprocessor
from nemo_asr.commands.cli.models import main as models
from nemo_asr.trained.model import TrainedModel, load_model
from nemo_asr.trained.wenet import read_wenet
from nemo_lite.base.errors import CheckpointError, ConfigError, UsageError

LENGTHS = (16000, 9000, 12345)


def model(causal: bool = False, units: Any = UNITS) -> Model:
    torch.manual_seed(1)
    return Model(causal, units=units).eval()


def signals() -> tuple[Tensor, Tensor]:
    """Tones of 0.1 s in noise: (B, T) and lengths (B,)."""
    draw = torch.Generator().manual_seed(0)
    tones = torch.randint(100, 6000, (len(LENGTHS), 10), generator=draw).repeat_interleave(1600, 1)
    noise = torch.randn(len(LENGTHS), max(LENGTHS), generator=draw)
    return 0.3 * (tones * torch.arange(max(LENGTHS)) * (2 * torch.pi / 16000)).sin() + 0.001 * noise, torch.tensor(
        LENGTHS
    )


def features() -> list[Tensor]:
    """(T, MELS) of each signal."""
    computed, frames = AudioToKaldiFbankPreprocessor(features=MELS).eval().forward(*signals())
    return [computed[row, :, : int(count)].T for row, count in enumerate(frames)]


def log_probs(trained: TrainedModel) -> list[Tensor]:
    """(T', labels + 1) of each signal, of all in one batch."""
    modules = trained.modules
    for module in modules.modules.values():
        if isinstance(module, torch.nn.Module):
            module.eval()
    signal, length = signals()
    processed, processed_length = modules.preprocessor(input_signal=signal, length=length)
    encoded, encoded_length = modules.encoder(audio_signal=processed, length=processed_length)
    computed = modules.decoder(encoder_output=encoded).detach()
    return [computed[row, : int(count)] for row, count in enumerate(encoded_length)]


@pytest.mark.slow
def test_u2pp_streams_in_the_chunks_that_are_asked_for(tmp_path: Path) -> None:
    """Attention of whole recordings is what the file says; WeNet's --decoding_chunk_size is a choice of its user."""
    trained = load_model(write_folder(tmp_path / "m", model(causal=True), settings(causal=True)))
    assert "attention sees the whole utterance" in trained.stream_problem()
    trained.set_att_context_size([8, 3])
    samples = np.random.default_rng(0).normal(scale=0.1, size=16000).astype(np.float32)
    (whole,) = trained.transcribe([samples], sample_rate=16000, cutting=None)
    stream = trained.stream(sample_rate=16000, by="frames")
    for chunk in np.split(samples, [100, 4000, 4001, 9999]):
        stream.accept(chunk)
    stream.finish()
    assert stream.text == whole.text
    assert whole.text
    with pytest.raises(UsageError, match="multiple of 4"):
        trained.set_att_context_size([7, 3])


@pytest.mark.parametrize("causal", [False, True])
def test_log_probabilities_are_those_of_wenet_whatever_stands_beside_an_utterance(tmp_path: Path, causal: bool) -> None:
    trained = load_model(write_folder(tmp_path / "m", model(causal), settings(causal)))
    assert trained.recipe.labels == ["<unk>", "天", "地", "人", "和", " ", "A"]
    for got, each in zip(log_probs(trained), features(), strict=True):
        wanted = model(causal)(each)[:, [1, 2, 3, 4, 5, 6, 7, 0]].log_softmax(1)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)


def test_greedy_texts_are_those_of_wenet(tmp_path: Path) -> None:
    trained = load_model(write_folder(tmp_path / "m", model()))
    signal, _ = signals()
    audio = [row[:length].numpy() for row, length in zip(signal, LENGTHS, strict=True)]
    got = [each.text for each in trained.transcribe(audio, sample_rate=16000)]
    assert got == [" ".join(texts(model(), each).split()) for each in features()]
    assert min(map(len, got)) > 2


def test_frames_of_fixed_chunks_see_no_later_chunk(tmp_path: Path) -> None:
    config = settings(causal=True)
    config["encoder_conf"]["static_chunk_size"] = 4
    trained = load_model(write_folder(tmp_path / "m", model(causal=True), config))
    for got, each in zip(log_probs(trained), features(), strict=True):
        wanted = model(causal=True)(each, chunk=4)[:, [1, 2, 3, 4, 5, 6, 7, 0]].log_softmax(1)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)


def test_folders_of_older_versions_are_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", model(), older_settings())
    (folder / "units.txt").rename(folder / "words.txt")
    newer = load_model(write_folder(tmp_path / "newer", model()))
    assert torch.equal(log_probs(load_model(folder))[0], log_probs(newer)[0])


def test_statistics_are_those_of_the_file_where_the_weights_have_none(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", model())
    whole = log_probs(load_model(folder))
    state = torch.load(folder / "final.pt", weights_only=True)
    mean, istd = (state.pop(f"encoder.global_cmvn.{name}").double() for name in ("mean", "istd"))
    torch.save(state, folder / "final.pt")
    with pytest.raises(CheckpointError, match=r"the CMVN statistics are missing: wanted global_cmvn"):
        read_wenet(folder)
    stored = {"mean_stat": (mean * 50).tolist(), "var_stat": ((istd**-2 + mean**2) * 50).tolist(), "frame_num": 50}
    (folder / "global_cmvn").write_text(json.dumps(stored))
    torch.testing.assert_close(log_probs(load_model(folder)), whole, rtol=0, atol=1e-5)
    (folder / "global_cmvn").write_text(json.dumps({**stored, "frame_num": 0}))
    with pytest.raises(CheckpointError, match=r"global_cmvn: these are no CMVN statistics: got float division by zero"):
        read_wenet(folder)


def test_pieces_of_a_tokenizer_keep_their_units_and_those_without_are_never_written(tmp_path: Path) -> None:
    subwords = small_subwords("bpe")
    units = ["<blank>", "<unk>", *sorted(set(subwords[::2]) - {"<unk>"}), "<sos/eos>"]
    config = settings(output_dim=len(units), tokenizer="bpe")
    config["tokenizer_conf"]["bpe_path"] = "data/lang/train_bpe24.model"
    folder = write_folder(tmp_path / "m", model(units=units), config, units)
    (folder / "train_bpe24.model").write_bytes(subwords.model)
    trained = load_model(folder)
    labels = trained.recipe.labels
    assert labels[: len(units) - 2] == units[1:-1]
    assert set(labels) == set(subwords)
    assert trained.recipe.tokenizer is not None
    ids = trained.recipe.tokenizer.ids_of("the cat")[0]
    assert [labels[i] for i in ids] == [subwords[i] for i in subwords.ids_of("the cat")[0]]
    got = log_probs(trained)[0]
    wanted = model(units=units)(features()[0])[:, [*range(1, len(units) - 1), 0]].log_softmax(1)
    torch.testing.assert_close(got[:, [*range(len(units) - 2), -1]], wanted, rtol=0, atol=1e-5)
    assert float(got[:, len(units) - 2 : -1].max()) < -1000


def test_units_outside_of_a_tokenizer_leave_a_model_that_transcribes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    units = ["<blank>", "<unk>", "天", "▁the", "<sos/eos>"]
    folder = write_folder(tmp_path / "m", model(units=units), settings(output_dim=5), units)
    (folder / "bpe.model").write_bytes(small_subwords("bpe").model)
    found = read_wenet(folder)
    assert (found.tokenizer, found.config["labels"]) == (None, ["<unk>", "天", "▁the"])
    assert "bpe.model: units are outside of its vocabulary: '天'" in "".join(capsys.readouterr())


@pytest.mark.long
def test_a_command_shows_and_another_imports_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "aishell", model())
    models(["show", str(folder)])
    shown = capsys.readouterr()
    assert "features     20 a frame; Kaldi's fbank (WeNet's), with fixed mean and deviation" in shown.out
    assert f"{folder}: read are its encoder and its CTC head; left out: the attention decoder" in shown.out
    models(["import", str(folder), "--to", str(tmp_path / "imported")])
    assert torch.equal(log_probs(load_model(tmp_path / "imported"))[0], log_probs(load_model(folder))[0])


def test_a_recording_shorter_than_the_encoder_sees_has_no_text(tmp_path: Path) -> None:
    trained = load_model(write_folder(tmp_path / "m", model()))
    signal, _ = signals()
    audio = [signal[0, :800].numpy(), signal[0].numpy()]
    assert trained.transcribe(audio, sample_rate=16000)[0].text == ""


def _state(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        state = torch.load(folder / "final.pt", weights_only=True)
        change(state)
        torch.save(state, folder / "final.pt")

    return changed


def _config(**changes: Any) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        config = settings()
        for key, value in changes.items():
            section, _, inner = key.partition("__")
            if inner:
                config[section][inner] = value
            else:
                config[section] = value
        (folder / "train.yaml").write_text(json.dumps(config, indent=1))

    return changed


def _units(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "units.txt").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (_units("<blank> 0\n天 1\n"), CheckpointError, r"its units do not fit its CTC head: got 2 units, wanted 9"),
        (_units("<blank> 0\n天\n"), CheckpointError, r"units\.txt:2: this is no unit: got '天'"),
        (_units("<blank> 0\n天 1\n天 2\n"), CheckpointError, r"units\.txt:3: the unit is there twice: got 天"),
        (_units("<blank> 0\n天 2\n"), CheckpointError, r"the numbers of its units have gaps or repeat"),
        (lambda folder: (folder / "units.txt").unlink(), CheckpointError, r"the units are missing: wanted units\.txt"),
        (_state(lambda s: s.pop("ctc.ctc_lo.weight")), CheckpointError, r"there is no CTC head: got none"),
        (_state(lambda s: s.update({"lm.x": torch.ones(1)})), CheckpointError, r"of another kind of model: got lm"),
        (_config(encoder="squeezeformer"), ConfigError, r'train\.yaml:\d+:\d+: encoder is "squeezeformer"'),
        (_config(model="paraformer"), ConfigError, r'model is "paraformer".*wanted asr_model or k2_model'),
        (_config(encoder_conf__input_layer="conv2d8"), ConfigError, r'input_layer is "conv2d8".*wanted "conv2d"'),
        (_config(encoder_conf__n_expert=8), ConfigError, r"encoder_conf\.n_expert is 8, which is not known here"),
        (_config(encoder_conf__linear_units=33), ConfigError, r"linear_units is 33, output_size 32, wanted a multiple"),
        (_config(dataset_conf__feats_type="log_mel_spectrogram"), ConfigError, r"feats_type is .*, wanted fbank"),
        (_config(dataset_conf__fbank_conf={"dither": "no"}, input_dim=80), ConfigError, r'"no", wanted a number'),
        (_config(input_dim=80), ConfigError, r"input_dim is 80, fbank_conf has 20 mel bins"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_read_is_refused_in_one_line(
    tmp_path: Path, change: Callable[[Path], object], error: type[Exception], message: str
) -> None:
    folder = write_folder(tmp_path / "m", model())
    change(folder)
    with pytest.raises(error, match=message) as refused:
        read_wenet(folder)
    assert "\n" not in str(refused.value)


def test_missing_and_surplus_weights_are_listed_both(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", model())

    def renamed(state: dict[str, Tensor]) -> None:
        state["encoder.after_norm.other"] = state.pop("encoder.after_norm.bias")

    _state(renamed)(folder)
    wanted = r"does not fit ConformerEncoder: missing: after_norm\.bias .*; unexpected: after_norm\.other"
    with pytest.raises(CheckpointError, match=wanted):
        load_model(folder)
