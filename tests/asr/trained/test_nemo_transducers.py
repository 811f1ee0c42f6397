"""Transducers of `.nemo` files find the labels, frames and durations that NVIDIA's own classes find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from toys.log_probs import frames_of
from toys.nemo_conformers import LABELS, RATE, signal_of
from toys.nemo_source import needs_nemo
from toys.nemo_transducers import CASES, nvidia_case, stored_cases, write_case

from nemo_asr.run.search.transducer import FRAMES
from nemo_asr.trained.model import load_model


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
    torch.testing.assert_close(torch.tensor(made.pop("frames")), torch.tensor(stored.pop("frames")), rtol=0, atol=3e-5)
    assert made == stored
