"""Attention decoders with and without a head of CTC: they connect, train, search, stream, and say what does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from toys.random_models import RATE, noise
from toys.tone_corpus import CONFIG, record, run_subcommand, write_manifest

import nemo_asr
from nemo_asr import EndpointRules
from nemo_asr.decoding.attention import AttentionRescoring, AttentionSearch
from nemo_asr.decoding.beam_search import search_weights
from nemo_asr.decoding.greedy import GreedyCTCDecoder
from nemo_asr.export.onnx_asr_export import export_onnx_asr
from nemo_asr.export.onnx_export import export_onnx
from nemo_asr.run.onnx.onnx_model import OnnxModel
from nemo_asr.run.options import SearchOptions
from nemo_asr.tasks.family import StandIn, connect, search_of
from nemo_asr.tasks.recipe import recipe_from_text
from nemo_asr.trained.model import TrainedModel, describe
from nemo_lite.base.errors import ConfigError, UsageError
from nemo_lite.core.neural_types import AudioSignal, LabelsType, LengthsType, NeuralType

HEADS = ("attention_rescoring", "attention", "ctc")


def config(family: str = "ctc_attention", decoder: str = "", more: str = "") -> str:
    """A small model that streams by frames of 0.04 s."""
    return f"""
family: {family}
sample_rate: 16000
AudioToMelSpectrogramPreprocessor: {{normalize: null, features: 32, pad_to: 0, dither: 0.0}}
ConformerEncoder:
  {{n_layers: 1, d_model: 32, n_heads: 4, subsampling: dw_striding, subsampling_factor: 4, conv_kernel_size: 9,
    subsampling_conv_channels: 8, causal_downsampling: true, att_context_style: chunked_limited,
    att_context_size: [8, 3], conv_context_size: causal, conv_norm_type: layer_norm}}
TransformerDecoder: {{linear_units: 32, num_blocks: 2, r_num_blocks: 1, reverse_weight: 0.3{decoder}}}
labels: [" ", "a", "b", "c"]
{more}
"""


def random_model(**of_config: str) -> TrainedModel:
    """With random weights, whose outputs differ from frame to frame."""
    recipe = recipe_from_text(config(**of_config), "model.yaml")
    torch.manual_seed(0)
    modules: Any = recipe.model()
    for module in modules.modules.values():
        if isinstance(module, torch.nn.Module):
            module.eval()
    attention = modules.others["attention"]
    with torch.no_grad():  # random weights are to say something: each label as often as the others
        length = torch.tensor([5 * RATE])
        encoded, _ = modules.encoder(*modules.preprocessor(torch.from_numpy(noise(5)[None]), length))
        if modules.decoder is not None:
            layer = modules.decoder.decoder_layers[0]
            scores = layer(encoded)[0, :, 8:]
            layer.weight /= scores.std(1)[:, None, None] / 3
            layer.bias -= scores.mean(1) / scores.std(1) * 3
        for side in (attention.left_decoder, attention.right_decoder):
            side.output_layer.weight *= 5
        attention.left_decoder.output_layer.bias[attention.end] = -7.0
    return TrainedModel("random", recipe, modules, describe(recipe))


@pytest.fixture(scope="module")
def model() -> TrainedModel:
    return random_model()


def test_each_part_of_the_loss_has_its_weight() -> None:
    audio = {"audio": NeuralType("B T", AudioSignal(16000)), "length": NeuralType("B", LengthsType())}
    texts = {"labels": NeuralType("B T", LabelsType()), "label_length": NeuralType("B", LengthsType())}
    modules = random_model(more="AuxiliaryCTCLoss: {weight: 0.2}").modules
    losses = connect(modules, StandIn({**audio, **texts})).losses
    weights = {name: round(part.weight, 9) for name, part in losses.items()}
    assert weights == {"attention": 0.56, "reversed_attention": 0.24, "ctc": 0.2}
    alone = random_model(family="attention", decoder="").modules
    assert {name: part.weight for name, part in connect(alone, StandIn({**audio, **texts})).losses.items()} == {
        "attention": 0.7,
        "reversed_attention": 0.3,
    }


def test_each_head_transcribes_with_times_and_all_searches_are_of_the_same_encoder(model: TrainedModel) -> None:
    texts, samples = {}, noise(3)
    for head in HEADS:
        (found,) = model.transcribe([samples], RATE, head=head, cutting=None)
        assert found.text
        ends = [word.end for word in found.words]
        assert ends == sorted(ends)
        assert 0 < ends[-1] <= 3.1
        assert all(0 <= word.confidence <= 1 for word in found.words)
        texts[head] = found.text
    (default,) = model.transcribe([samples], RATE, cutting=None)
    assert default.text == texts["attention_rescoring"]
    assert len(set(texts.values())) == 3


@pytest.mark.parametrize("head", HEADS)
def test_a_recording_has_its_text_whatever_is_beside_it(model: TrainedModel, head: str) -> None:
    parts = [noise(2, seed) for seed in range(3)] + [noise(0.7, 9)]
    together = model.transcribe(parts, RATE, head=head, cutting=None)
    alone = [model.transcribe([part], RATE, head=head, cutting=None)[0] for part in parts]
    assert [one.text for one in together] == [one.text for one in alone]
    assert [[w.start for w in one.words] for one in together] == [[w.start for w in one.words] for one in alone]


def test_several_texts_come_with_their_scores(model: TrainedModel) -> None:
    for head in HEADS[:2]:
        (found,) = model.transcribe([noise(2)], RATE, head=head, cutting=None, nbest=3)
        scores = [one.score for one in found.hypotheses]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert found.hypotheses[0].text.split() == found.text.split()


def test_hot_words_count_in_the_first_pass(model: TrainedModel) -> None:
    search = search_of(model.modules, model.card.labels, SearchOptions(hotwords=("cab",), hotword_weight=90))
    assert isinstance(search, AttentionRescoring)
    (without,) = model.transcribe([noise(2)], RATE, cutting=None)
    (found,) = model.transcribe([noise(2)], RATE, decoder=search, cutting=None)
    assert "cab" not in without.text.split()
    assert "cab" in found.text.split()


def test_the_weights_of_words_in_the_first_pass_can_be_searched(model: TrainedModel, tmp_path: Path) -> None:
    (tmp_path / "words.arpa").write_text(
        "\\data\\\nngram 1=4\n\n\\1-grams:\n-1\t<s>\n-1\t</s>\n-0.1\tcab\n-2\tba\n\n\\end\\\n"
    )
    options = SearchOptions(4, lm=str(tmp_path / "words.arpa"))
    decoder: Any = search_of(model.modules, model.card.labels, options)
    rows = [torch.randn(length, 32, generator=torch.Generator().manual_seed(length)) for length in (9, 14, 20, 12)]
    with torch.no_grad():
        log_probs = [model.modules.decoder(encoder_output=row.T[None])[0] for row in rows]

    def heard() -> list[list[int]]:
        states = [{"encoded": row.numpy(), "log_probs": own.numpy()} for row, own in zip(rows, log_probs, strict=True)]
        return [list(decoder.recognise(each).best.ids) for each in states]

    decoder.use(replace(decoder.weights, alpha=1.5, beta=-1.0))
    said = heard()
    decoder.use(replace(decoder.weights, alpha=0.0, beta=4.0))
    assert said != heard()
    pad = torch.nn.utils.rnn.pad_sequence
    texts = pad([torch.tensor(text) for text in said], batch_first=True)
    values = [
        [pad(rows, batch_first=True, padding_value=9.0).transpose(1, 2)],
        [pad(log_probs, batch_first=True)],
        [torch.tensor([*map(len, rows)])],
        [texts],
        [torch.tensor([*map(len, said)])],
    ]
    factory: Any = SimpleNamespace(infer=lambda wires, verbose: values, from_first=lambda make: make())
    count = lambda heard, said: sum(one != other for one, other in zip(heard, said, strict=True))  # noqa: E731
    ports: Any = dict.fromkeys(decoder.input_ports)
    trials = search_weights(decoder, ports, [], model.card.labels, factory, count)
    assert trials[0].errors == 0 < trials[-1].errors
    assert (decoder.weights.alpha, decoder.weights.beta) == trials[0][:2]


def test_the_search_of_attention_alone_knows_no_words(model: TrainedModel) -> None:
    attention = model.with_head("attention")
    with pytest.raises(UsageError, match=r"AttentionSearch: .* no such option: got hotwords, .*; leave it out"):
        search_of(attention.modules, model.card.labels, SearchOptions(hotwords=("cab",)))
    with_beam = search_of(attention.modules, model.card.labels, SearchOptions(beam_size=3))
    assert isinstance(with_beam, AttentionSearch)
    assert with_beam.beam_size == 3


def test_a_stream_ends_its_parts_with_the_second_pass(model: TrainedModel) -> None:
    samples = noise(2)
    (whole,) = model.transcribe([samples], RATE, cutting=None)
    stream = model.stream(rules=EndpointRules(silence=9, pause=9))
    for first in range(0, len(samples), 4001):
        stream.accept(samples[first : first + 4001])
    (of_first,) = model.transcribe(
        [samples], RATE, cutting=None, decoder=nemo_asr.BeamSearchCTCDecoder(model.card.labels, 10)
    )
    before = stream.text
    stream.finish()
    assert stream.text == whole.text
    assert of_first.text.startswith(before[: len(of_first.text) // 2])
    assert of_first.text != whole.text


def test_attention_alone_needs_the_whole_part(model: TrainedModel) -> None:
    assert "does not stream by frames" in model.with_head("attention").stream_problem()


def test_a_model_without_ctc_spreads_its_labels_over_the_recording() -> None:
    (found,) = random_model(family="attention").transcribe([noise(2)], RATE, cutting=None)
    assert found.words
    assert found.words[-1].end == pytest.approx(2.0, abs=0.1)


def test_texts_are_aligned_by_the_head_of_ctc(model: TrainedModel) -> None:
    (aligned,) = model.align([noise(2)], ["ab c"], RATE)
    assert [word.text for word in aligned.words] == ["ab", "c"]


def test_a_head_of_ctc_can_be_exported_alone_and_the_others_say_so(model: TrainedModel, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(UsageError, match=r"attention decoders are not exported: .*give --head ctc"):
        export_onnx(model, tmp_path / "m.onnx")
    problem = r"onnx-asr does not run this attention decoder: got TransformerDecoder; give --head ctc"
    with pytest.raises(UsageError, match=problem):
        export_onnx_asr(model.with_head("attention"), tmp_path / "m")
    assert not list(tmp_path.iterdir())
    export_onnx(model.with_head("ctc"), tmp_path / "m.onnx")
    (wanted,) = model.transcribe([noise(2)], RATE, cutting=None, decoder=GreedyCTCDecoder())
    written = OnnxModel(tmp_path / "m.onnx")
    assert written.transcribe([noise(2)], audio_rate=RATE, cutting=None).transcripts[0].text == wanted.text


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"decoder": ", attention_heads: 5"}, "TransformerDecoder: its heads do not divide its channels: got 5 of 32"),
        ({"more": "AttentionLoss: {smoothing: 1}"}, "AttentionLoss.smoothing is 1, wanted float from 0, below 1"),
        ({"more": "RNNTLoss: {}"}, "RNNTLoss"),
        ({"more": "CTCLossNM: {}"}, "CTCLossNM"),
        ({"family": "ctc"}, "TransformerDecoder is a attention, which family ctc has not"),
    ],
)
def test_what_does_not_fit_is_one_line(change: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        recipe_from_text(config(**change), "model.yaml")
    assert problem in str(error.value)
    assert len(error.value.problems) == 1, error.value


# A model that has learnt short words.


@pytest.mark.long  # it is trained for half a minute
def test_a_trained_hybrid_hears_what_it_has_learnt_with_each_head_and_in_evaluation(tmp_path: Path) -> None:
    lines = []
    for number in range(40):
        text = "abc"[number % 3] + "cab"[number // 3 % 3] + "bca"[number // 9 % 3]
        path = tmp_path / f"{number}.wav"
        lines.append({"audio_filepath": str(path), "duration": record(path, text), "text": text})
    write_manifest(tmp_path / "train.json", lines)
    write_manifest(tmp_path / "dev.json", lines[:12])
    decoder = "TransformerDecoder: {linear_units: 64, num_blocks: 1, r_num_blocks: 1, reverse_weight: 0.3}"
    (tmp_path / "model.yaml").write_text(f"family: ctc_attention\n{CONFIG}\n{decoder}\n")
    trained = run_subcommand(
        *("train", "--model_config", tmp_path / "model.yaml", "--train_dataset", tmp_path / "train.json"),
        *("--eval_datasets", tmp_path / "dev.json", "--work_dir", tmp_path / "runs", "--exp_name", "hybrid"),
        *("--num_epochs", 60, "--batch_size", 4, "--optimizer", "adam_w", "--lr", 0.003),
    )
    assert trained.code == 0, trained.err
    model = nemo_asr.load_model(tmp_path / "runs" / "hybrid")
    for head in HEADS:
        heard = model.transcribe([line["audio_filepath"] for line in lines[:12]], head=head, cutting=None)
        wrong = [one.text for one, line in zip(heard, lines[:12], strict=True) if one.text != line["text"]]
        assert len(wrong) <= 1, (head, wrong)
        scored = run_subcommand(
            "eval", tmp_path / "runs" / "hybrid", "--eval_datasets", tmp_path / "dev.json", "--head", head,
            "--out", tmp_path / head,
        )  # fmt: skip
        assert scored.code == 0, scored.err
