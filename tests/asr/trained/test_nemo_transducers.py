"""Transducers of `.nemo` files find the labels, frames and durations that NVIDIA's own classes find."""

from __future__ import annotations

from itertools import combinations, groupby
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from toys.log_probs import frames_of, log_probs_of
from toys.nemo_conformers import LABELS, RATE, signal_of
from toys.nemo_source import needs_nemo
from toys.nemo_transducers import CASES, LANGUAGE, config_of, nvidia_case, state_of, stored_cases, write_case

from nemo_asr.commands.cli import models
from nemo_asr.export.stream_export import export_stream
from nemo_asr.run.cli import transcribe
from nemo_asr.run.onnx.onnx_stream import OnnxStreamedModel
from nemo_asr.run.search.transducer import FRAMES
from nemo_asr.run.transcribe.stream import FrameStream
from nemo_asr.trained.model import TrainedModel, import_model, load_model
from nemo_asr.trained.nemo_files import read_nemo
from nemo_lite.base.errors import CheckpointError, ConfigError, UsageError


@pytest.mark.parametrize("name", CASES)
def test_a_file_has_the_labels_frames_and_durations_that_nvidias_classes_find(tmp_path: Path, name: str) -> None:
    wanted = stored_cases()[name]
    model = load_model(write_case(tmp_path / "m.nemo", name))
    if name == "prompt":
        model.set_language(LANGUAGE)
    frames = frames_of(model, signal_of())
    # They are projected with weights of three times the usual size.
    torch.testing.assert_close(frames, torch.tensor(wanted["frames"]), rtol=1e-5, atol=3e-5)
    search: Any = model.modules.search
    found = search.recognise({FRAMES: frames.numpy()}).best
    assert (found.ids, found.starts) == (wanted["labels"], wanted["starts"])
    lasting = [max(duration, 1) for duration in wanted["durations"]]
    assert [end - start for start, end in zip(found.starts, found.ends, strict=True)] == lasting
    (transcript,) = model.transcribe([signal_of().numpy()], sample_rate=RATE)
    assert transcript.text == " ".join("".join(LABELS[label] for label in wanted["labels"]).split())


@needs_nemo
@pytest.mark.parametrize("name", CASES)
def test_the_stored_numbers_are_those_of_nvidias_classes(name: str) -> None:
    made, stored = nvidia_case(name), stored_cases()[name]
    for values in ("frames", "log_probs"):
        numbers = [torch.tensor(each.pop(values, [])) for each in (made, stored)]
        torch.testing.assert_close(*numbers, rtol=0, atol=3e-5)
    assert made == stored


# A hybrid: both heads.


def text_by_definition(log_probs: torch.Tensor) -> str:
    return "".join([*LABELS, ""][label] for label, _ in groupby(log_probs.argmax(1).tolist())).strip()


def text_of(model: TrainedModel, **settings: Any) -> str:
    return model.transcribe([signal_of().numpy()], sample_rate=RATE, **settings)[0].text


def test_a_hybrid_transcribes_with_each_head(tmp_path: Path) -> None:
    model = load_model(write_case(tmp_path / "m.nemo", "hybrid"))
    log_probs = log_probs_of(model, signal_of())
    torch.testing.assert_close(log_probs, torch.tensor(stored_cases()["hybrid"]["log_probs"]), rtol=1e-5, atol=1e-5)
    of_ctc = text_by_definition(log_probs)
    assert text_of(model, head="ctc") == of_ctc != ""
    assert text_of(model, head="transducer") == text_of(model) not in ("", of_ctc)


def test_an_imported_hybrid_keeps_both_heads_and_each_can_be_saved_alone(tmp_path: Path) -> None:
    source = write_case(tmp_path / "m.nemo", "hybrid")
    made = import_model(source, tmp_path / "made")
    assert set(made.card.weights) == {"ConformerEncoder", "RNNTDecoder", "RNNTJoint", "JasperDecoderForCTC"}
    model = load_model(tmp_path / "made")
    for head, weights in (
        ("ctc", {"ConformerEncoder", "JasperDecoderForCTC"}),
        ("transducer", {"ConformerEncoder", "RNNTDecoder", "RNNTJoint"}),
    ):
        model.with_head(head).save(tmp_path / head)
        alone = load_model(tmp_path / head)
        assert set(alone.card.weights) == weights
        assert alone.modules.family == head
        assert text_of(alone) == text_of(model, head=head) != ""
        assert alone.with_head(head) is alone


def test_the_search_of_a_section_stays_with_the_head_that_it_reads(tmp_path: Path) -> None:
    overrides = ["TransducerSearch=null", "BeamSearchCTCDecoder={}"]
    model = load_model(write_case(tmp_path / "m.nemo", "hybrid"), overrides=overrides)
    searches = {head: type(model.with_head(head).modules.search).__name__ for head in ("ctc", "transducer")}
    assert searches == {"ctc": "BeamSearchCTCDecoder", "transducer": "TransducerSearch"}


@pytest.mark.parametrize(
    ("name", "head", "message"),
    [
        ("tdt", "ctc", "the model has no such head: got ctc, wanted transducer"),
        ("hybrid", "attention", "the model has no such head: got attention, wanted transducer or ctc"),
    ],
)
def test_a_head_that_a_model_has_not_is_one_line(tmp_path: Path, name: str, head: str, message: str) -> None:
    model = load_model(write_case(tmp_path / "m.nemo", name))
    with pytest.raises(UsageError) as caught:
        text_of(model, head=head)
    assert str(caught.value) == f"{tmp_path / 'm.nemo'}: {message}"


def test_commands_take_the_head_and_show_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, audio = str(write_case(tmp_path / "m.nemo", "hybrid")), tmp_path / "a.wav"
    soundfile.write(audio, signal_of().numpy(), RATE)
    models.main(["show", file])
    assert "heads        transducer, or with --head ctc" in capsys.readouterr().out.splitlines()
    said = {}
    for head in ("ctc", "transducer"):
        transcribe.main([file, str(audio), "--head", head])
        said[head] = capsys.readouterr().out.strip()
    model = load_model(file)
    assert said == {head: model.transcribe([audio], head=head)[0].text for head in said}


# The language as a prompt.


def test_the_language_that_is_set_decides_and_auto_is_the_default(tmp_path: Path) -> None:
    model = load_model(write_case(tmp_path / "m.nemo", "prompt"))
    frames = [frames_of(model, signal_of())]
    for language in ("auto", "de-DE", "de", "en-US"):
        model.set_language(language)
        frames.append(frames_of(model, signal_of()))
    default, auto, german, also_german, english = frames
    assert torch.equal(default, auto)
    assert torch.equal(german, also_german)
    assert not any(torch.allclose(one, other) for one, other in combinations([auto, german, english], 2))


def test_the_language_goes_with_the_model_folder_and_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, audio = write_case(tmp_path / "m.nemo", "prompt"), tmp_path / "a.wav"
    soundfile.write(audio, signal_of().numpy(), RATE)
    model = import_model(file, tmp_path / "made")
    model.set_language("en-US")
    capsys.readouterr()
    transcribe.main([str(tmp_path / "made"), str(audio), "--language", "en-US"])
    assert capsys.readouterr().out.strip() == model.transcribe([audio])[0].text
    with pytest.raises(UsageError) as caught:
        transcribe.main([str(file), str(audio), "--language", "xx"])
    wanted = "the model does not know this language: got xx, wanted one of en-US, de-DE, de, auto"
    assert str(caught.value) == f"LanguagePrompt: {wanted}"


def test_a_stream_has_the_language_too(tmp_path: Path) -> None:
    model = load_model(write_case(tmp_path / "m.nemo", "prompt"))
    model.set_language("de-DE")
    samples = signal_of().numpy()
    stream = model.stream(RATE, by="frames")
    events = [event for start in range(0, len(samples), 1600) for event in stream.accept(samples[start : start + 1600])]
    events += stream.finish()
    assert events[-1].text == text_of(model) != ""


@pytest.mark.slow
def test_a_file_for_streams_has_the_language_with_which_it_was_exported(tmp_path: Path) -> None:
    model = load_model(write_case(tmp_path / "m.nemo", "prompt"))
    text_of_auto = text_of(model)
    model.set_language("de-DE")
    export_stream(model, tmp_path / "m.onnx")
    stream = FrameStream(OnnxStreamedModel(tmp_path / "m.onnx"), RATE)
    stream.accept(signal_of().numpy())
    stream.finish()
    assert stream.text == text_of(model) != text_of_auto


def test_a_language_for_a_model_without_a_prompt_is_one_line(tmp_path: Path) -> None:
    file = write_case(tmp_path / "m.nemo", "tdt")
    with pytest.raises(UsageError) as caught:
        load_model(file).set_language("de-DE")
    assert str(caught.value) == f"{file}: the model takes no language: got de-DE; leave it out"


def test_a_prompt_without_languages_is_one_line(tmp_path: Path) -> None:
    file = write_case(tmp_path / "m.nemo", "prompt", model_defaults={"num_prompts": 8})
    with pytest.raises(ConfigError, match=r"the languages are missing, wanted model_defaults\.prompt_dictionary$"):
        read_nemo(file)


# What is not read: one line each.


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("rnnt", {"joint": {"_target_": "m.HATJoint"}}, "joint is HATJoint, wanted RNNTJoint"),
        ("rnnt", {"joint": {"_target_": "m.SampledRNNTJoint"}}, "joint is SampledRNNTJoint, wanted RNNTJoint"),
        ("rnnt", {"joint": {"masking_prob": 0.5}}, "joint.masking_prob is 0.5: HAINAN models are not read, wanted -1"),
        ("rnnt", {"joint": {"masking_prob": "half"}}, 'joint.masking_prob is "half": HAINAN models are not read, want'),
        ("rnnt", {"joint": {"jointnet": None}}, "joint.jointnet is null, wanted a section"),
        ("rnnt", {"decoder": {"prednet": 3}}, "decoder.prednet is 3, wanted a section"),
        ("rnnt", {"loss": {"loss_name": "graph_rnnt"}}, 'loss.loss_name is "graph_rnnt", a loss of graphs; wanted'),
        ("rnnt", {"decoder": {"_target_": "m.OtherDecoder"}}, "decoder is OtherDecoder, wanted RNNTDecoder or State"),
        (
            "tdt",
            {"decoding": {"durations": None}, "loss": {"tdt_kwargs": {}}},
            "the model's durations are missing, wanted decoding.durations, a list of frames",
        ),
    ],
)
def test_a_transducer_of_another_kind_is_refused_with_its_setting(
    tmp_path: Path, name: str, changes: dict[str, dict[str, Any]], message: str
) -> None:
    config = config_of(name)
    sections = {key: {**config[key], **values} for key, values in changes.items()}
    with pytest.raises(ConfigError) as caught:
        read_nemo(write_case(tmp_path / "m.nemo", name, **sections))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "changes", "got"),
    [
        (
            "tdt",
            {"decoding": {"durations": [0, 1, 2, 4, 8]}},
            "loss.tdt_kwargs.durations [0, 1, 2, 3, 4], decoding.durations [0, 1, 2, 4, 8]",
        ),
        (
            "multi-blank",
            {"loss": {"multiblank_rnnt_kwargs": {"big_blank_durations": [2, 8]}}},
            "loss.multiblank_rnnt_kwargs.big_blank_durations [2, 8], decoding.big_blank_durations [2, 4]",
        ),
        (
            "tdt",
            {"joint": {"num_extra_outputs": 4}, "decoding": {"durations": None}},
            "loss.tdt_kwargs.durations [0, 1, 2, 3, 4], joint.num_extra_outputs 4",
        ),
    ],
)
def test_durations_that_contradict_each_other_are_one_line_with_their_places(
    tmp_path: Path, name: str, changes: dict[str, dict[str, Any]], got: str
) -> None:
    config = config_of(name)
    sections = {key: {**config[key], **values} for key, values in changes.items()}
    with pytest.raises(ConfigError) as caught:
        read_nemo(write_case(tmp_path / "m.nemo", name, **sections))
    assert f": the model's durations contradict each other: got {got}; wanted the same in each" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_adapters_are_one_line(tmp_path: Path) -> None:
    state = {**state_of("rnnt"), "encoder.layers.0.adapter_layer.new.module.0.weight": torch.ones(1)}
    with pytest.raises(CheckpointError, match=r"m\.nemo: its modules have adapters, which are not read: got encoder\."):
        read_nemo(write_case(tmp_path / "m.nemo", "rnnt", state))


@pytest.mark.parametrize(
    ("name", "others"), [("rnnt", ""), ("tdt", " and 5 durations"), ("multi-blank", " and 2 big blanks")]
)
def test_labels_that_are_not_the_outputs_of_the_joint_network_are_one_line(
    tmp_path: Path, name: str, others: str
) -> None:
    joint = {**config_of(name)["joint"], "vocabulary": LABELS[:4]}
    with pytest.raises(CheckpointError) as caught:
        read_nemo(write_case(tmp_path / "m.nemo", name, joint=joint))
    wanted = f"got 4 labels, wanted 6, one for each output of the joint network but the blank{others}"
    assert str(caught.value) == f"{tmp_path / 'm.nemo'}: its labels do not fit its joint network: {wanted}"


def test_the_loss_has_the_settings_of_the_file(tmp_path: Path) -> None:
    assert read_nemo(write_case(tmp_path / "r.nemo", "rnnt")).config.get("RNNTLoss") is None
    tdt = {"durations": [0, 1, 2, 3, 4], "sigma": 0.05, "omega": 0.1, "fastemit_lambda": 0.001, "clamp": -1.0}
    loss = {"loss_name": "tdt", "warprnnt_numba_kwargs": {"clamp": 5.0}, "tdt_kwargs": tdt}
    file = write_case(tmp_path / "t.nemo", "tdt", loss=loss, rnnt_reduction="mean_volume")
    wanted = {"reduction": "mean_volume", "sigma": 0.05, "omega": 0.1, "fastemit_lambda": 0.001}
    assert read_nemo(file).config["RNNTLoss"] == wanted
    assert load_model(file).modules.loss is not None


@pytest.mark.parametrize(
    ("name", "target"), [("rnnt", "EncDecRNNTBPEEOUModel"), ("hybrid", "EncDecHybridRNNTCTCBPEEOUModel")]
)
def test_models_with_labels_for_ends_of_utterances_are_transducers_like_others(
    tmp_path: Path, name: str, target: str
) -> None:
    plain, own = (tmp_path / file for file in ("plain.nemo", "own.nemo"))
    write_case(plain, name)
    write_case(own, name, target=f"nemo.collections.asr.models.{target}")
    assert {**read_nemo(own).config, "name": ""} == {**read_nemo(plain).config, "name": ""}


def test_durations_and_symbols_are_found_where_files_say_them(tmp_path: Path) -> None:
    config = config_of("tdt")
    loss = {**config["loss"], "tdt_kwargs": {"sigma": 0.05}}
    defaults = {**config["model_defaults"], "tdt_durations": [0, 1, 2, 3, 4]}
    decoding = {"strategy": "greedy", "greedy": {"max_symbols_per_step": 3}}
    file = write_case(tmp_path / "m.nemo", "tdt", loss=loss, model_defaults=defaults, decoding=decoding)
    found = read_nemo(file).config
    assert found["RNNTJoint"]["durations"] == [0, 1, 2, 3, 4]
    assert found["TransducerSearch"] == {"max_symbols": 3}
