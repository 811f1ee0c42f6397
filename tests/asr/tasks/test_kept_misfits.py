"""Which texts do not fit their frames is looked up the second time, and looked at again where anything differs."""

import json
import os

import numpy as np
import pytest
import soundfile
from toys import tab_manifest as tab_manifest
from toys.manifests import write
from toys.ranks import results_of
from toys.subwords import small_subwords

import nemo_lite as nemo
from nemo_asr import AudioToMelSpectrogramPreprocessor, AudioToTextDataLayer, CTCLossNM, JasperEncoder
from nemo_asr.augmentation import AudioAugmentor, SpeedPerturbation
from nemo_asr.models.transducer.joint import RNNTJoint
from nemo_asr.models.transducer.loss import RNNTLoss
from nemo_asr.run.manifest import Manifest
from nemo_asr.tasks import kept_misfits
from nemo_asr.tasks.fitting import find_infeasible
from nemo_lite.core import Reference
from nemo_lite.core.shapes import AxisLength, ceil_div, symbol

LABELS = [" ", *"abcdefg"]
SPEED = {"speed": {"prob": 0.5, "sr": 16000, "min_speed_rate": 0.9, "max_speed_rate": 1.25}}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_misfits, "LEAST_LINES", 3)
    write(tmp_path / "a.json", *lines("ab", "abcdefg" * 8, "a" * 20, "abc", "c" * 13))
    write(tmp_path / "b.json", *lines("cd", "ba"))
    return tmp_path


def lines(*texts, **more):
    return [{"audio_filepath": f"{n}.wav", "duration": 1.0 + 0.1 * n, "text": t, **more} for n, t in enumerate(texts)]


def layer_of(paths="a.json", labels=LABELS, **settings):
    return AudioToTextDataLayer(paths, labels, 2, **{"load_audio": False, "max_corrupt": 99, **settings})


def frames_after(data_layer, stride=4):
    block = {"filters": 8, "kernel": 3, "repeat": 1, "dilation": 1, "dropout": 0.0, "residual": False}
    audio, audio_len, _, _ = data_layer()
    features, length = AudioToMelSpectrogramPreprocessor(features=16)(input_signal=audio, length=audio_len)
    encoder = JasperEncoder(jasper=[{**block, "stride": stride}], activation="relu", feat_in=16)
    return encoder(audio_signal=features, length=length)[0]


def found_in(data_layer, stride=4, **settings):
    return find_infeasible(data_layer, frames_after(data_layer, stride), **settings)


FRAMES = [AxisLength(ceil_div(symbol("samples") + more, 640), "samples") for more in (0, 1)]


def name_of(data_layer, frames=FRAMES[0], loss=None, training=True):
    return kept_misfits.name_of(data_layer, frames, loss, training)


@pytest.fixture
def texts_read(monkeypatch):
    """How often a set was gone through."""
    read, texts_at = [], Manifest.texts_at
    monkeypatch.setattr(Manifest, "texts_at", lambda *args: read.append(1) or texts_at(*args))
    return read


def test_a_set_is_gone_through_once_and_gives_the_same_again_also_from_another_folder(folder, texts_read, monkeypatch):
    first = [found_in(layer_of(), training=training) for training in (True, False)]
    assert [[misfit.row for misfit in found] for found in first] == [[1, 2], [1, 2]]
    assert len(texts_read) == 1, "nothing is perturbed, so training makes no difference"
    monkeypatch.chdir(folder.parent)
    (again,) = {tuple(found_in(layer_of(f"{folder.name}/a.json"))) for _ in range(2)}
    assert [misfit._replace(place="") for misfit in again] == [misfit._replace(place="") for misfit in first[0]]
    assert again[0].place == f"{folder.name}/a.json:2"
    assert len(texts_read) == 1
    assert found_in(layer_of(f"{folder.name}/a.json"), stride=8) != first[0]
    assert len(texts_read) == 2


@pytest.mark.slow
def test_whatever_counts_gives_another_name(folder):
    write(folder / "other.json", *lines("ab", "abcdefg" * 8, "a" * 20, "abc", "c" * 14))
    changes = [
        {"paths": "other.json"},
        {"paths": "a.json,b.json"},
        {"paths": "b.json,a.json"},
        {"min_duration": 1.05},
        {"labels": [*LABELS, "h"]},
        {"labels": small_subwords()},
        {"labels": small_subwords("bpe")},
        {"normalize_transcripts": False},
        {"parser": "base"},
        {"language": "de"},
        {"strip_marks": True, "parser": "base"},
        {"bos_id": 1},
        {"eos_id": 1},
        {"strict_data": True},
        {"sample_rate": 8000},
        {"augmentor": SPEED},
        {"augmentor": {"speed": {**SPEED["speed"], "max_speed_rate": 1.26}}},
    ]
    names = [name_of(layer_of(**change)) for change in ({}, *changes)]
    assert len(set(names)) == len(names)
    assert all(names)
    assert name_of(layer_of(), FRAMES[0], CTCLossNM(num_classes=8)) == names[0] == name_of(layer_of(num_workers=2))
    assert name_of(layer_of(), FRAMES[1]) != names[0]
    of_durations = [name_of(layer_of(), loss=transducer_loss(each)) for each in ((0, 1), (1, 2))]
    assert len({*of_durations, names[0]}) == 3
    assert name_of(layer_of(augmentor=SPEED), training=False) == names[0]


def test_other_durations_of_the_files_and_other_code_give_another_name(folder, monkeypatch):
    for number in range(5):
        soundfile.write(f"{number}.wav", np.zeros(8000 if number == 3 else 16000 + 1600 * number), 16000)
    as_stated = name_of(layer_of())
    assert name_of(layer_of(load_audio=True)) != as_stated, "a file is shorter than its line says"
    monkeypatch.setattr(kept_misfits, "digest_of_package", lambda folder: f"another {folder}")
    assert name_of(layer_of()) != as_stated


def transducer_loss(durations):
    sizes = {"joint_hidden": 2, "pred_hidden": 2, "encoder_hidden": 2}
    return RNNTLoss(Reference(RNNTJoint(sizes, 8, durations=durations)))


class OwnLoss(CTCLossNM):
    def frames_needed(self, labels):
        return 2 * len(labels)


class OwnLayer(AudioToTextDataLayer):
    pass


class OwnSpeed(SpeedPerturbation):
    pass


def test_what_a_digest_does_not_tell_is_not_kept(folder, monkeypatch):
    (folder / "t.txt").write_text("abc")
    elsewhere = lines("", "", "", text_filepath="t.txt")
    write(folder / "files.json", *elsewhere)
    write(folder / "spelled.json", *(json.dumps(line).replace("_f", "\\u005ff").encode() for line in elsewhere))
    (folder / "rows.tsv").write_text("1.0\t0.wav\tabc\tx\n" * 4)
    for number in range(5):
        soundfile.write(f"{number}.wav", np.zeros(16000 + 1600 * number), 16000)
    assert name_of(layer_of())
    own_speed = AudioAugmentor([(1.0, OwnSpeed(16000, min_speed_rate=0.9, max_speed_rate=1.1))])
    for what in (
        {"paths": "files.json"},
        {"paths": "spelled.json"},
        {"paths": "a.json,rows.tsv"},
        {"trim_silence": True, "load_audio": True},
        {"augmentor": AudioAugmentor([(1.0, SpeedPerturbation(16000))])},
        {"augmentor": own_speed},
    ):
        assert not name_of(layer_of(**what)), what
    assert not name_of(layer_of(), loss=OwnLoss(num_classes=8))
    assert not name_of(OwnLayer("a.json", LABELS, 2, load_audio=False))
    monkeypatch.setattr(kept_misfits, "LEAST_LINES", 6)
    assert not name_of(layer_of()), "five lines"


@pytest.mark.slow
def test_a_damaged_file_is_not_used_and_made_again(folder, texts_read):
    wanted = found_in(layer_of())
    (kept,) = (folder / "cache/nemo_lite/misfits").iterdir()
    content = kept.read_bytes()
    damaged = [b"", content[:-1], content[:70], content.replace(b"[[1,", b"[[3,"), content[1:], os.urandom(300)]
    for number, each in enumerate(damaged, 2):
        kept.write_bytes(each)
        assert found_in(layer_of()) == wanted
        assert len(texts_read) == number
        assert kept.read_bytes() == content
    kept_misfits.write(kept.name, [(7, 1, 2, "", True)])
    assert kept_misfits.read(kept.name, 7) is None, "a row that the set does not have"
    kept.unlink()
    kept.mkdir()
    assert found_in(layer_of()) == wanted, "no file can be written there"


def test_of_the_files_the_newest_stay(folder, monkeypatch):
    monkeypatch.setattr(kept_misfits, "_MOST_FILES", 2)
    (folder / "cache/nemo_lite/misfits").mkdir(parents=True)
    (folder / "cache/nemo_lite/misfits/mine").touch()
    for number in range(4):
        name = f"{number}" * 64
        kept_misfits.write(name, [])
        os.utime(folder / "cache/nemo_lite/misfits" / name, (number, number))
    assert sorted(path.name[:4] for path in (folder / "cache/nemo_lite/misfits").iterdir()) == ["2222", "3333", "mine"]


def on_a_rank(folder):
    os.chdir(folder)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    kept_misfits.LEAST_LINES = 3
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
    read, texts_at = [], Manifest.texts_at
    Manifest.texts_at = lambda *args: read.append(len(args[1])) or texts_at(*args)
    found = [list(map(tuple, found_in(layer_of(), factory=factory))) for _ in range(2)]
    return found, read


def test_ranks_share_the_first_look_and_need_no_second(folder):
    wanted = list(map(tuple, found_in(layer_of())))
    for kept in (folder / "cache/nemo_lite/misfits").iterdir():
        kept.unlink()
    assert results_of(2, on_a_rank, folder) == [([wanted] * 2, [2]), ([wanted] * 2, [3])]
