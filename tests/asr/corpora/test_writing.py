"""Corpora as files: archives unpacked, recordings and manifests written."""

import errno
import hashlib
import io
import json
import os
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest

from nemo_asr.corpora.archives import download, unpack
from nemo_asr.corpora.writing import filling_folder, write_recording
from nemo_asr.run.manifest import write_manifest
from nemo_lite.base.errors import DataError, UsageError
from nemo_lite.base.outputs import RECORD

# Manifests and folders are written completely or not at all.


def names_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_manifest_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "m.json"
    write_manifest(path, [{"audio_filepath": "a.wav", "duration": 1.0, "text": "caf\u00e9"}])
    with pytest.raises(TypeError):
        write_manifest(path, [{"audio_filepath": b"bytes", "duration": 1.0, "text": ""}])
    assert [json.loads(line)["text"] for line in path.read_text("utf-8").splitlines()] == ["caf\u00e9"]
    assert names_in(tmp_path) == ["m.json"]


def test_a_folder_is_filled_as_a_whole_or_not_at_all(tmp_path):
    with filling_folder(tmp_path / "sub" / "f") as new:
        (new / "a").write_text("1")
    assert names_in(tmp_path) == [f"sub/f/{RECORD}", "sub/f/a"]

    def fail():
        with filling_folder(tmp_path / "sub" / "f") as new:
            (new / "b").write_text("2")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert names_in(tmp_path) == [f"sub/f/{RECORD}", "sub/f/a"]
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["f"]


@pytest.mark.parametrize("space", [0, 44, 1000])
def test_a_recording_on_a_full_disk_is_one_line_and_leaves_no_half_file(tmp_path, monkeypatch, space):
    path, write = tmp_path / "a.wav", Path.write_bytes
    write_recording(path, np.zeros(100, np.int16), 16000)
    before = path.read_bytes()

    def fill_up(self, data):
        write(self, data[:space])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fill_up)
    with pytest.raises(UsageError, match=r"a\.wav: the disk is full; free some space; nothing that was there before"):
        write_recording(path, np.ones(2000), 16000)
    assert names_in(tmp_path) == ["a.wav"]
    assert path.read_bytes() == before


def test_a_folder_that_the_disk_has_no_room_for_is_one_line(tmp_path):
    def fill():
        with filling_folder(tmp_path / "f"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UsageError, match=r"f: the disk is full; free some space"):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_swept_after_a_day_and_not_before(tmp_path):
    old, young = tmp_path / ".f.elsewhere.1.00000000.tmp", tmp_path / ".f.elsewhere.2.00000000.tmp"
    for folder in (old, young):
        folder.mkdir()
    os.utime(old, (time.time() - 90_000,) * 2)
    with filling_folder(tmp_path / "f"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [young.name, "f"]


def test_what_is_put_into_a_folder_while_it_is_made_anew_is_not_lost(tmp_path):
    for content in ("1", "2"):
        with filling_folder(tmp_path / "f") as new:
            (new / "a").write_text(content)
    with (
        pytest.raises(UsageError, match=r"f: the folder holds files that .* got mine; nothing has been deleted"),
        filling_folder(tmp_path / "f"),
    ):
        (tmp_path / "f" / "mine").write_text("mine")
    assert names_in(tmp_path) == [f"f/{RECORD}", "f/a", "f/mine"]


# Unpacking what is not trusted, fetching what may break off, writing all or nothing.


def archive(path, *members, mode="w:gz"):
    with tarfile.open(path, mode) as tar:
        for member in members:
            name, content = member if isinstance(member, tuple) else (member, b"x")
            if isinstance(name, tarfile.TarInfo):
                tar.addfile(name)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def link(name, target, kind=tarfile.SYMTYPE):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def test_wanted_files_are_unpacked_and_others_passed_over(tmp_path):
    source = archive(tmp_path / "a.tar.gz", ("c/a.wav", b"sound"), "c/readme.txt")
    unpack(source, tmp_path / "out", (".wav",), max_bytes=100)
    assert names_in(tmp_path / "out") == ["c/a.wav"]
    assert (tmp_path / "out/c/a.wav").read_bytes() == b"sound"


@pytest.mark.parametrize("name", ["../evil.wav", "/evil.wav", "a/../../evil.wav", "..\\evil.wav"])
def test_a_member_that_leads_out_is_refused(tmp_path, name):
    source = archive(tmp_path / "a.tar", name, mode="w")
    with pytest.raises(DataError, match=r"a member lies outside its folder: got .*; fetch it again"):
        unpack(source, tmp_path / "out", (".wav",), max_bytes=100)
    assert names_in(tmp_path) == ["a.tar"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    source = archive(tmp_path / "a.tar", link("a.wav", "/etc/passwd", kind), mode="w")
    with pytest.raises(DataError, match=r"a\.tar: a member is no file: it is a link, a device or sparse: got a\.wav"):
        unpack(source, tmp_path / "out", (".wav",), max_bytes=100)


def test_no_more_is_written_than_allowed(tmp_path):
    source = archive(tmp_path / "a.tar.gz", ("a.wav", bytes(60)), ("b.wav", bytes(60)))
    with pytest.raises(DataError, match=r"b\.wav: the archive is larger .*: got 120 bytes"):
        unpack(source, tmp_path / "out", (".wav",), max_bytes=100)
    with pytest.raises(DataError, match="there are too many members: wanted at most 1;"):
        unpack(source, tmp_path / "out", (".wav",), max_bytes=1000, max_files=1)


def test_a_damaged_archive_is_named(tmp_path):
    whole = archive(tmp_path / "a.tar.gz", ("a.wav", os.urandom(5000)))
    (tmp_path / "cut.tar.gz").write_bytes(whole.read_bytes()[:2000])
    (tmp_path / "text.tar.gz").write_text("not an archive")
    for name in ("cut", "text"):
        with pytest.raises(DataError, match=rf"{name}\.tar\.gz: .*damaged one: got "):
            unpack(tmp_path / f"{name}.tar.gz", tmp_path / "out", (".wav",), max_bytes=10**6)


def test_a_missing_archive_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.tar: the archive cannot be opened \(No such file"):
        unpack(tmp_path / "none.tar", tmp_path, (".wav",), max_bytes=1)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", "10")
        self.end_headers()
        self.wfile.write(b"0123456789" if self.path == "/whole" else b"0123")

    def log_message(self, *_):
        pass


@pytest.fixture(autouse=True)
def _no_proxy_and_no_waits(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr("nemo_asr.published.transfer.time.sleep", lambda seconds: None)


@pytest.fixture(scope="module")
def server():
    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def test_a_download_with_the_right_hash_is_kept(server, tmp_path):
    download(f"{server}/whole", tmp_path / "a", hashlib.sha256(b"0123456789").hexdigest())
    assert (tmp_path / "a").read_bytes() == b"0123456789"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "sha256", "problem"),
    [
        ("/whole", "00", "is not the known archive: got sha256 84d89877"),
        ("/cut", None, r'it cannot be downloaded: got "the connection broke off" from http.*/cut; download it by hand'),
        (
            "/missing",
            None,
            "the server refuses it: got 404 from 127.* for http.*/missing; download it by hand and give",
        ),
    ],
)
def test_a_download_that_went_wrong_leaves_no_file(server, tmp_path, page, sha256, problem):
    with pytest.raises(DataError, match=problem):
        download(server + page, tmp_path / "a", sha256)
    assert names_in(tmp_path) == []


def test_an_unreachable_server_is_named(tmp_path):
    with pytest.raises(DataError, match=r"http://127\.0\.0\.1:1/a: it cannot be downloaded"):
        download("http://127.0.0.1:1/a", tmp_path / "a")


@pytest.mark.slow
def test_a_disk_that_cannot_be_written_is_not_blamed_on_the_server(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="the file cannot be written"):
        download(f"{server}/whole", tmp_path / "file" / "a")
