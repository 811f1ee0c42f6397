"""Hostile files, made here, through the readers: each is refused in one line, soon, in little memory, and alone.

A table: kinds of files with their readers, and tricks. Every trick that makes sense for a kind is played on it.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import socket
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from toys.bounded import outcomes
from toys.tar_members import member

from nemo_asr.augmentation import read_recordings
from nemo_asr.compat.kaldi import KaldiUtterances
from nemo_asr.compat.migrate import uses_in
from nemo_asr.compat.parts import item_iter
from nemo_asr.corpora.archives import unpack
from nemo_asr.corpora.listed import lines_of
from nemo_asr.data.tar_shards import members_of
from nemo_asr.run.manifest import Manifest
from nemo_asr.run.onnx.onnx_model import OnnxModel
from nemo_asr.run.options import read_weights
from nemo_asr.run.search.ngram import load_language_model
from nemo_asr.run.search.words import read_words
from nemo_asr.run.text.subwords import load_subwords
from nemo_asr.run.transcribe.inputs import recordings_of
from nemo_asr.scoring.report.run_folder import read_run, reliability_charts
from nemo_asr.scoring.report.transcripts import read_transcripts
from nemo_asr.trained.folder import read_card
from nemo_lite.backends.pytorch.checkpoint.record import read_record
from nemo_lite.backends.pytorch.checkpoint.storage import load_training_state, read_tensors
from nemo_lite.base.config import load_config
from nemo_lite.base.errors import MAX_LISTED
from nemo_lite.base.nemo_archive import NemoArchive
from nemo_lite.core.trackers import read_metrics

OF_A_FILE = {"audio_filepath": "a.wav", "duration": 1.0, "text_filepath": "a.txt"}
RECORD = '{"kind": "train", "step": 1, "loss": 1.0}\n'
HOLES = ("2 GiB of holes", "128 MiB of holes")  # for tar the blocks of zeros that end an archive, here an empty one
LINE = {"audio_filepath": "a.wav", "duration": 1.0, "text": "a"}


def transcript_file(path: Path) -> object:
    return Manifest.open(str(path.with_name("manifest.json"))).utterance(0)


def unpacked(path: Path) -> None:
    unpack(path, path.parent / "out", (".wav",), max_bytes=1000)


class Kind(NamedTuple):
    """A file's name, its reader, a good line of JSON, tricks that are harmless here, a file that it needs beside."""

    name: str
    read: Callable[[Path], object]
    line: dict[str, object] | None = None
    harmless: tuple[str, ...] = ()
    beside: tuple[str, str] = ("", "")


KINDS = {
    "configuration": Kind("a.yaml", load_config),
    "manifest": Kind("a.json", lambda path: Manifest.open(str(path)), LINE),
    "text_filepath": Kind("a.txt", transcript_file, beside=("manifest.json", json.dumps(OF_A_FILE))),
    "noises": Kind("a.json", lambda path: read_recordings(str(path)), LINE),
    "to transcribe": Kind("a.json", lambda path: recordings_of([str(path)]), LINE),
    "lists of NeMo": Kind("a.json", lambda path: list(item_iter(str(path))), LINE),
    "lexicon": Kind("a.txt", read_words),
    "list of a corpus": Kind("a.txt", lambda path: list(lines_of(path))),
    "weights": Kind("a.json", lambda path: read_weights(str(path)), {"alpha": 1.0, "beta": 0.5, "text": ""}),
    "model card": Kind("model.json", read_card, {"format": "nemo_lite model", "version": 1, "text": ""}),
    "language model": Kind("a.arpa", load_language_model),
    "transcripts": Kind("a.jsonl", read_transcripts, {"place": "a", "reference": "a", "hypothesis": "a", "text": ""}),
    "calibration": Kind("calibration.json", lambda path: reliability_charts(path.parent), {"sets": [], "text": ""}),
    "metrics": Kind("metrics.jsonl", lambda path: list(read_metrics(path)), None, ("noise",)),
    "run folder": Kind("a.yaml", lambda path: read_run(path.parent), None, ("noise",), ("metrics.jsonl", RECORD)),
    "Kaldi list": Kind("feats.scp", lambda path: KaldiUtterances.open(path.parent)),
    "tar shard": Kind("a.tar", lambda path: list(members_of(str(path))), None, HOLES),
    ".nemo archive": Kind("a.nemo", NemoArchive),
    "archive of a corpus": Kind(
        "a.tar.gz", lambda path: unpack(path, path.parent / "out", (".wav",), max_bytes=1000), None, HOLES
    ),
    "tokenizer": Kind("a.model", load_subwords),
    "ONNX": Kind("a.onnx", OnnxModel),
    "safetensors": Kind("a.safetensors", read_tensors),
    "training state": Kind("a.safetensors", load_training_state),
    "torch.save": Kind("a.pt", read_tensors),
    "record": Kind(
        "record.json", lambda path: read_record(path.parent), {"format": "nemo_lite checkpoint", "text": ""}
    ),
    "script": Kind("a.py", uses_in),
}


# Tricks with what stands under a name


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2 << 30)


def growing_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate((1 << 27) - 1)


PLACES: dict[str, Callable[[Path], object]] = {
    "named pipe": os.mkfifo,
    "socket": socket_at,
    "link to itself": lambda path: path.symlink_to(path.name),
    "/dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "2 GiB of holes": sparse,
    "128 MiB of holes": growing_sparse,
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 40),
    "control characters": lambda path: path.write_bytes(b"\x1b[2J\x9b\x07 = \x1b]0;x\x07\n"),
    "nothing in it": lambda path: path.write_bytes(b""),
}
EMPTY_IS_FINE = {"metrics", "run folder", "transcripts", "list of a corpus", "script", "lists of NeMo"}
NO_TEXT = {"metrics", "run folder", "script"}  # their lines that are no JSON are passed over, or shown as escapes


MOST_LINES = 1 + MAX_LISTED  # errors about a list name the first few

# Tricks with JSON


def json_tricks(line: dict[str, object]) -> Iterator[tuple[str, bytes]]:
    """Texts in the place of a good line."""
    good, key = json.dumps(line)[1:-1], next(iter(line))
    numbers = next((name for name in ("duration", "alpha", "version", "serial") if name in line), "x")
    without = json.dumps({name: value for name, value in line.items() if name != numbers})[1:-1]
    texts = json.dumps({name: value for name, value in line.items() if name != "text"})[1:-1]
    spelled = f"\\u{ord(key[0]):04x}{key[1:]}"
    yield "lists in lists", f'{{{good}, "y": {"[" * 100_000}{"]" * 100_000}}}'.encode()
    yield "objects in objects", f'{{{good}, "y": '.encode() + b'{"a":' * 100_000 + b"1" + b"}" * 100_001
    yield "lists without an end", b"[" * 1_000_000
    yield "a key twice", f'{{{good}, "{key}": "b"}}'.encode()
    yield "a key twice by escapes", f'{{{good}, "{spelled}": "b"}}'.encode()
    yield "Infinity", f'{{{without}, "{numbers}": Infinity}}'.encode()
    yield "NaN", f'{{{without}, "{numbers}": NaN}}'.encode()
    yield "1e999", f'{{{without}, "{numbers}": 1e999}}'.encode()
    yield "5,000 digits", f'{{{without}, "{numbers}": {"9" * 5000}}}'.encode()
    yield "half of a surrogate pair", f'{{{texts}, "text": "\\ud800"}}'.encode()
    yield "a raw control character", f'{{{texts}, "text": "\x1b[2J"}}'.encode()
    yield "a list", b"[1, 2]"
    yield "a text", b'"a"'


def calls_of(kind: Kind, folder: Path, tricks: dict[str, Callable[[Path], object]]) -> dict[str, Callable[[], object]]:
    calls: dict[str, Callable[[], object]] = {}
    for number, (name, play) in enumerate(tricks.items()):
        path = folder / str(number) / kind.name
        path.parent.mkdir()
        if kind.beside[0]:
            (path.parent / kind.beside[0]).write_text(kind.beside[1])
        play(path)
        calls[name] = lambda path=path: kind.read(path)
    return calls


def seen_in(folder: Path) -> dict[str, tuple[int, int]]:
    """The files, but for what was unpacked to where it may be: ``out``."""
    found = [path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
    found = [path for path in found if "out" not in path.relative_to(folder).parts]
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in found}


def assert_all_refused(kind: Kind, folder: Path, tricks: dict[str, Callable[[Path], object]]) -> None:
    (folder / "sentinel").mkdir()
    (folder / "sentinel" / "a.wav").write_bytes(b"precious")
    (folder / "cases").mkdir()
    calls = calls_of(kind, folder / "cases", tricks)
    before = seen_in(folder)
    found = outcomes(calls)
    assert seen_in(folder) == before, "something was written, changed or deleted"
    assert found.keys() == calls.keys()
    bad = {
        trick: outcome
        for trick, outcome in found.items()
        if outcome.code != (0 if trick in kind.harmless else 2)
        or outcome.cpu_seconds > 2.0
        or outcome.num_bytes > 300e6
        or "Traceback" in outcome.told
        or any(control in outcome.told for control in "\x1b\x07\x9b\0")
        or outcome.told.count("\n") > (0 if trick in kind.harmless else MOST_LINES)
    }
    assert bad == {}


def places_for(name: str) -> dict[str, Callable[[Path], object]]:
    tricks = dict(PLACES)
    if name in EMPTY_IS_FINE:
        del tricks["nothing in it"]
    if name in NO_TEXT:
        del tricks["control characters"]
    return tricks


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_what_is_no_such_file_is_refused(name, tmp_path):
    if name == "ONNX":
        pytest.importorskip("onnxruntime")
    assert_all_refused(KINDS[name], tmp_path, places_for(name))


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.line])
def test_hostile_json_is_refused(name, tmp_path):
    kind = KINDS[name]
    assert kind.line is not None
    texts = dict(json_tricks(kind.line))
    assert_all_refused(
        kind, tmp_path, {trick: (lambda path, t=text: path.write_bytes(t)) for trick, text in texts.items()}
    )


# Archives, tensor files and lists of Kaldi


def tar(*members: bytes, end: bool = True) -> bytes:
    return b"".join(members) + bytes(1024 if end else 0)


def below_zero() -> bytes:
    """A header whose size is -1024, so that the next one would be this one again."""
    header = bytearray(member("a.wav"))
    header[124:136] = b"-00000002000"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return bytes(header)


def many_members(number: int) -> bytes:
    whole, head = bytearray(), bytearray(member("000000.wav"))
    base = sum(head[:512]) - sum(head[:6]) - sum(head[148:156]) + 8 * ord(" ")
    for index in range(number):
        head[:6] = b"%06d" % index
        head[148:156] = b"%06o\0 " % (base + sum(head[:6]))
        whole += head
    return bytes(whole)


CONFIG = member("module.yaml", b"a: 1\n")
TARS: dict[str, bytes] = {
    "a member twice": tar(CONFIG, member("a.wav", b"1"), member("a.wav", b"2")),
    "a name with ..": tar(CONFIG, member("../a.wav")),
    "an absolute name": tar(CONFIG, member("/tmp/hostile.wav")),
    "a link out, and a file through it": tar(
        CONFIG, member("b", kind=tarfile.SYMTYPE, linkname="/tmp"), member("b/hostile.wav", b"1")
    ),
    "a hard link": tar(CONFIG, member("a.wav", kind=tarfile.LNKTYPE, linkname="/etc/passwd")),
    "a device": tar(CONFIG, member("a.wav", kind=tarfile.CHRTYPE)),
    "a size of 1 TB": tar(CONFIG, member("a.wav", size=1 << 40)),
    "a pax header that is searched long": tar(member("p", b"1" * 60_000, tarfile.XHDTYPE), CONFIG),
    "pax headers in each other": tar(member("p", b"9 a=bcde\n", tarfile.XHDTYPE) * 2000, CONFIG),
    "an end within a member": tar(CONFIG, member("a.wav", bytes(4000)), end=False)[:2000],
}
NEMO_TARS = {
    "100,000 members": tar(CONFIG, many_members(100_000)),
    "200 MB of zeros, packed": tar(CONFIG, member("a.ckpt", bytes(200 << 20))),
}


def pax_of_200_mb(path: Path) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 200 << 20
    with path.open("wb") as file:
        file.write(CONFIG + header.tobuf())
        file.truncate(210 << 20)


def write(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("name", [".nemo archive", "archive of a corpus"])
@pytest.mark.parametrize("pack", [bytes, partial(gzip.compress, compresslevel=1)], ids=["plain", "packed"])
def test_hostile_archives_are_refused(name, pack, tmp_path):
    tars = TARS | (NEMO_TARS if name == ".nemo archive" and pack is not bytes else {})
    tricks = {trick: write(pack(content)) for trick, content in tars.items()}
    assert_all_refused(KINDS[name], tmp_path, {**tricks, "a pax header of 200 MB": pax_of_200_mb})


def test_hostile_tar_shards_are_refused(tmp_path):
    tricks = {
        "a size below zero": tar(below_zero()),
        "a size beyond the file": tar(member("a.wav", size=1 << 40)),
        "a pax header that is searched long": TARS["a pax header that is searched long"],
        "pax headers in each other": TARS["pax headers in each other"],
        "packed": gzip.compress(tar(member("a.wav"))),
        "no end": member("a.wav", b"1"),
    }
    plays = {trick: write(content) for trick, content in tricks.items()}
    assert_all_refused(KINDS["tar shard"], tmp_path, {**plays, "a pax header of 200 MB": pax_of_200_mb})


def safetensors(header: bytes, num_bytes: int = 8) -> bytes:
    return len(header).to_bytes(8, "little") + header + bytes(num_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["safetensors", "training state"])
def test_hostile_headers_of_tensor_files_are_refused(name, tmp_path):
    one = b'"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}'
    tricks = {
        "100,000 levels": safetensors(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        "tensors in the same bytes": safetensors(b"{%b,%b}" % (one, one.replace(b'"a"', b'"b"'))),
        "more bytes than there are": safetensors(b"{%b}" % one.replace(b"8", b"800000000")),
        "objects": safetensors(b"{%b}" % one.replace(b"U8", b"O")),
        "Infinity": safetensors(b"{%b}" % one.replace(b"[8]", b"[Infinity]")),
        "a header of 4 GB": (1 << 32).to_bytes(8, "little") + b"{" + bytes(100),
        "many empty lists": safetensors(b'{"a":[' + b"[]," * 5_000_000 + b"[]]}"),
    }
    assert_all_refused(KINDS[name], tmp_path, {trick: write(content) for trick, content in tricks.items()})


@pytest.mark.slow
def test_hostile_files_of_torch_save_are_refused(tmp_path):
    many, packed = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(many, "w") as archive:
        for index in range(60_000):
            archive.writestr(f"{index:040}", b"")
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(50 << 20))
    tricks = {
        "many members": many.getvalue(),
        "packed": packed.getvalue(),
        "a function to call": pickle.dumps(os.getcwd, 2),
        "an end too early": many.getvalue()[:1000],
    }
    assert_all_refused(KINDS["torch.save"], tmp_path, {trick: write(content) for trick, content in tricks.items()})


def test_hostile_lists_of_kaldi_are_refused(tmp_path):
    tricks = {
        "a command": b"a cat /etc/passwd |\n",
        "a named pipe": b"a pipe.ark:0\n",
        "a byte of 400 digits": b"a x.ark:" + b"9" * 400 + b"\n",
        "a byte of 18 digits": b"a x.ark:" + b"9" * 18 + b"\n",
        "a line of 2 MB": b"a " * (1 << 20) + b"\n",
        "no text": b"a \xff\n",
    }

    def play(path: Path, content: bytes) -> None:
        path.write_bytes(content)
        os.mkfifo(path.with_name("pipe.ark"))
        path.with_name("x.ark").write_bytes(b"\0BFM ")
        path.with_name("text").write_text("a b\n")

    plays = {trick: partial(play, content=content) for trick, content in tricks.items()}
    assert_all_refused(KINDS["Kaldi list"], tmp_path, plays)
