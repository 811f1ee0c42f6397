"""ModelCard: what a model says about itself survives as JSON, and what is no card is refused."""

from __future__ import annotations

import json
import math

import pytest
from toys.tone_corpus import CONFIG

import nemo_asr
from nemo_asr.trained.folder import KIND, ModelCard, Rate, card_to_json, read_card
from nemo_asr.trained.model import describe
from nemo_lite.base.errors import CheckpointError
from nemo_lite.base.verified import VerifiedFile

CARD = ModelCard(
    name="Tones",
    labels=[" ", "a", "字"],
    sample_rate=16000,
    frame_seconds=0.02,
    step=348,
    epoch=12,
    rates=[Rate(set="dev", wer=0.0313, cer=0.01, utterances=200, manifests={"dev.json": "ab" * 32})],
    config=VerifiedFile("config-0a1b2c3d.yaml", "0a" * 32, 700),
    weights={"JasperEncoder": VerifiedFile("JasperEncoder-0a1b2c3d.safetensors", "0a" * 32, 1200)},
)


@pytest.fixture(name="read")
def _read(tmp_path):
    def read(text):
        (tmp_path / "model.json").write_text(text, encoding="utf-8")
        return read_card(tmp_path / "model.json")

    return read


def test_a_card_is_the_same_after_a_trip_through_json(read):
    assert read(card_to_json(CARD)) == CARD
    assert '"字"' in card_to_json(CARD)


def test_a_card_says_in_a_line_how_far_the_model_is_and_how_good():
    assert CARD.progress() == "step 348 (epoch 12), WER 3.13% CER 1.00% on dev"
    assert ModelCard(step=3).progress() == "step 3 (epoch 0)"
    assert str(Rate(set="dev")) == "not scored on dev"


def test_fields_of_a_later_writer_of_the_same_version_are_passed_over(read):
    fields = {**json.loads(card_to_json(CARD)), "colour": "blue"}
    del fields["sha256"]
    assert read(KIND.text(fields)) == CARD


def test_a_card_without_a_digest_is_read_as_it_is(read):
    fields = json.loads(card_to_json(CARD))
    del fields["sha256"]
    assert read(json.dumps(fields)) == CARD


def test_a_card_that_is_not_what_was_written_is_refused_with_what_to_do(read):
    changed = card_to_json(CARD).replace('"a"', '"b"')
    told = r'model\.json: the model card was changed or damaged: .*copy the folder again, or remove "sha256" from it$'
    with pytest.raises(CheckpointError, match=told):
        read(changed)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{}", 'the model card is of another kind: got format "None", version None, wanted format "nemo_lite model"'),
        (
            '{"format": "nemo_lite model", "version": 2}',
            "got version 2, wanted at most 1; update nemo_lite, or choose another folder",
        ),
        ('{"format": "nemo_lite model", "version": "1"}', "the model card is of another kind"),
        (
            '{"format": "nemo_lite model", "version": 1, "step": "x"}',
            "Expected `int`, got `str` - at `$.step`",
        ),
        ('{"format": "nemo_lite model", "version": 1, "frame_seconds": 1e308}', "<= 10.0 - at `$.frame_seconds`"),
        ('{"format": "nemo_lite model", "version": 1, "sample_rate": -1}', ">= 0 - at `$.sample_rate`"),
        ('{"format": "nemo_lite model", "version": 1', "the model card cannot be read: invalid JSON"),
        ("[1]", "the model card cannot be read: it is no object"),
        pytest.param("[" * 100_000, "nested 100000 levels deep", id="deep"),
        ("\udc80", "the byte 0x80 is not UTF-8"),
    ],
)
def test_what_is_no_card_is_refused_in_one_line(content, told, tmp_path):
    path = tmp_path / "model.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError) as caught:
        read_card(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_card_that_is_missing_or_far_too_large_is_not_read(tmp_path):
    with pytest.raises(CheckpointError, match="the model card cannot be opened"):
        read_card(tmp_path / "model.json")
    with open(tmp_path / "large.json", "wb") as file:
        file.truncate(2**31)
    with pytest.raises(CheckpointError, match="the model card is too large: got 2147483648 bytes"):
        read_card(tmp_path / "large.json")


def test_a_recipe_is_described_with_its_labels_rate_and_seconds_a_frame(tmp_path):
    (tmp_path / "tones.yaml").write_text(CONFIG)
    card = describe(nemo_asr.load_recipe(tmp_path / "tones.yaml"), licence="CC-BY-4.0")
    assert (card.name, card.labels, card.sample_rate) == ("Tones", [" ", "a", "b", "c"], 16000)
    assert math.isclose(card.frame_seconds, 2 * 0.01)  # the encoder's stride x window_stride
    assert card.licence == "CC-BY-4.0"
    assert set(card.versions) == {"nemo_lite", "torch", "python"}
