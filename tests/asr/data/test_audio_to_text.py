"""AudioToTextDataLayer, and transcripts in files of their own."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from toys.hostile_audio import encoded, speech_like
from toys.manifests import damage, layer_of, make_set
from toys.tone_corpus import TEXTS, make_corpus

import nemo_asr
from nemo_asr.data.speech_data_layer import AudioToTextDataLayer
from nemo_lite import DataLayerNM
from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.backends.pytorch.distributed.comm import SingleProcess
from nemo_lite.backends.pytorch.engine.arguments import tell_batch_size
from nemo_lite.base.errors import ConfigError, DataError, UnknownNameError, UsageError
from nemo_lite.core.neural_types import AudioSignal, LabelsType, LengthsType

# The audio data layer as a user and the engine meet it.


DIGITS = Path(__file__).resolve().parents[3] / ".." / "shared/data/fsdd/test.json"
NOISE = {"white_noise": {"prob": 1.0, "min_level": -30, "max_level": -20}}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def batches_of(layer, *, training=False, epoch=0, **shard):
    return list(layer.loader(training=training, shard=Shard(**shard)).epoch(epoch))


def whole_epoch(loader, epoch=0):
    """Its batches, as the engine takes them."""
    batches = list(loader.epoch(epoch))
    loader.settle(SingleProcess())
    return batches


def ids_of(batches):
    return [row for batch in batches for row in batch.ids]


def test_the_ports_are_those_of_nemo_with_the_sample_rate_in_the_type(folder):
    make_set(folder)
    ports = layer_of(sample_rate=8000).output_ports
    assert list(ports) == ["audio_signal", "a_sig_length", "transcripts", "transcript_length"]
    kinds = [type(ntype.elements_type) for ntype in ports.values()]
    assert kinds == [AudioSignal, LengthsType, LabelsType, LengthsType]
    assert ports["audio_signal"].elements_type.freq == 8000
    wires = layer_of()()
    assert wires.audio_signal.name


def test_evaluation_gives_every_utterance_once_in_order_on_any_number_of_ranks(folder):
    make_set(folder, 13)
    layer = layer_of(shuffle=True, drop_last=True, augmentor=NOISE)
    assert ids_of(batches_of(layer)) == list(range(13))
    ranks = [batches_of(layer, rank=rank, world_size=3) for rank in range(3)]
    in_order = sorted((batch for rank in ranks for batch in rank), key=lambda batch: batch.number)
    assert [batch.number for batch in in_order] == list(range(5))
    assert ids_of(in_order) == list(range(13))
    assert [len(layer.loader(training=False, shard=Shard(rank, 3))) for rank in range(3)] == [2, 2, 2]
    first, again = (torch.cat([b.values[0].flatten() for b in batches_of(layer, epoch=epoch)]) for epoch in (0, 1))
    assert torch.equal(first, again)


def test_more_ranks_than_utterances_leave_some_without_a_batch(folder):
    make_set(folder, 2)
    ranks = [batches_of(layer_of(), rank=rank, world_size=4) for rank in range(4)]
    assert [ids_of(batches) for batches in ranks] == [[0], [1], [], []]


def test_a_batch_of_which_nothing_can_be_evaluated_is_missing_and_the_others_keep_their_numbers(folder):
    make_set(folder, 12)
    damage(folder, 1, 2, 7)
    layer = layer_of(batch_size=2, max_corrupt=3)
    ranks = [batches_of(layer, rank=rank, world_size=2) for rank in range(2)]
    assert [[(batch.number, list(batch.ids)) for batch in batches] for batches in ranks] == [
        [(2, [4, 5]), (4, [8, 9])],
        [(1, [2, 3]), (3, [7]), (5, [10, 11])],
    ]


@pytest.mark.parametrize(
    ("uneven", "sizes", "leftover"),
    [
        ("pad", [[2, 2, 1], [2, 2, 1], [2, 2, 1]], (2, 0)),
        ("drop", [[2, 2], [2, 2], [2, 2]], (0, 1)),
        ("join", [[2, 2, 1], [2, 2], [2, 2]], (0, 0)),
    ],
)
def test_in_training_the_utterances_left_over_go_the_way_that_was_chosen(uneven, sizes, leftover, folder):
    make_set(folder, 13)
    loaders = [layer_of(batch_size=2).loader(training=True, shard=Shard(rank, 3, 0, uneven)) for rank in range(3)]
    assert [[batch.num_items for batch in loader.epoch(0)] for loader in loaders] == sizes
    assert {loader.num_rounds for loader in loaders} == {len(sizes[0])}
    assert {tuple(loader.leftover(epoch)) for loader in loaders for epoch in (0, 1)} == {leftover}


def test_utterances_left_over_end_the_run_before_it_starts_where_they_are_not_allowed(folder):
    make_set(folder, 13)
    with pytest.raises(UsageError, match="1 item is left over at the end of an epoch, for 3 ranks; choose"):
        layer_of(batch_size=2).loader(training=True, shard=Shard(0, 3, uneven="error"))


@pytest.mark.slow
def test_one_rank_and_four_perturb_an_utterance_alike(folder):
    make_set(folder)

    def sounds(world_size, workers=0):
        layer, found = layer_of(augmentor=NOISE, num_workers=workers, batch_size=3), {}
        for rank in range(world_size):
            for batch in batches_of(layer, training=True, epoch=2, seed=5, rank=rank, world_size=world_size):
                audio, lens = batch.values[:2]
                found |= {row: audio[k, : lens[k]] for k, row in enumerate(batch.ids)}
        return found

    alone, four = sounds(1), sounds(4, workers=1)
    assert sorted(alone) == sorted(four) == list(range(12))
    assert all(torch.equal(alone[row], four[row]) for row in alone)


def test_a_batch_tells_its_seconds_and_which_utterances_it_holds(folder):
    make_set(folder)
    layer = layer_of()
    batch = batches_of(layer)[1]
    assert batch.ids == [4, 5, 6, 7]
    assert batch.amount == pytest.approx(sum(layer.durations[4:8]), rel=1e-6)
    assert layer.amount_unit == "audio-s"
    assert batch.values[1].tolist() == layer.lengths_in_samples()[4:8].tolist()
    assert batch.values[3].tolist() == [1, 2, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("bucketing", [False, True])
def test_the_workers_do_not_change_what_a_run_sees(bucketing, folder):
    make_set(folder)
    seen = []
    for workers in (0, 2):
        layer = layer_of(num_workers=workers, augmentor=NOISE, bucketing=bucketing)
        loader = layer.loader(training=True, shard=Shard(seed=5))
        seen.append([batch for epoch in (0, 1) for batch in loader.epoch(epoch)])
    assert ids_of(seen[0]) == ids_of(seen[1])
    for mine, theirs in zip(*seen, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine.values, theirs.values, strict=True))


@pytest.mark.slow
def test_spawned_workers_see_the_same(folder, monkeypatch):
    make_set(folder)
    plain = batches_of(layer_of(), training=True)
    before = torch.multiprocessing.get_start_method()
    torch.multiprocessing.set_start_method("spawn", force=True)
    try:
        spawned = batches_of(layer_of(num_workers=1), training=True)
    finally:
        torch.multiprocessing.set_start_method(before, force=True)
    assert ids_of(plain) == ids_of(spawned)
    assert torch.equal(plain[0].values[0], spawned[0].values[0])


def test_training_is_shuffled_anew_in_each_epoch_and_the_same_in_each_run(folder):
    make_set(folder)
    loader = layer_of().loader(training=True, shard=Shard(seed=1))
    first, second = (ids_of(loader.epoch(epoch)) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second
    assert first == ids_of(batches_of(layer_of(), training=True, seed=1))
    assert first != ids_of(batches_of(layer_of(), training=True, seed=2))
    assert ids_of(batches_of(layer_of(shuffle=False), training=True)) == list(range(12))


def test_augmentation_acts_in_training_only(folder):
    make_set(folder)
    layer = layer_of(shuffle=False, augmentor=NOISE)
    trained, evaluated = (batches_of(layer, training=training)[0].values[0] for training in (True, False))
    assert not torch.equal(trained, evaluated)
    assert torch.equal(evaluated, batches_of(layer_of())[0].values[0])


def test_the_global_random_state_is_left_alone(folder):
    make_set(folder)
    layer = layer_of(augmentor=NOISE)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    batches_of(layer, training=True)
    assert torch.equal(torch.rand(1), expected)


def test_the_length_counts_utterances_and_a_loaders_length_batches(folder):
    make_set(folder, 13)
    layer = layer_of()
    assert len(layer) == 13
    for training in (True, False):
        loader = layer.loader(training=training, shard=Shard())
        assert loader.num_rounds == len(list(loader.epoch(0))) == 4
    assert len(layer_of(drop_last=True).loader(training=True, shard=Shard())) == 3
    assert len(layer_of(batch_size=-1).loader(training=False, shard=Shard())) == 1


def test_the_summary_is_printed_once_with_what_was_dropped(folder, capsys):
    make_set(folder)
    layer_of(min_duration=0.22, max_duration=0.3)
    told = capsys.readouterr().out
    assert "train.json: 9 utterances kept" in told
    assert "dropped 1 shorter than min_duration 0.22 s (0.00 h: train.json:1)" in told
    assert "dropped 2 longer than max_duration 0.3 s (0.00 h: train.json:11, train.json:12)" in told


def test_a_limit_of_seconds_makes_the_batch_size_a_limit_in_the_log(folder, capsys):
    make_set(folder)
    tell_batch_size(layer_of(bucketing=True, max_batch_seconds=2.0), SingleProcess(), 1)
    tell_batch_size(layer_of(bucketing=True), SingleProcess(), 1)
    assert re.findall(".*items per step", capsys.readouterr().out) == ["at most 4 items per step", "4 items per step"]


def test_texts_are_filtered_by_their_labels_a_second_and_the_limits_count_as_within(folder, capsys):
    lines = [
        {"audio_filepath": "a.wav", "duration": seconds, "text": text}
        for seconds, text in ((0.7, "aaaaaaa"), (0.7, "aaaaaaab"), (1.0, "ab"), (1.0, "a"), (1.0, "z"))
    ]
    soundfile.write("a.wav", np.zeros(16000), 16000)
    Path("train.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    layer = layer_of(min_label_rate=2, max_label_rate=10)
    assert [layer.utterance_of(row).text for row in range(len(layer))] == ["aaaaaaa", "ab", "z"]
    told = capsys.readouterr().out
    assert "1 with more labels a second than max_label_rate 10 (0.00 h: train.json:2)" in told
    assert "1 with fewer labels a second than min_label_rate 2 (0.00 h: train.json:4)" in told
    with pytest.raises(UsageError, match="min_label_rate is above max_label_rate: got 3 and 2"):
        layer_of(min_label_rate=3, max_label_rate=2)
    with pytest.raises(DataError, match=r"no utterance is left: .*2 with more labels a second than max_lab"):
        layer_of(max_label_rate=0.5, max_duration=0.8)


def test_training_leaves_out_texts_that_the_vocabulary_cannot_write_and_evaluation_keeps_them(folder, capsys):
    make_set(folder, 3)
    lines = [json.loads(line) for line in (folder / "train.json").read_text().splitlines()]
    lines[1]["text"], lines[2]["text"] = "qq", "aq"
    del lines[0]["text"]
    (folder / "train.json").write_text("\n".join(map(json.dumps, lines)))
    layer = layer_of(parser="base")
    told = capsys.readouterr()
    assert '1 character outside the vocabulary: "q" x3; 2 texts refused' in told.err
    left_out = "training leaves these utterances out, but by a model's configuration it refuses lines without a text; "
    assert f"{left_out}evaluation scores their texts" in told.err
    (batch,) = batches_of(layer)
    assert batch.values[3].tolist() == [0, 0, 1]
    before = layer.fingerprint()
    assert len(batches_of(layer, training=True)) == 1
    assert [layer.manifest.place(row) for row in range(len(layer))] == ["train.json:3"]
    assert layer.fingerprint() == before
    reason = "without a text that the vocabulary can write"
    assert f"dropped 2 {reason} (0.00 h: train.json:1, train.json:2)" in capsys.readouterr().out


def test_a_text_of_which_nothing_can_be_written_is_not_told_as_a_line_without_a_text(folder, capsys):
    """Training by a configuration leaves the one out, and refuses the other: a line that calls both empty misleads."""
    make_set(folder, 2)
    lines = [json.loads(line) for line in (folder / "train.json").read_text().splitlines()]
    lines[0]["text"] = "?!"
    (folder / "train.json").write_text("\n".join(map(json.dumps, lines)))
    layer = layer_of(parser="base")
    told = capsys.readouterr().err
    assert "1 text refused: no character of the text is in the vocabulary x1; training leaves these utterances" in told
    assert "without a text" not in told
    layer.require_texts()
    assert len(layer) == 1


def test_texts_that_mean_nothing_are_for_inference_and_not_for_training(folder):
    make_set(folder, 3, text="todo")
    layer = layer_of(batch_size=1)
    assert [batch.values[2].shape for batch in batches_of(layer)] == [(1, 0)] * 3
    told = "no utterance is left: 3 without a text that the vocabulary can write .*; write texts; .*--set labels=auto"
    with pytest.raises(DataError, match=told):
        layer.loader(training=True, shard=Shard())
    with pytest.raises(
        DataError, match=r'^train\.json:1: letters that the labels lack: got "o" x2 "t" x1 "d" x1; add them'
    ):
        layer_of(strict_data=True)
    make_set(folder, 3, text="!?")
    assert [batch.values[2].shape for batch in batches_of(layer_of(batch_size=1, strict_data=True))] == [(1, 0)] * 3
    make_set(folder, 1, text="")
    with pytest.raises(DataError, match=r"^train\.json:1: text is missing or empty"):
        layer_of(strict_data=True)


def test_chinese_texts_are_read_as_they_are_and_what_the_labels_lack_is_said_once(folder, capsys):
    make_set(folder, 3, text="今天3点，气温20%")
    layer = AudioToTextDataLayer("train.json", labels=list("今天点气温"), batch_size=3, shuffle=False)
    told = capsys.readouterr().err
    for _ in range(2):
        (batch,) = batches_of(layer)
        assert batch.values[2].tolist() == [[0, 1, 2, 3, 4]] * 3
    shown = '"3" x3 "2" x3 "0" x3 "%" x3'
    assert f"train.json: 4 characters outside the vocabulary: {shown}; " in told
    assert 'numbers that are not read out: "今天3点,气温20%"; they are left out of the texts' in told
    assert "(read as Unicode NFC, numbers in words (zh), case as written)" in told
    assert "vocabulary" not in capsys.readouterr().err


def test_the_parser_follows_from_the_labels_and_can_be_named(folder):
    make_set(folder, 1, text="No 2 Äpfel")
    capitals = [*" ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    small = [label.lower() for label in capitals]

    def read(labels, **arguments):
        layer = AudioToTextDataLayer("train.json", labels=labels, batch_size=1, **arguments)
        (batch,) = batches_of(layer)
        return "".join(labels[i] for i in batch.values[2][0])

    assert read(small) == "no two apfel"
    assert read(capitals) == "NO TWO APFEL"
    assert read([*small, "ä"]) == "no äpfel"
    assert read([*small, "ä"], parser="en") == "no two äpfel"
    assert read(small, parser="base") == read(small, language="none") == "no pfel"
    assert read([*small, "ä", "ü"], language="de") == "no zwei äpfel"
    assert read(small, language="fr") == "no deux pfel"
    assert read(small, parser="none") == "o  pfel"
    assert read(small, normalize_transcripts=False) == "o  pfel"


def test_an_unknown_language_is_named_before_the_manifest_is_read(folder):
    with pytest.raises(UnknownNameError, match=r'language "klingon" is not known; known: am, ar'):
        AudioToTextDataLayer("none.json", labels=["a"], batch_size=1, language="klingon")


def test_a_russian_text_with_latin_labels_is_empty_and_its_letters_are_told(folder, capsys):
    make_set(folder, 1, text="\u043c\u0438\u0440 \u043c\u0438\u0440")
    (batch,) = batches_of(AudioToTextDataLayer("train.json", labels=[*" abcdefghijklmnopqrstuvwxyz"], batch_size=1))
    assert batch.values[2].shape == (1, 0)
    told = capsys.readouterr().err
    assert '3 characters outside the vocabulary: "\u043c" x2 "\u0438" x2 "\u0440" x2' in told


def test_an_unknown_parser_is_named_before_the_manifest_is_read(folder):
    with pytest.raises(UnknownNameError, match=r'parser "english" is not known; known: auto, base, en, none'):
        AudioToTextDataLayer("none.json", labels=["a"], batch_size=1, parser="english")


def test_labels_are_checked_before_the_manifest(folder):
    with pytest.raises(ConfigError, match=r"labels\[1\]"):
        AudioToTextDataLayer("none.json", labels=["a", "a"], batch_size=1)


def test_damaged_files_within_the_budget_are_skipped_counted_and_listed_at_the_end(folder, capsys):
    make_set(folder, 40)
    damage(folder, 3, 7, 8)
    layer = layer_of()
    assert layer.corrupt_budget(training=True) == 4
    loader = layer.loader(training=True, shard=Shard())
    assert sorted(ids_of(whole_epoch(loader))) == [row for row in range(40) if row not in (2, 6, 7)]
    told = capsys.readouterr().err
    assert "train.json: 3 utterances skipped so far (max_corrupt 4):" in told
    for line in (3, 7, 8):
        assert f"train.json:{line}: {line}.wav is not a WAV, FLAC, OGG, MP3" in told
    whole_epoch(loader, 1)
    assert "skipped so far" not in capsys.readouterr().err


def test_hostile_recordings_are_skipped_in_training_with_the_true_reason_and_an_error_in_evaluation(folder, capsys):
    make_set(folder, 40)
    stereo = encoded(speech_like(3360, 2), "FLAC")
    silence = encoded(np.zeros(5000, np.int16), "FLAC", rate=655350)
    claim = (int.from_bytes(silence[18:26], "big") >> 36 << 36 | 3540 * 655350).to_bytes(8, "big")
    (folder / "1.wav").write_bytes(stereo[:30] + stereo[32:])
    (folder / "2.wav").write_bytes(silence[:18] + claim + silence[26:])
    (folder / "3.wav").write_bytes((folder / "3.wav").read_bytes()[:-1000])
    lines = (folder / "train.json").read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), "duration": 3540.0})
    (folder / "train.json").write_text("\n".join(lines))
    assert sorted(ids_of(whole_epoch(layer_of().loader(training=True, shard=Shard())))) == [*range(3, 40)]
    told = capsys.readouterr().err
    assert "train.json: 3 utterances skipped so far (max_corrupt 4):" in told
    assert "train.json:1: 1.wav is damaged: no frame of samples follows the head of the FLAC file" in told
    assert "train.json:2: 2.wav claims 3540 s of 1 x 655350 samples a second: wanted at most 691200000 samples" in told
    assert "train.json:3: 3.wav is damaged: 7360 bytes of samples promised, 6360 are there" in told
    with pytest.raises(DataError, match=r"^train\.json: 3 utterances cannot be used and max_corrupt allows 0; mend"):
        batches_of(layer_of())


@pytest.mark.skipif("MP3" not in soundfile.available_formats(), reason="this libsndfile has no MP3")
def test_mp3_files_of_a_manifest_are_read_and_a_cut_one_is_skipped_and_named(folder, capsys):
    make_set(folder, 40)
    for number in (1, 2, 3):
        samples = speech_like(3200 + 160 * number, 2)
        content = encoded(samples, "MP3", "MPEG_LAYER_III")
        (folder / f"{number}.wav").write_bytes(content if number < 3 else content[:700])
    batches = whole_epoch(layer_of(batch_size=1).loader(training=True, shard=Shard()))
    assert 2 not in ids_of(batches)
    (first, *_) = (batch.values[0][0] for batch in batches if list(batch.ids) == [0])
    decoded, rate = soundfile.read(folder / "1.wav")
    assert (len(first), rate) == (3360, 16000)
    np.testing.assert_allclose(first.numpy(), decoded.mean(axis=1), atol=1e-6)
    assert "train.json:3: 3.wav is damaged" in capsys.readouterr().err


def test_what_was_unusable_is_known_with_its_position_over_all_loaders_of_a_data_layer(folder, capsys):
    make_set(folder, 40)
    damage(folder, 3, 7)
    layer = layer_of()
    assert layer.unusable == {}
    batches_of(layer, training=True)
    assert [reason.partition(": ")[0] for reason in layer.unusable.values()] == ["train.json:3", "train.json:7"]
    assert list(layer.unusable) == [2, 6]
    capsys.readouterr()
    batches_of(layer, training=True)
    assert capsys.readouterr().err == ""
    layer.report_unusable()
    told = capsys.readouterr().err
    assert "train.json: 2 of 40 utterances could not be used:\n  train.json:3: 3.wav is not" in told


def test_too_many_unusable_files_are_listed_once(folder, capsys):
    make_set(folder, 4)
    damage(folder, 1)
    with pytest.raises(DataError, match=r"^train\.json:1: .*max_corrupt allows 0: mend the files"):
        batches_of(layer_of(), training=True)
    assert capsys.readouterr().err == ""


def test_what_was_skipped_is_listed_when_a_run_stops_within_an_epoch(folder, capsys):
    make_set(folder, 40)
    damage(folder, 1)
    batches = layer_of(shuffle=False).loader(training=True, shard=Shard()).epoch(0)
    next(batches)
    batches.close()
    assert "train.json:1: 1.wav is not a WAV" in capsys.readouterr().err


def test_beyond_the_budget_the_run_ends_and_lists_them(folder):
    make_set(folder, 12)
    damage(folder, 3, 7, 8)
    with pytest.raises(DataError) as error:
        batches_of(layer_of(batch_size=12), training=True)
    lines = str(error.value).splitlines()
    assert lines[0] == (
        "train.json: 3 utterances cannot be used and max_corrupt allows 1; "
        "mend the files, delete their lines, or raise max_corrupt"
    )
    assert {line.split(": ")[0] for line in lines[1:]} == {"train.json:3", "train.json:7", "train.json:8"}


def test_one_damaged_file_of_a_small_set_is_one_clear_line(folder):
    make_set(folder, 5)
    damage(folder, 2)
    with pytest.raises(DataError) as error:
        batches_of(layer_of(), training=True)
    text = str(error.value)
    assert text.startswith("train.json:2: 2.wav is not a WAV, FLAC, OGG, MP3")
    assert "max_corrupt allows 0: mend the files" in text
    assert "\n" not in text


def test_a_damaged_file_is_an_error_in_evaluation_unless_it_is_allowed(folder):
    make_set(folder, 40)
    damage(folder, 2)
    with pytest.raises(DataError, match=r"^train\.json:2: "):
        batches_of(layer_of())
    assert ids_of(batches_of(layer_of(max_corrupt=1))) == [0, *range(2, 40)]


@pytest.mark.parametrize(("max_corrupt", "budget"), [(3, 3), (0, 0), (0.25, 10), (None, 4)])
def test_the_budget_is_a_number_or_a_share(max_corrupt, budget, folder):
    make_set(folder, 40)
    assert layer_of(max_corrupt=max_corrupt).corrupt_budget(training=True) == budget


def test_a_training_batch_of_which_nothing_is_left_takes_another_utterance(folder):
    make_set(folder, 30)
    damage(folder, 4)
    batches = batches_of(layer_of(batch_size=1), training=True)
    assert len(batches) == 30
    assert 3 not in ids_of(batches)


def test_a_file_that_disagrees_with_its_duration_is_named(folder):
    make_set(folder, 4, duration=0.7)
    with pytest.raises(DataError, match=r"train\.json:1: duration 0\.7 s disagrees with 1\.wav, which holds 0\.210 s"):
        batches_of(layer_of(strict_data=True), training=True)


def test_a_wrong_duration_that_was_not_looked_at_before_is_counted_while_it_is_read(folder, monkeypatch, capsys):
    make_set(folder, 4, duration=0.5)
    monkeypatch.setattr("nemo_asr.data.speech_data_layer.with_file_durations", lambda manifest: manifest)
    loader = layer_of().loader(training=True, shard=Shard())
    whole_epoch(loader)
    told = capsys.readouterr().err
    assert "train.json: 4 utterances whose file is not as long as the manifest says; at most the stated" in told
    assert "The largest difference: -0.3 s" in told
    whole_epoch(loader, 1)
    assert "not as long" not in capsys.readouterr().err


def test_a_wrong_duration_is_told_once(folder, capsys):
    make_set(folder, 4, duration=0.5)
    whole_epoch(layer_of().loader(training=True, shard=Shard()))
    told = capsys.readouterr().err
    assert ("4 of 4 durations differ" in told, "not as long" in told) == (True, False)


@pytest.mark.parametrize(("line", "samples"), [({"duration": 0.05}, 800), ({"duration": 60, "offset": 0.1}, 1760)])
def test_at_most_the_duration_is_read_from_the_offset_to_the_end(line, samples, folder):
    make_set(folder, 1, **line)
    (batch,) = batches_of(layer_of(min_duration=None))
    assert batch.values[1].tolist() == [samples]


def test_a_manifest_changed_between_batches_ends_the_run_without_a_workers_traceback(folder):
    make_set(folder)
    loader = layer_of(num_workers=1).loader(training=True, shard=Shard())
    (folder / "train.json").write_text("")
    with pytest.raises(
        DataError, match=r"^train\.json: the manifest changed while it was in use; start the run again$"
    ):
        list(loader.epoch(0))


@pytest.mark.slow
def test_resampling_is_said_with_its_count_and_only_once(folder, capsys):
    make_set(folder)
    loader = layer_of(sample_rate=8000).loader(training=True, shard=Shard())
    whole_epoch(loader)
    assert "train.json: 12 utterances resampled from 16000 Hz to 8000 Hz" in capsys.readouterr().out
    whole_epoch(loader, 1)
    assert "resampled" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_corrupt": -1}, "max_corrupt is -1, wanted float from 0 to 1000000000"),
        ({"batch_size": 0}, "batch_size is 0, wanted int from 1 to 1000000 or -1"),
        ({"num_workers": -1}, "num_workers is -1, wanted int from 0 to 1024"),
        ({"sample_rate": 0}, "sample_rate is 0, wanted int from 1 to 768000"),
        ({"max_batch_seconds": 9.0}, "max_batch_seconds needs bucketing"),
    ],
)
def test_contradictory_arguments_are_refused_when_the_layer_is_made(arguments, message, folder):
    make_set(folder)
    with pytest.raises(UsageError, match=message):
        layer_of(**arguments)


def test_drop_last_that_leaves_nothing_is_refused(folder):
    make_set(folder)
    with pytest.raises(UsageError, match=r"drop_last leaves no batch of 12 utterances: wanted at least 20"):
        layer_of(batch_size=10, drop_last=True).loader(training=True, shard=Shard(world_size=2))
    with pytest.raises(UsageError, match=r"drop_last leaves no batch .*: wanted at least 13 \(batch_size x"):
        layer_of(batch_size=-1, drop_last=True).loader(training=True, shard=Shard(world_size=13))
    with pytest.raises(UsageError, match=r"uneven=drop leaves .*at least 13 \(one for each rank\); use fewer"):
        layer_of().loader(training=True, shard=Shard(world_size=13, uneven="drop"))
    assert len(layer_of().loader(training=True, shard=Shard(12, 13, uneven="join"))) == 1


def test_utterances_that_are_left_out_are_gone_from_every_view_and_counted(folder):
    make_set(folder)
    layer = layer_of()
    seconds = layer.durations.tolist()
    layer.leave_out([0, 5], "of a test")
    assert len(layer) == 10
    assert layer.durations.tolist() == [seconds[row] for row in range(12) if row not in (0, 5)]
    assert layer.place_of(0) == "train.json:2"
    assert layer.place_of(4) == "train.json:7"
    assert sorted(ids_of(batches_of(layer, training=True))) == list(range(10))
    assert "dropped 2 of a test (0.00 h: train.json:1, train.json:6)" in layer.manifest.summary()
    with pytest.raises(DataError, match=r"train\.json: no utterance is left: .*2 of a test .*10 of another"):
        layer.leave_out(range(10), "of another")


def test_utterances_are_named_without_the_folder_that_their_manifest_lies_in(folder):
    (folder / "sets").mkdir()
    make_set(folder / "sets", 3)
    layer = layer_of("sets/train.json")
    assert layer.place_of(2) == "sets/train.json:3"
    layer.leave_out([0], "of a test")
    assert [layer.id_of(item) for item in range(2)] == ["train.json:2", "train.json:3"]


@pytest.mark.skipif(not DIGITS.exists(), reason="the spoken digits are not beside this checkout")
def test_real_recordings_come_whole_resampled_and_as_long_as_their_manifest_says():
    letters = [" ", *"abcdefghijklmnopqrstuvwxyz"]
    layer = AudioToTextDataLayer(str(DIGITS), labels=letters, batch_size=64)
    batches = batches_of(layer)
    assert ids_of(batches) == list(range(len(layer)))
    assert sum(batch.amount for batch in batches) == pytest.approx(layer.manifest.seconds, rel=1e-3)
    first = "".join(letters[i] for i in batches[0].values[2][0, : batches[0].values[3][0]])
    assert first == layer.manifest.utterance(0).text
    assert 0.1 < float(batches[0].values[0].abs().max()) <= 1.1


# Transcripts of a set: a line for each utterance, with where its audio is.


@pytest.fixture(scope="module")
def dev(tmp_path_factory):
    folder = make_corpus(tmp_path_factory.mktemp("tones"))
    return folder, nemo_asr.AudioToTextDataLayer(str(folder / "dev.json"), labels=list(" abc"), batch_size=2)


def test_a_line_has_place_audio_and_texts(dev, tmp_path):
    folder, data_layer = dev
    path = tmp_path / "new" / "dev.transcripts.jsonl"
    nemo_asr.write_transcripts(path, data_layer, [0, 2], ["cab", "bc"], ["cä", ""])
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == [
        {
            **{"place": f"{folder / 'dev.json'}:{row + 1}", "audio_filepath": str(folder / f"dev{row}.wav")},
            **{"offset": None, "duration": pytest.approx(0.17 * len(TEXTS[row]))},
            **{"reference": TEXTS[row], "hypothesis": heard},
        }
        for row, heard in ((0, "cä"), (2, ""))
    ]
    nemo_asr.write_transcripts(path, data_layer, [1], ["abba"], ["a"])
    assert len(path.read_text().splitlines()) == 1, "replaced"


def test_a_data_layer_without_files_gives_places_and_texts(tmp_path):
    class Words(DataLayerNM):
        output_ports = {}

        def __len__(self):
            return 1

        def place_of(self, item):
            return f"word {item}"

    nemo_asr.write_transcripts(tmp_path / "t.jsonl", Words(), [0], ["a"], ["b"])
    assert json.loads((tmp_path / "t.jsonl").read_text()) == {"place": "word 0", "reference": "a", "hypothesis": "b"}


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(dev, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file: there is a file where a folder is wanted"):
        nemo_asr.write_transcripts(tmp_path / "file" / "t.jsonl", dev[1], [0], ["a"], ["b"])


def test_references_are_the_texts_of_the_manifest_also_where_the_vocabulary_lacks_their_letters(tmp_path):
    folder = make_corpus(tmp_path)
    lines = [json.loads(line) for line in (folder / "dev.json").read_text().splitlines()]
    lines[0]["text"], lines[1]["text"] = "AB \u0436, c", ""
    (folder / "dev.json").write_text("\n".join(map(json.dumps, lines)))
    data_layer = nemo_asr.AudioToTextDataLayer(str(folder / "dev.json"), labels=list(" abc"), batch_size=2)
    said = nemo_asr.references_in_data(data_layer, [0, 1, 2], ["ab c", "", TEXTS[2]])
    assert said == ["ab \u0436 c", "", TEXTS[2]]
    assert nemo_asr.references_in_data(DataLayerNM(), [0], ["ab"]) == ["ab"]


def test_vowel_marks_are_taken_out_of_references_and_of_what_was_heard(tmp_path):
    folder = make_corpus(tmp_path)
    lines = [json.loads(line) for line in (folder / "dev.json").read_text().splitlines()]
    for line in lines:
        line["text"] = "ك\u0650ت\u064eابـ\u060c"
    (folder / "dev.json").write_text("\n".join(map(json.dumps, lines)))
    for labels, strip_marks, said, heard in [
        (" كتاب", None, "كتاب", "ك\u0650تاب"),
        (" كتاب", False, "ك\u0650ت\u064eابـ", "ك\u0650تاب"),
        (" كتاب\u0650\u064e", None, "ك\u0650ت\u064eاب", "ك\u0650تاب"),
        (" كتاب\u0650\u064e", True, "كتاب", "كتاب"),
    ]:
        settings = {"labels": list(dict.fromkeys(labels)), "batch_size": 2, "strip_marks": strip_marks}
        data_layer = nemo_asr.AudioToTextDataLayer(str(folder / "dev.json"), **settings)
        assert nemo_asr.references_in_data(data_layer, [0], [""]) == [said]
        assert nemo_asr.hypotheses_in_data(data_layer, ["ك\u0650تاب"]) == [heard]
    assert nemo_asr.hypotheses_in_data(DataLayerNM(), ["ab"]) == ["ab"]
