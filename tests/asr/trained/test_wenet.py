"""WeNet's folders become recipes of ours; the numbers are those of WeNet's definitions, written anew in a toy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor
from toys.subwords import small_subwords
from toys.wenet import MELS, UNITS, Model, attention_ids, older_settings, settings, texts, write_folder, written

from nemo_asr import AudioToKaldiFbankPreprocessor
from nemo_asr.commands.cli.eval import main as evaluate
from nemo_asr.commands.cli.models import main as models
from nemo_asr.run.options import SearchOptions
from nemo_asr.run.search.text_search import TextSearch
from nemo_asr.trained.model import TrainedModel, load_model
from nemo_asr.trained.wenet import read_wenet
from nemo_lite.base.errors import CheckpointError, ConfigError, UsageError

LENGTHS = (16000, 9000, 12345)


def model(causal: bool = False, units: Any = UNITS, **others: Any) -> Model:
    torch.manual_seed(1)
    return Model(causal, units=units, **others).eval()


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
def test_u2pp_streams_in_the_chunks_that_are_asked_for(tmp_path: Path, capsys) -> None:
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
    soundfile.write(tmp_path / "a.wav", samples, 16000, subtype="FLOAT")
    line = {"audio_filepath": "a.wav", "duration": 1.0, "text": whole.text}
    (tmp_path / "test.json").write_text(json.dumps(line))
    words = [str(tmp_path / "m"), "--eval_datasets", str(tmp_path / "test.json"), "--out", str(tmp_path / "results")]
    evaluate([*words, "--stream", "--att_context_size", "8", "3"])
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("| ["))
    assert row.startswith("| [8, 3] |")
    assert row.endswith("| 0.00% | 1 of 1 |")


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
    got = [each.text for each in trained.transcribe(audio, sample_rate=16000, head="ctc")]
    assert got == [" ".join(texts(model(), each).split()) for each in features()]
    assert min(map(len, got)) > 2


def states_of(trained: TrainedModel) -> list[dict[str, Any]]:
    """What searches read of each signal."""
    modules = trained.modules
    signal, length = signals()
    processed, processed_length = modules.preprocessor(input_signal=signal, length=length)
    encoded, encoded_length = modules.encoder(audio_signal=processed, length=processed_length)
    rows = zip(encoded.detach(), encoded_length, log_probs(trained), strict=True)
    return [{"encoded": x[:, : int(count)].T.numpy(), "log_probs": y.numpy()} for x, count, y in rows]


def heard(trained: TrainedModel, **options: Any) -> list[str]:
    """The text of each signal."""
    signal, _ = signals()
    audio = [row[:length].numpy() for row, length in zip(signal, LENGTHS, strict=True)]
    return [each.text for each in trained.transcribe(audio, sample_rate=16000, cutting=None, **options)]


@pytest.mark.parametrize("decoder", ["transformer", "bitransformer"])
def test_attention_says_what_wenets_search_says(tmp_path: Path, decoder: str) -> None:
    toy = model(decoder=decoder)
    trained = load_model(write_folder(tmp_path / "m", toy, settings(decoder=decoder)))
    wanted = [attention_ids(toy, each, beam=3) for each in features()]
    search: Any = trained.with_head("attention").modules.search.with_options(SearchOptions(beam_size=3))
    got = heard(trained, head="attention", decoder=search)
    assert got == [" ".join(written(ids).split()) for ids, _ in wanted]
    assert len({text for text in got if len(text) > 3}) == 3
    scores = [found.score for (found,) in search.found(states_of(trained))]
    assert scores == pytest.approx([score for _, score in wanted], rel=1e-5)


@pytest.mark.parametrize(("decoder", "share"), [("transformer", 0.0), ("bitransformer", 0.3)])
def test_the_second_pass_has_wenets_scores_and_its_best_text_is_that_of_the_model(
    tmp_path: Path, decoder: str, share: float
) -> None:
    toy = model(decoder=decoder)
    trained = load_model(write_folder(tmp_path / "m", toy, settings(decoder=decoder)))
    first = TextSearch(trained.recipe.labels, 10)
    search: Any = trained.modules.search
    best = []
    for each, states in zip(features(), states_of(trained), strict=True):
        frames, posteriors = toy.encoded(each), states["log_probs"]
        (found,) = first.hypotheses(posteriors[None], np.array([len(posteriors)]), 10)
        texts_of_units = [[label + 1 for label in one.ids] for one in found]  # the blank is the first unit
        scores = [
            toy.both.score(frames, ids, share) + 0.5 * one.score for ids, one in zip(texts_of_units, found, strict=True)
        ]
        order = sorted(range(len(scores)), key=lambda place: -scores[place])
        (got,) = search.found([states], 10)
        assert [list(one.labels.ids) for one in got] == [list(found[place].ids) for place in order]
        assert [one.score for one in got] == pytest.approx([scores[place] for place in order], rel=1e-5)
        best.append(" ".join(written(texts_of_units[order[0]]).split()))
    assert heard(trained) == best


@pytest.mark.parametrize(("end", "name"), [(2, "<sos/eos>"), (5, "</s>")])
def test_what_begins_and_ends_texts_may_be_any_unit(tmp_path: Path, end: int, name: str) -> None:
    others = [unit for unit in UNITS if unit != "<sos/eos>"]
    units = [*others[:end], name, *others[end:]]
    toy = model(units=units, end=end)
    config = settings()
    config["tokenizer_conf"]["special_tokens"] = {"<blank>": 0, "<unk>": 1, "<sos>": end, "<eos>": end}
    trained = load_model(write_folder(tmp_path / "m", toy, config, units))
    assert trained.recipe.labels == ["<unk>", "天", "地", "人", "和", " ", "A"]
    states, texts_of_units = states_of(trained)[1], [units.index(unit) for unit in ("人", "▁", "天")]
    of_sides = trained.modules.others["attention"](
        encoded=torch.from_numpy(states["encoded"]).T[None], labels=torch.tensor([[3, 5, 1]]),
        num_frames=torch.tensor([len(states["encoded"])]), num_labels=torch.tensor([3]), force_pt=True,
    )  # fmt: skip
    order = [units.index(unit) for unit in ("<unk>", "天", "地", "人", "和", "▁", "A", name, "<blank>")]
    frames = toy.encoded(features()[1])
    for got, wanted in zip(of_sides, (toy.both.from_left, toy.both.from_right), strict=True):
        torch.testing.assert_close(got[0], wanted(frames, texts_of_units)[:, order], rtol=1e-6, atol=1e-5)


def test_texts_may_begin_with_another_unit_than_they_end_with(tmp_path: Path) -> None:
    config = settings()
    config["tokenizer_conf"]["special_tokens"] = {"<sos>": 7, "<eos>": 8}
    toy = model(units=[*UNITS[:7], "<sos>", "<eos>"])
    found = read_wenet(write_folder(tmp_path / "m", toy, config, [*UNITS[:7], "<sos>", "<eos>"]))
    assert len(found.config["labels"]) == 6
    state, weights = toy.state_dict(), found.weights["TransformerDecoder"]
    for side in ("left_decoder", "right_decoder"):
        inputs = state[f"decoder.{side}.embed.0.weight"][[1, 2, 3, 4, 5, 6, 7, 0, 8]]
        outputs = state[f"decoder.{side}.output_layer.weight"][[1, 2, 3, 4, 5, 6, 8, 0, 7]]
        assert torch.equal(weights[f"{side}.embed.0.weight"], inputs)
        assert torch.equal(weights[f"{side}.output_layer.weight"], outputs)


def test_what_weighs_the_parts_of_the_loss_is_in_the_recipe(tmp_path: Path) -> None:
    config = read_wenet(write_folder(tmp_path / "m", model())).config
    assert config["family"] == "ctc_attention"
    assert config["AuxiliaryCTCLoss"] == {"weight": 0.3, "reduction": "mean_batch"}
    assert config["AttentionLoss"] == {"smoothing": 0.1, "reduction": "mean_batch"}
    assert config["TransformerDecoder"]["reverse_weight"] == 0.3
    by_length = settings()
    by_length["model_conf"]["length_normalized_loss"] = True
    config = read_wenet(write_folder(tmp_path / "n", model(), by_length)).config
    assert config["AttentionLoss"] == {"smoothing": 0.1, "reduction": "mean_volume"}
    assert config["AuxiliaryCTCLoss"] == {"weight": 0.3, "reduction": "mean_batch"}


def test_a_folder_without_an_attention_decoder_has_a_ctc_head_alone(tmp_path: Path) -> None:
    trained = load_model(write_folder(tmp_path / "m", model(decoder=""), settings()))
    assert (trained.recipe.family, "TransformerDecoder" in trained.recipe.config) == ("ctc", False)
    assert heard(trained) == heard(load_model(write_folder(tmp_path / "n", model())), head="ctc")


def test_all_settings_of_the_decoder_that_are_not_known_are_named_at_once(tmp_path: Path) -> None:
    config = settings()
    config["decoder_conf"] |= {"tie_word_embedding": True, "n_expert": 8, "activation_type": "relu"}
    config["model_conf"] |= {"apply_non_blank_embedding": True}
    folder = write_folder(tmp_path / "m", model(), config)
    with pytest.raises(ConfigError) as refused:
        read_wenet(folder)
    assert [problem.partition(": ")[2] for problem in refused.value.problems] == [
        "decoder_conf.tie_word_embedding is true, wanted false",
        "decoder_conf.n_expert is 8, which is not known here (did you mean decoder_conf.norm_eps?)",
        "model_conf.apply_non_blank_embedding is true, wanted false",
    ]


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
    with pytest.raises(CheckpointError, match=r"global_cmvn: these are no CMVN statistics: got .*division by zero"):
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
    of_sides = trained.modules.others["attention"](
        encoded=torch.randn(1, 32, 5), labels=torch.tensor([[0, 1]]), num_frames=torch.tensor([5]),
        num_labels=torch.tensor([2]), force_pt=True,
    )  # fmt: skip
    for side in (rows.detach() for rows in of_sides):
        assert float(side[..., len(units) - 2 : len(labels)].max()) < -1000
        assert float(side[..., : len(units) - 2].min()) > -1000


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
    assert "attention_rescoring" in shown.out
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
        (_state(lambda s: s.update({"decoder.left_decoder.output_layer.bias": torch.ones(3)})), CheckpointError,
         r"m: its units do not fit its attention decoder: got decoder\.left_\S+\.bias of shape \[3\], wanted 9 rows"),
        (_config(tokenizer_conf__special_tokens={"<sos>": 2, "<eos>": 99}), CheckpointError,
         r"train\.yaml:\d+:\d+: there is no such unit: got 99, wanted numbers from 0 to 8"),
        (_config(decoder="sanm_decoder"), ConfigError, r'decoder is "sanm_decoder", wanted "transformer" or "bi'),
        (_config(encoder="squeezeformer"), ConfigError, r'train\.yaml:\d+:\d+: encoder is "squeezeformer"'),
        (_config(model="paraformer"), ConfigError, r'model is "paraformer".*wanted asr_model or k2_model'),
        (_config(encoder_conf__input_layer="linear"), ConfigError, r'input_layer is "linear".*wanted "conv2d" or "con'),
        (_config(encoder_conf__n_expert=8), ConfigError, r"encoder_conf\.n_expert is 8, which is not known here"),
        (_config(encoder_conf__linear_units=33), ConfigError, r"linear_units is 33, wanted a multiple of output_size"),
        (_config(dataset_conf__feats_type="log_mel_spectrogram"), ConfigError, r'feats_type is .*, wanted "fbank"'),
        (_config(dataset_conf__fbank_conf={"dither": "no"}, input_dim=80), ConfigError, r'"no", wanted a number'),
        (_config(input_dim=80), ConfigError, r"input_dim is 80, wanted num_mel_bins, which is 20"),
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
