"""What is found before audio is decoded: missing files, and texts that do not fit their frames."""

import json

import numpy as np
import pytest
import torch
from toys.manifests import LABELS, layer_of, make_set

from nemo_asr.data.manifest import Manifest
from nemo_asr.data.speech_data_layer import unwritable
from nemo_asr.text.parser import make_parser
from nemo_lite.errors import DataError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_missing_audio_files_are_found_when_the_layer_is_made(folder):
    make_set(folder)
    for number in (2, 5):
        (folder / f"{number}.wav").unlink()
    with pytest.raises(DataError) as error:
        layer_of()
    lines = str(error.value).splitlines()
    assert lines[0].startswith("train.json:2: the audio file 2.wav cannot be opened (No such file or directory); mend")
    assert lines[1].startswith("train.json:5: ")
    assert len(lines) == 2
    assert len(layer_of(load_audio=False)) == 12


def test_empty_audio_files_are_found_when_the_layer_is_made(folder):
    make_set(folder)
    (folder / "2.wav").write_bytes(b"")
    with pytest.raises(DataError, match=r"^train\.json:2: the audio file 2\.wav is empty \(0 bytes\); make it again"):
        layer_of()


def test_of_a_large_set_evenly_spread_lines_are_looked_at_and_the_rest_when_read(folder):
    make_set(folder)
    (folder / "5.wav").unlink()
    manifest, parser = Manifest.open("train.json"), make_parser(LABELS)
    refused, all_seen = unwritable(manifest, parser, limit=3)
    assert (len(refused), bool(refused.any()), all_seen) == (12, False, False)
    (folder / "12.wav").unlink()
    with pytest.raises(DataError, match=r"^train\.json:12: "):
        unwritable(manifest, parser, limit=3)


def test_utterances_that_ctc_cannot_align_are_listed_by_line(folder):
    make_set(folder, 3)
    texts = ["aab", "aabb", "abc"]
    lines = [json.loads(line) for line in (folder / "train.json").read_text().splitlines()]
    lines = [{**line, "text": text} for line, text in zip(lines, texts, strict=True)]
    (folder / "train.json").write_text("\n".join(map(json.dumps, lines)))
    asked = []
    found = layer_of().infeasible(lambda num_samples: asked.append(num_samples) or 4)
    assert [str(item) for item in found] == ['train.json:2: 4 frames cannot hold "aabb", which needs 6']
    assert sorted(asked) == [3360, 3520, 3680]


def test_feasibility_agrees_with_torchs_ctc_loss(folder):
    make_set(folder, 1)
    for text in ("aab", "aabb", "abab", "aaa", "abc a"):
        line = json.loads((folder / "train.json").read_text())
        (folder / "one.json").write_text(json.dumps({**line, "text": text}))
        ids = torch.tensor([[LABELS.index(character) for character in text]])
        log_probs = torch.full((4, 1, 5), -np.log(5.0))
        loss = torch.nn.functional.ctc_loss(log_probs, ids, torch.tensor([4]), torch.tensor([len(text)]), blank=4)
        assert bool(torch.isinf(loss)) == bool(layer_of("one.json").infeasible(lambda _: 4)), text


def test_infeasible_utterances_tell_their_positions(folder):
    make_set(folder)
    layer = layer_of()
    found = layer.infeasible(lambda num_samples: 1)  # one frame: "a" fits, "ab" does not
    assert [infeasible.row for infeasible in found] == [1, 3, 5, 7, 9, 11]
    assert [infeasible.place for infeasible in found] == [layer.place_of(infeasible.row) for infeasible in found]
