"""Transducers of `.nemo` files find the labels, frames and durations that NVIDIA's own classes find."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from toys.log_probs import frames_of, log_probs_of
from toys.nemo_conformers import LABELS, RATE, signal_of
from toys.nemo_source import needs_nemo
from toys.nemo_transducers import CASES, nvidia_case, stored_cases, write_case

from nemo_asr.commands.cli import models
from nemo_asr.run.cli import transcribe
from nemo_asr.run.search.transducer import FRAMES
from nemo_asr.trained.model import TrainedModel, import_model, load_model
from nemo_lite.base.errors import UsageError


@pytest.mark.parametrize("name", CASES)
def test_a_file_has_the_labels_frames_and_durations_that_nvidias_classes_find(tmp_path: Path, name: str) -> None:
    wanted = stored_cases()[name]
    model = load_model(write_case(tmp_path / "m.nemo", name))
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
