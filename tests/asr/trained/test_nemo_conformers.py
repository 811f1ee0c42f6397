"""Conformers of `.nemo` files have the log-probabilities, texts and times that NVIDIA's own classes give."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from toys.log_probs import log_probs_of
from toys.nemo_conformers import (
    CASES,
    LABELS,
    RATE,
    by_formula,
    cases_of_source,
    config_of,
    nvidia_case,
    signal_of,
    stored_cases,
    write_case,
    write_with_labels,
)
from toys.nemo_source import HAS_NEMO, REASON, needs_nemo
from toys.subwords import small_subwords

from nemo_asr.decoding.greedy import GreedyCTCDecoder
from nemo_asr.run.text.subwords import marked_piece
from nemo_asr.trained.model import load_model
from nemo_asr.trained.nemo_files import read_nemo
from nemo_lite.base.errors import CheckpointError, ConfigError


def words_by_definition(best: list[int], seconds: float) -> list[tuple[str, float, float]]:
    """The words of each frame's best label: from the first frame of its first label to the last one of its last."""
    runs = [(label, len(list(run))) for label, run in groupby(best)]
    words: list[tuple[str, float, float]] = []
    frame, is_new = 0, True
    for label, size in runs:
        letter = [*LABELS, ""][label]
        if letter == " ":
            is_new = True
        elif letter:
            text, start, _ = ("", frame, 0) if is_new else words.pop()
            words.append((text + letter, start, frame + size))
            is_new = False
        frame += size
    return [(text, start * seconds, end * seconds) for text, start, end in words]


@pytest.mark.parametrize("name", CASES)
def test_a_file_has_the_log_probabilities_texts_and_times_that_nvidias_classes_give(tmp_path: Path, name: str) -> None:
    wanted = torch.tensor(stored_cases()[name]["log_probs"])
    model = load_model(write_case(tmp_path / "m.nemo", name))
    found = log_probs_of(model, signal_of())
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    best = wanted.argmax(1).tolist()
    (transcript,) = model.transcribe([signal_of().numpy()], sample_rate=RATE, decoder=GreedyCTCDecoder())
    assert transcript.text == "".join([*LABELS, ""][label] for label, _ in groupby(best)).strip()
    words = words_by_definition(best, model.card.frame_seconds)
    assert [word.text for word in transcript.words] == [text for text, _, _ in words]
    ends = [min(end, len(signal_of()) / RATE) for _, _, end in words]
    assert [word.start for word in transcript.words] == pytest.approx([start for _, start, _ in words], abs=1e-3)
    assert [word.end for word in transcript.words] == pytest.approx(ends, abs=1e-3)


@needs_nemo
@pytest.mark.parametrize("name", cases_of_source() if HAS_NEMO else [pytest.param("", marks=pytest.mark.skip(REASON))])
def test_the_stored_numbers_are_those_of_nvidias_classes(name: str) -> None:
    made, stored = nvidia_case(name), stored_cases()[name]
    assert made["shapes"] == stored["shapes"]
    torch.testing.assert_close(torch.tensor(made["log_probs"]), torch.tensor(stored["log_probs"]), rtol=0, atol=2e-5)


def test_the_recipe_of_a_file_is_short_and_in_terms_of_this_package(tmp_path: Path) -> None:
    config = read_nemo(write_case(tmp_path / "Small.nemo", "streaming")).config
    sections = ["AudioToMelSpectrogramPreprocessor", "SpectrogramAugmentation", "ConformerEncoder"]
    assert list(config) == ["name", "labels", *sections, "JasperDecoderForCTC"]
    assert (config["name"], config["labels"], config["JasperDecoderForCTC"]) == ("Small", LABELS, {})
    assert config["ConformerEncoder"]["att_context_size"] == [[4, 1], [4, 0]]
    assert config["AudioToMelSpectrogramPreprocessor"]["generation"] == "nemo_2.5"


def test_a_hybrid_has_both_heads(tmp_path: Path) -> None:
    found = read_nemo(write_case(tmp_path / "m.nemo", "hybrid with 128 bands"))
    assert set(found.weights) == {"ConformerEncoder", "RNNTDecoder", "RNNTJoint", "JasperDecoderForCTC"}
    assert (found.config["family"], found.config["AuxiliaryCTCLoss"]) == ("hybrid", {"weight": 0.3})


def test_missing_and_surplus_weights_are_both_listed(tmp_path: Path) -> None:
    state = by_formula(stored_cases()["fast conformer of 3.0"]["shapes"])
    state["encoder.layers.0.norm_out.scale"] = state.pop("encoder.layers.0.norm_out.weight")
    message = (
        r"m\.nemo, ConformerEncoder: does not fit ConformerEncoder: missing: layers\.0\.norm_out\.weight \(16\); "
        r"unexpected: layers\.0\.norm_out\.scale \(16\)"
    )
    with pytest.raises(CheckpointError, match=message) as caught:
        load_model(write_case(tmp_path / "m.nemo", "fast conformer of 3.0", state))
    assert "\n" not in str(caught.value)


def test_positions_that_older_files_hold_are_left_out(tmp_path: Path) -> None:
    state = by_formula(stored_cases()["conformer of 1.20"]["shapes"])
    load_model(
        write_case(tmp_path / "m.nemo", "conformer of 1.20", {**state, "encoder.pos_enc.pe": torch.ones(1, 9, 16)})
    )


def test_labels_that_are_not_the_outputs_of_the_head_are_one_line(tmp_path: Path) -> None:
    config = config_of("conformer of 1.20")
    config["decoder"]["vocabulary"] = LABELS[:4]
    message = r"m\.nemo: its labels do not fit its decoder: got 4 labels, wanted 6, one for each output"
    with pytest.raises(CheckpointError, match=message):
        read_nemo(write_case(tmp_path / "m.nemo", "conformer of 1.20", decoder=config["decoder"]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"self_attention_model": "rel_pos_local_attn"},
            'encoder.self_attention_model is "rel_pos_local_attn", wanted rel_pos or rel_pos_no_shift',
        ),
        ({"self_attention_model": "abs_pos"}, 'encoder.self_attention_model is "abs_pos", wanted rel_pos'),
        (
            {"att_context_style": "chunked_limited_with_rc", "att_context_size": [4, 1, 1]},
            'encoder.att_context_style is "chunked_limited_with_rc", wanted regular or chunked_limited',
        ),
        ({"reduction": "pooling"}, 'encoder.reduction is "pooling", which is not known here'),
        ({"reduction_factor": 2}, "encoder.reduction_factor is 2, which is not known here, wanted 1"),
        ({"global_tokens": 1}, "encoder.global_tokens is 1, which is not known here, wanted 0"),
        ({"conv_context_style": "dcc"}, 'encoder.conv_context_style is "dcc", which is not known here'),
        ({"att_chunk_context_size": [[70], [1], [0]]}, "encoder.att_chunk_context_size is"),
    ],
)
def test_an_encoder_of_another_kind_is_refused_with_its_setting(tmp_path: Path, changes: Any, message: str) -> None:
    encoder = config_of("fast conformer of 3.0")["encoder"] | changes
    with pytest.raises(ConfigError) as caught:
        load_model(write_case(tmp_path / "m.nemo", "fast conformer of 3.0", encoder=encoder))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# Tokenizers in archives: SentencePiece, WordPiece, several languages.


WORD_PIECES = ["[PAD]", "[UNK]", "the", "##ca", "cat", "c", "##t"]
VOCABULARY = "".join(f"{piece}\n" for piece in WORD_PIECES).encode()
WPE = {"dir": None, "type": "wpe", "vocab_path": "nemo:0123456789abcdef0123456789abcdef_vocab.txt"}
WPE_FILES = {"0123456789abcdef0123456789abcdef_vocab.txt": VOCABULARY}


def test_a_word_piece_vocabulary_comes_with_its_model_in_the_order_of_its_file(tmp_path: Path) -> None:
    file = write_with_labels(tmp_path / "m.nemo", sorted(WORD_PIECES), WPE, WPE_FILES)
    model = load_model(file)
    assert model.card.labels == ["\u2581[PAD]", "\u2581[UNK]", "\u2581the", "ca", "\u2581cat", "\u2581c", "t"]
    model.save(tmp_path / "made")
    assert [path.suffix for path in (tmp_path / "made").glob("tokenizer-*")] == [".txt"]
    again = load_model(tmp_path / "made").recipe
    assert again.tokenizer is not None
    assert again.tokenizer.ids_of("the cat") == ([2, 4], [])


def test_tokenizers_of_several_languages_are_joined_in_the_order_of_the_file(tmp_path: Path) -> None:
    english, spanish = small_subwords("bpe"), small_subwords()
    languages = {
        "en": {"dir": None, "type": "bpe", "model_path": "nemo:1a_en.model", "vocab_path": "nemo:1b_vocab.txt"},
        "es": {"dir": None, "type": "bpe", "model_path": "nemo:2a_es.model"},
        "xx": {"dir": None, "type": "wpe", "vocab_path": "nemo:3a_vocab.txt"},
    }
    files = {"1a_en.model": english.model, "2a_es.model": spanish.model, "3a_vocab.txt": VOCABULARY}
    labels = [*english, *spanish, *WORD_PIECES]
    file = write_with_labels(tmp_path / "m.nemo", labels, {"type": "agg", "langs": languages}, files)
    model = load_model(file)
    model.save(tmp_path / "made")
    again = load_model(tmp_path / "made", overrides=["language=es"])
    assert again.card.labels == [*english, *spanish, *map(marked_piece, WORD_PIECES)]
    text = "the cat"
    parser = again.recipe.text_reading.new_parser(again.recipe.tokenizer or [])
    assert parser.encode(text) == [len(english) + i for i in spanish.ids_of(text)[0]]
    (transcript,) = again.transcribe([signal_of().numpy()], sample_rate=RATE)
    assert transcript.text == model.transcribe([signal_of().numpy()], sample_rate=RATE)[0].text != ""


@pytest.mark.parametrize(
    ("section", "files", "message"),
    [
        ({"type": "agg"}, {}, r"m\.nemo: its tokenizer of several languages has none: wanted tokenizer\.langs"),
        ({**WPE, "vocab_path": "nemo:1_v.txt"}, {}, r"m\.nemo: it has no 1_v\.txt"),
        (
            {**WPE, "vocab_path": "nemo:../v.txt"},
            {},
            r"vocab_path leads out of the archive: got nemo:\.\./v",
        ),
        (WPE, {**WPE_FILES, WPE["vocab_path"][5:]: VOCABULARY + b"more\n"}, r"got 8 pieces, wanted 7, one for each"),
        (WPE, {WPE["vocab_path"][5:]: VOCABULARY.replace(b"cat", b"dog")}, "a label is outside its tokenizer's voc"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_one_line(tmp_path: Path, section: Any, files: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read_nemo(write_with_labels(tmp_path / "m.nemo", WORD_PIECES, section, files))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["/raid/tokenizers/vocab.txt", "tokenizers/vocab.txt"])
def test_the_tokenizer_of_an_early_file_is_found_by_its_name(
    tmp_path: Path, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    section = {**WPE, "vocab_path": path}
    found = read_nemo(write_with_labels(tmp_path / "m.nemo", WORD_PIECES, section, {"vocab.txt": VOCABULARY}))
    assert found.tokenizer is not None
    without = read_nemo(write_with_labels(tmp_path / "n.nemo", WORD_PIECES, section, {}))
    assert (without.tokenizer, without.config["labels"]) == (None, list(found.tokenizer))
    assert "n.nemo: the tokenizer is not in it. The model transcribes; to train" in capsys.readouterr().err
