"""SpeechDataLayer, what is checked before training, and durations that are not those of the files."""

import hashlib
import itertools
import json
import os
import random
import re
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from toys import tab_manifest as tab_manifest
from toys.manifests import LABELS, damage, layer_of, make_set, write
from toys.ranks import on_ranks, results_of
from toys.tar_shards import write_shard
from toys.zip_data_layer import ZipDataLayer

from nemo_asr import AudioToTextDataLayer, TarredAudioToTextDataLayer
from nemo_asr.data.dataset import MIXED_DOWN, OTHER_DURATION, RESAMPLED, UNKNOWN
from nemo_asr.data.file_durations import with_file_durations
from nemo_asr.data.scored_texts import texts_to_score
from nemo_asr.data.speech_data_layer import _tell_counts, lengths_in_samples, unwritable
from nemo_asr.models.losses import ctc_frames_needed
from nemo_asr.run.audio.files import open_audio
from nemo_asr.run.manifest import Manifest
from nemo_asr.run.text.parser import CharParser, make_parser
from nemo_lite import DeviceType, NeuralModuleFactory
from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.base.errors import DataError
from nemo_lite.base.files import Content, plain_values

# What all speech data layers share, for manifests and for a zip file: unusable utterances, plans, fingerprints.


def evaluate(folder, num_times, max_corrupt):
    """On each rank: what was unusable in the end."""
    os.chdir(folder)
    comm = NeuralModuleFactory(placement=DeviceType.CPU)._comm
    with comm.guarded():
        layer = layer_of(batch_size=1, sample_rate=8000, max_corrupt=max_corrupt)
        for _ in range(num_times):
            loader = layer.loader(training=False, shard=Shard(comm.rank, comm.world_size))
            for _ in loader.epoch(0):
                pass
            loader.settle(comm)
        layer.report_unusable()
    comm.close()
    return layer.unusable


def test_ranks_have_one_budget_together_and_fail_alike_where_one_would(tmp_path):
    make_set(tmp_path, 6)
    damage(tmp_path, 1, 2, 3, 4)
    told = []
    for world_size in (1, 2):
        ends = on_ranks(world_size, evaluate, tmp_path, 1, 3)
        assert [end.code for end in ends] == [2] * world_size
        told += [end.err.partition("DataError: ")[2] for end in ends if "DataError: " in end.err]
    assert told[0].startswith("train.json: 4 utterances cannot be used and max_corrupt allows 3; mend the files")
    assert told[0].count("is not a WAV") == 4
    assert told[1] == told[2]
    assert re.sub(r"^rank [01] \(.*?\): ", "", told[1], flags=re.MULTILINE) == told[0]
    assert told[1].count("\nrank 0 (") == told[1].count("\nrank 1 (") == 2


def test_the_first_rank_tells_what_all_have_skipped_and_converted_once_and_all_know_it(tmp_path):
    make_set(tmp_path, 6)
    damage(tmp_path, 1, 2)
    first, second = on_ranks(2, evaluate, tmp_path, 3, 2)
    assert first.code == second.code == 0, first.err + second.err
    assert list(first.result) == [0, 1]
    assert first.result == second.result
    assert first.err.count("2 utterances skipped so far (max_corrupt 2):\n  rank 0 (") == 1
    assert first.err.count("): train.json:1: 1.wav is not") == 2  # skipped so far, and in the end
    assert first.err.count("skipped so far") == 1
    assert first.err.count("train.json: 2 of 6 utterances could not be used:\n  rank 0 (") == 1
    assert first.out.count("4 utterances resampled from 16000 Hz to 8000 Hz") == first.out.count("resampled") == 1
    assert second.err == ""


def test_all_conversions_of_a_set_are_one_line(capsys):
    rates = Counter({8000: 3, 44100: 1})
    counts = {RESAMPLED: rates, MIXED_DOWN: Counter({2: 1}), OTHER_DURATION: Counter(), UNKNOWN: Counter("é")}
    _tell_counts("dev.json", 16000, True, counts)
    told = capsys.readouterr()
    line = "4 utterances resampled from 8000, 44100 Hz to 16000 Hz, 1 utterance of several channels averaged to one"
    assert told.out.endswith(f"dev.json: {line}\n")
    assert told.out.count("dev.json") == 1
    assert "1 character outside the vocabulary" in told.err


@pytest.fixture
def machines(tmp_path: Path) -> list[Path]:
    """Two folders with the same corpus."""
    folders = [tmp_path / "data", tmp_path / "mnt" / "corpus"]
    for folder in folders:
        folder.mkdir(parents=True)
        soundfile.write(folder / "1.wav", np.zeros(3200), 16000)
        line = {"audio_filepath": "1.wav", "duration": 0.2, "text": "ab"}
        for name in ("train.json", "dev.json", "noise.json"):
            (folder / name).write_text(json.dumps({**line, "set": name}) + "\n")
    return folders


def prints_in(folder: Path, manifest: str = "train.json", **changes: Any) -> dict[str, Any]:
    arguments = {"labels": LABELS, "batch_size": 4, "name": "data", **changes}
    prints = AudioToTextDataLayer(str(folder / manifest), **arguments).fingerprint()
    return dict(plain for name, value in prints.items() for plain in plain_values(name, value))


def differing(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    assert list(one) == list(other)
    return {name for name in one if one[name] != other[name]}


def test_manifests_count_by_content_and_the_vocabulary_by_itself(machines: list[Path]) -> None:
    here, there = machines
    one = prints_in(here)
    assert one["data"] == "AudioToTextDataLayer"
    assert one["data.labels"] == json.dumps(LABELS, separators=(",", ":"))
    assert not {"data.manifest_filepath", "data.name", "data.num_workers", "data.pin_memory"} & {*one}
    assert one["train.json"] == hashlib.sha256((here / "train.json").read_bytes()).hexdigest()
    assert prints_in(there) == one
    assert differing(one, prints_in(here, labels=[*LABELS, "d"])) == {"data.labels"}
    assert differing(one, prints_in(here, max_duration=9.0)) == {"data.max_duration"}
    with (there / "train.json").open("a") as file:
        file.write("\n")
    assert differing(one, prints_in(there)) == {"train.json"}


def test_each_of_several_manifests_is_an_entry(machines: list[Path]) -> None:
    here, there = machines
    both = f"{there / 'train.json'},{there / 'dev.json'}"
    assert list(prints_in(here, both))[:2] == ["train.json", "dev.json"]
    same_name = [str(folder / "train.json") for folder in machines]
    prints = dict(AudioToTextDataLayer(same_name, LABELS, 4).fingerprint())
    assert prints["train.json"] == prints["train.json (2)"]


def test_a_manifest_of_noises_counts_by_content_too(machines: list[Path]) -> None:
    def prints(folder: Path) -> dict[str, Any]:
        return prints_in(folder, augmentor={"noise": {"prob": 0.5, "manifest_path": str(folder / "noise.json")}})

    here, there = machines
    assert list(prints(here))[:2] == ["train.json", "noise.json"]
    assert prints(here) == prints(there)
    with (there / "noise.json").open("a") as file:
        file.write("\n")
    assert differing(prints(here), prints(there)) == {"noise.json"}


def test_manifests_of_rooms_and_of_noises_count_by_content_too(machines: list[Path]) -> None:
    def prints(folder: Path) -> dict[str, Any]:
        noise, rooms = str(folder / "noise.json"), str(folder / "rooms.json")
        return prints_in(
            folder, augmentor={"rir_noise": {"prob": 0.5, "rir_manifest_path": rooms, "noise_manifest_path": noise}}
        )

    here, there = machines
    for folder in machines:
        (folder / "rooms.json").write_bytes((folder / "noise.json").read_bytes())
    assert list(prints(here))[:3] == ["train.json", "rooms.json", "noise.json"]
    assert prints(here) == prints(there)
    with (there / "rooms.json").open("a") as file:
        file.write("\n")
    assert differing(prints(here), prints(there)) == {"rooms.json"}


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """The utterances of ``make_set`` in ``sets/clips.zip``, number n as member ``n``."""
    monkeypatch.chdir(tmp_path)
    make_set(tmp_path, 12)
    (tmp_path / "sets").mkdir()
    with zipfile.ZipFile(tmp_path / "sets/clips.zip", "w") as members:
        for number in range(1, 13):
            members.write(tmp_path / f"{number}.wav", f"{number:02}.wav")
            members.writestr(f"{number:02}.txt", "a" if number % 2 else "ab")
    return "sets/clips.zip"


def damage_member(archive, number):
    """Overwrite samples of a member where they lie in the archive."""
    with zipfile.ZipFile(archive) as members:
        start = members.getinfo(f"{number:02}.wav").header_offset
    with open(archive, "r+b") as file:
        file.seek(start + 500)
        file.write(b"damaged")


def batches_of(layer, training=False, epoch=0, **shard):
    return list(layer.loader(training=training, shard=Shard(**shard)).epoch(epoch))


def test_an_archive_gives_the_batches_of_a_manifest(archive):
    zipped, plain = ZipDataLayer(archive, LABELS, 4), layer_of()
    for training in (False, True):
        for ours, theirs in zip(batches_of(zipped, training), batches_of(plain, training), strict=True):
            assert list(ours.ids) == list(theirs.ids)
            assert all(map(torch.equal, ours.values, theirs.values))
            assert ours.amount == theirs.amount


@pytest.mark.slow
def test_workers_read_the_same_from_an_archive(archive):
    alone, with_workers = (ZipDataLayer(archive, LABELS, 4, num_workers=workers) for workers in (0, 2))
    for ours, theirs in zip(batches_of(alone, True), batches_of(with_workers, True), strict=True):
        assert all(map(torch.equal, ours.values, theirs.values))


def test_a_damaged_member_is_named_by_its_place_and_counts_against_the_budget(archive, capsys):
    damage_member(archive, 3)
    told = (
        r'^sets/clips\.zip: 03: the archive cannot be read: got "Bad CRC-32 for file .*03\.wav.*"; 1 utterance cannot'
    )
    with pytest.raises(DataError, match=told + r" be used and max_corrupt allows 0: mend the members, or raise"):
        batches_of(ZipDataLayer(archive, LABELS, 4))
    layer = ZipDataLayer(archive, LABELS, 4, max_corrupt=1)
    assert [row for batch in batches_of(layer) for row in batch.ids] == [0, 1, *range(3, 12)]
    assert list(layer.unusable) == [2]
    layer.report_unusable()
    assert "sets/clips.zip: 1 of 12 utterances could not be used:\n  sets/clips.zip: 03: the" in capsys.readouterr().err


def test_an_archive_is_put_into_buckets_and_shared_by_ranks(archive):
    layer = ZipDataLayer(archive, LABELS, 2, bucketing=True, shuffle=False)
    ranks = [batches_of(layer, training=True, rank=rank, world_size=2) for rank in range(2)]
    assert sorted(row for batches in ranks for batch in batches for row in batch.ids) == list(range(12))
    for batches in zip(*ranks, strict=True):  # neighbours by duration at the same step
        rows = sorted(row for batch in batches for row in batch.ids)
        assert rows == list(range(rows[0], rows[0] + 4))
    evaluated = [batches_of(layer, rank=rank, world_size=2) for rank in range(2)]
    in_order = sorted((batch for batches in evaluated for batch in batches), key=lambda batch: batch.number)
    assert [row for batch in in_order for row in batch.ids] == list(range(12))


def test_an_archive_is_checked_before_training(archive):
    layer = ZipDataLayer(archive, LABELS, 4)
    found = layer.infeasible(lambda num_samples: 1, len)  # one frame: "a" fits, "ab" does not
    assert [infeasible.place for infeasible in found] == [f"sets/clips.zip: {number:02}" for number in range(2, 13, 2)]
    layer.leave_out([infeasible.row for infeasible in found], "of a test")
    assert [layer.id_of(item) for item in range(len(layer))] == [
        f"clips.zip: {number:02}" for number in range(1, 12, 2)
    ]
    prints = layer.fingerprint()
    assert [name for name, value in prints.items() if isinstance(value, Content)] == ["clips.zip"]
    assert prints[f"{layer.label}.batch_size"] == 4


# What is found before audio is decoded: missing files, and texts that do not fit their frames.


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
    found = layer_of().infeasible(lambda num_samples: asked.append(num_samples) or 4, ctc_frames_needed)
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
        assert bool(torch.isinf(loss)) == bool(layer_of("one.json").infeasible(lambda _: 4, ctc_frames_needed)), text


def test_infeasible_utterances_tell_their_positions(folder):
    make_set(folder)
    layer = layer_of()
    found = layer.infeasible(lambda num_samples: 1, ctc_frames_needed)  # one frame: "a" fits, "ab" does not
    assert [infeasible.row for infeasible in found] == [1, 3, 5, 7, 9, 11]
    assert [infeasible.place for infeasible in found] == [layer.place_of(infeasible.row) for infeasible in found]


SPOKEN = [
    "a b c",
    "AB CA",
    "Mr. Bc.",
    "cab, a; bacab!",
    "a" * 9,
    "7 abc",
    "½ b",
    "",
    "xyz",
    "ä bc",
    "«abc»",
    "ab\u0301c",
]
FAST = {"speed": {"prob": 0.5, "sr": 16000, "min_speed_rate": 0.9, "max_speed_rate": 1.25}}


def by_definition(layer, frames_of, augmented):
    """Each utterance is looked at for itself, and each text is read."""
    for row, count in enumerate(layer.lengths_in_samples().tolist()):
        utterance, reading = layer.utterance_of(row), layer._reading
        ids = layer.new_parser()(utterance.text)
        if ids is None:
            continue
        ids = [*([] if reading.bos_id is None else [reading.bos_id]), *ids]
        needed = len(ids) + sum(left == right for left, right in itertools.pairwise(ids))
        frames, fewest = frames_of(count), frames_of(int(count / 1.25) if augmented else count)
        if needed > frames:
            yield row, utterance.place, frames, needed, utterance.text, "", True
        elif needed > fewest:
            yield row, utterance.place, fewest, needed, utterance.text, " after perturbations", False


def random_set(folder, draw, num_lines):
    """Manifests a.json, b.tsv, a third one whose texts are in files, and tar shards of a.json."""
    for number in range(3):
        (folder / f"{number}.txt").write_text(SPOKEN[number])
    texts = [" ".join(draw.choices(SPOKEN, k=draw.randint(1, 3))) for _ in range(num_lines)]
    seconds = [round(draw.uniform(0.1, 3.0), 3) for _ in texts]
    lines = [
        {"audio_filepath": f"{number}.wav", "duration": duration, "text": text}
        for number, (duration, text) in enumerate(zip(seconds, texts, strict=True))
    ]
    write(folder / "a.json", *lines)
    in_files = [{**line, "text": "", "text_filepath": f"{draw.randrange(3)}.txt"} for line in lines[:5]]
    write(folder / "c.json", *in_files)
    rows = [f"{line['duration']}\t{line['audio_filepath']}\t{line['text']}\tx\n" for line in lines]
    (folder / "b.tsv").write_text("".join(rows))
    order = draw.sample(range(num_lines), num_lines)
    write_shard(folder / "0.tar", *((f"{number}.wav", b"x") for number in order))


@pytest.mark.slow
def test_texts_are_found_not_to_fit_as_if_each_was_read_for_itself(folder):
    draw = random.Random(5)
    for round_number in range(6):
        random_set(folder, draw, 80)
        step, labels = draw.choice((800, 1600)), draw.choice((LABELS, [*" ABC"], [*" abcdefghijklmnopqrstuvwxyz'"]))
        settings: dict[str, Any] = {
            "labels": labels,
            "batch_size": 4,
            "max_corrupt": 99,
            "bos_id": draw.choice((None, 2)),
        }
        settings |= {"augmentor": draw.choice((None, FAST)), "parser": draw.choice(("auto", "base", "none"))}
        made = [
            AudioToTextDataLayer(paths, **settings, load_audio=False)
            for paths in ("a.json", "b.tsv", "a.json,b.tsv,c.json")
        ]
        made.append(TarredAudioToTextDataLayer("0.tar", "a.json", **settings))
        for layer in made:
            for training in (False, True):
                augmented = training and settings["augmentor"] is not None
                wanted = list(by_definition(layer, lambda count, step=step: count // step, augmented))
                found = layer.infeasible(lambda count: count // step, ctc_frames_needed, training=training)  # noqa: B023
                assert list(map(tuple, found)) == wanted, (round_number, settings, layer)
                assert len(wanted) > 5


def of_one_rank(folder):
    """What a rank finds, and which texts it read itself; where silence is left out too."""
    os.chdir(folder)
    factory, read = NeuralModuleFactory(placement=DeviceType.CPU), []
    encode = CharParser.encode
    CharParser.encode = lambda parser, text: read.append(text) or encode(parser, text)
    made = {}
    for trims in (False, True):
        layer = layer_of(trim_silence=trims)
        read.clear()
        found = layer.infeasible(lambda count: 1, ctc_frames_needed, share_work=factory.share_work)
        made[trims] = [tuple(each) for each in found], len(read)
    return made


def test_ranks_share_the_texts_and_find_what_one_finds(folder):
    make_set(folder)
    alone = {
        trims: [tuple(each) for each in layer_of(trim_silence=trims).infeasible(lambda count: 1, ctc_frames_needed)]
        for trims in (False, True)
    }
    assert alone[False]
    for made in results_of(3, of_one_rank, folder):
        for trims, (found, num_read) in made.items():
            assert (found, num_read) == (alone[trims], 4), "a third of the texts"


# Durations that are not the files': what is measured when, what is told, and what the filters make of it.


@pytest.fixture
def headers_read(monkeypatch):
    """The files whose headers are read."""
    paths = []
    monkeypatch.setattr(
        "nemo_asr.data.file_durations.open_audio",
        lambda path, name, place: paths.append(path) or open_audio(path, name, place),
    )
    return paths


def test_a_duration_beyond_the_end_becomes_the_files(folder, capsys):
    make_set(folder, 3)
    make_set(folder, 3, "wrong.json", duration=2.00275)
    true = Manifest.open("train.json")
    assert with_file_durations(true) is true
    manifest = with_file_durations(Manifest.open("wrong.json"))
    assert lengths_in_samples(manifest, 16000).tolist() == [3360, 3520, 3680]
    told = capsys.readouterr().err
    assert "wrong.json: 3 of 3 durations differ from their files by more than 0.1 s and 1 %: what a file" in told
    assert "wrong.json:1 says 2.003 s, the file has 0.210 s" in told


def test_a_difference_within_the_tolerance_stays_as_written(folder):
    make_set(folder, 3, duration=0.3)
    manifest = Manifest.open("train.json")
    assert with_file_durations(manifest) is manifest


def test_a_duration_that_is_shorter_than_the_file_stays_and_is_told(folder, capsys):
    make_set(folder, 3, duration=0.05)
    assert with_file_durations(Manifest.open("train.json")).durations.tolist() == pytest.approx([0.05] * 3)
    told = capsys.readouterr().err
    assert "what a file has of its duration is read (of 3 longer files the rest is not read). The largest" in told


def test_a_part_that_reaches_beyond_the_end_is_as_long_as_the_file_allows(folder):
    make_set(folder, 2, duration=18000, offset=0.1)
    assert with_file_durations(Manifest.open("train.json")).durations.tolist() == pytest.approx([0.11, 0.12])


def test_parts_inside_files_and_files_that_cannot_be_read_keep_their_durations(folder):
    make_set(folder, 3, duration=2.0)
    make_set(folder, 3, "parts.json", duration=0.05, offset=0.1)
    (folder / "2.wav").unlink()
    assert with_file_durations(Manifest.open("train.json")).durations.tolist() == pytest.approx([0.21, 2.0, 0.23])
    parts = Manifest.open("parts.json")
    assert with_file_durations(parts) is parts


def test_parts_and_channels_that_no_file_has_are_an_error_before_training(folder):
    make_set(folder, 12)
    lines = [json.loads(line) for line in (folder / "train.json").read_text().splitlines()]
    for number in (3, 7, 8):
        lines[number]["offset"] = 50.0
    lines[5]["channel"] = 3
    lines[6]["channel"] = 0
    (folder / "train.json").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(DataError) as error:
        layer_of()
    beyond, channel, *others = str(error.value).splitlines()
    assert beyond.startswith("train.json:4: offset 50 s leaves nothing of 4.wav: got 0.240 s in the file; mend the")
    assert channel.startswith("train.json:6: 6.wav has no channel 3: wanted channel 0")
    assert [line.partition(": ")[0] for line in others] == ["train.json:8", "train.json:9"]
    with pytest.raises(DataError, match=r"train\.json:4: offset 50 s leaves nothing"):
        with_file_durations(Manifest.open("train.json"), limit=4)  # of a larger set some are read first


def test_headers_of_all_files_are_read_only_where_one_of_a_few_differs(folder, headers_read, capsys):
    make_set(folder, 12)
    with_file_durations(Manifest.open("train.json"), limit=3)
    assert len(headers_read) == 3
    make_set(folder, 12, duration=2.0)
    headers_read.clear()
    with_file_durations(Manifest.open("train.json"), limit=3)
    assert len(headers_read) == 15
    captured = capsys.readouterr()
    assert (
        "3 of 3 durations, evenly spread, differ from their files: reading the headers of all 12 files" in captured.out
    )
    assert "train.json: 12 of 12 durations differ" in captured.err


def test_no_header_is_read_where_data_are_strict_or_no_audio_is_wanted(folder, headers_read):
    make_set(folder, 4, duration=2.0)
    layer_of(strict_data=True)
    layer_of(load_audio=False)
    assert headers_read == []
    layer_of()
    assert len(headers_read) == 4


def test_filters_and_buckets_see_the_files_durations(folder):
    make_set(folder, 12, duration=60.0)
    layer = layer_of(min_duration=0.25, max_duration=0.3)
    assert [layer.place_of(row) for row in (0, len(layer) - 1)] == ["train.json:5", "train.json:10"]
    assert layer.durations.max() < 0.31


@pytest.mark.parametrize(
    ("normalizer", "reference"), [(None, "a b"), ("basic", "a b"), ("english", "a b"), ("none", "<unk> a [x] b")]
)
def test_marks_are_no_words_of_a_reference_but_where_texts_stay_as_written(normalizer, reference, folder):
    make_set(folder, 1, text="<unk> a [x] b")
    layer = AudioToTextDataLayer("train.json", [*LABELS, "'"], 1, load_audio=False)
    assert texts_to_score(layer, [0], ["a b"], ["a b"], normalizer).references == [reference]
