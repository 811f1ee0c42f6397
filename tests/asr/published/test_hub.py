"""fetch: from a server that answers as Hugging Face does; whole and verified, or one line and nothing that is used."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Timer
from types import SimpleNamespace
from typing import Any

import pytest
from toys.hub_server import TOKEN, Hub, asked_here

from nemo_asr.published.catalogue import DOOR, Repository, parse_repository
from nemo_asr.published.hub import cached_folder, download_of, fetch
from nemo_asr.published.transfer import MAX_TRIES
from nemo_lite.base.errors import CheckpointError, ModelNotFoundError, UsageError, reported_to_user

NAME = Repository("owner/name")
WEIGHTS = bytes(range(256)) * 4096  # 1 MiB
FILES = {
    "README.md": b"# A model",
    "config.json": b'{"model_type": "parakeet_ctc"}',
    "empty.json": b"",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"pickled",
    "tokenizer.json": b"{}",
}
WANTED = ["config.json", "empty.json", "model.safetensors", "tokenizer.json"]


@pytest.fixture(name="hub")
def _hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with asked_here(Hub(dict(FILES)), tmp_path, monkeypatch) as hub:
        yield hub


@pytest.fixture(autouse=True, name="waits")
def _waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []
    monkeypatch.setattr("nemo_asr.published.transfer.time.sleep", waits.append)
    return waits


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refusal(kind: type[Exception] = ModelNotFoundError) -> str:
    with pytest.raises(kind) as caught:
        fetch(NAME)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_files_that_readers_need_are_fetched_once(hub: Hub) -> None:
    folder = fetch(NAME)
    assert folder == cached_folder(NAME)
    assert names_in(folder) == [".lock", "config.json", "download.json", "empty.json", *WANTED[2:]]
    assert all((folder / name).read_bytes() == FILES[name] for name in WANTED)
    assert {file.name: file.sha256 for file in download_of(folder).files} == {
        name: hashlib.sha256(FILES[name]).hexdigest() for name in WANTED
    }
    asked = len(hub.asked)
    assert fetch(NAME) == folder
    assert len(hub.asked) == asked


def test_one_nemo_file_comes_before_a_folder(hub: Hub) -> None:
    hub.files["model.nemo"] = b"tar"
    path = fetch(NAME)
    assert (path.name, path.read_bytes()) == ("model.nemo", b"tar")
    assert names_in(path.parent) == [".lock", "download.json", "model.nemo"]


def test_what_has_changed_is_fetched_when_asked_and_nothing_else(hub: Hub) -> None:
    folder = fetch(NAME)
    hub.files["tokenizer.json"] = b'{"new": 1}'
    hub.asked.clear()
    assert fetch(NAME) == folder
    assert hub.asked == []
    fetch(NAME, refresh=True)
    assert (folder / "tokenizer.json").read_bytes() == b'{"new": 1}'
    assert [path.rpartition("/")[2] for path, *_ in hub.asked] == ["main", "tokenizer.json"]


def test_what_the_server_has_no_more_goes_and_what_is_not_from_there_stays(hub: Hub) -> None:
    folder = fetch(NAME)
    (folder / "mine.txt").touch()
    del hub.files["model.safetensors"], hub.files["empty.json"]
    hub.files |= {"model.safetensors.index.json": b"{}", "model-00001-of-00001.safetensors": b"new"}
    fetch(NAME, refresh=True)
    new = ["config.json", "download.json", "mine.txt", "model-00001-of-00001.safetensors"]
    assert names_in(folder) == [".lock", *new, "model.safetensors.index.json", "tokenizer.json"]


def test_a_refresh_that_is_given_up_leaves_the_model_that_was_there(hub: Hub) -> None:
    parts = hub.large = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    hub.files = {"config.json": b"{}", "model.safetensors.index.json": b"{}", **dict.fromkeys(parts, b"old")}
    folder = fetch(NAME)
    hub.files |= {"config.json": b"[]", **dict.fromkeys(parts, b"new")}
    hub.cut = [3, *[0] * MAX_TRIES]  # the second part does not come
    with pytest.raises(ModelNotFoundError):
        fetch(NAME, refresh=True)
    hub.asked.clear()
    assert fetch(NAME) == folder
    assert hub.asked == []
    assert [(folder / name).read_bytes() for name in ("config.json", *parts)] == [b"{}", b"old", b"old"]
    hub.cut = []
    fetch(NAME, refresh=True)
    assert [(folder / name).read_bytes() for name in ("config.json", *parts)] == [b"[]", b"new", b"new"]
    assert [path.rpartition("/")[2] for path, *_ in hub.asked] == ["main", parts[1], parts[1]]


def test_a_token_goes_to_the_server_and_not_to_where_it_redirects(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.private = True
    assert "there is no such repository, or it wants a token: got 401" in refusal()
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN}\n")
    hub.moved = "owner/new"  # on the same server: there it goes too
    hub.asked.clear()
    fetch(NAME)
    tokens = {path.startswith("/blob/"): set[str | None]() for path, *_ in hub.asked}
    for path, _, token in hub.asked:
        tokens[path.startswith("/blob/")].add(token)
    assert tokens == {False: {f"Bearer {TOKEN}"}, True: {None}}


def test_redirects_go_to_the_web_alone(hub: Hub) -> None:
    hub.store = "ftp://127.0.0.1:9"
    assert "nothing is fetched from: got ftp://127.0.0.1:9, wanted https; HF_ENDPOINT takes" in refusal()


def test_a_token_is_not_sent_where_it_could_be_read(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror.example")
    message = refusal(UsageError)
    assert message.startswith("HF_ENDPOINT: a token would be readable on the way: got http://mirror.example")
    assert TOKEN not in message


def test_a_cut_connection_is_continued(hub: Hub, waits: list[float]) -> None:
    hub.cut = [1000, 500_000]
    folder = fetch(NAME)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert [part for path, part, _ in hub.asked if path.startswith("/blob/")] == [None, "bytes=1000-", "bytes=501000-"]
    assert waits == [1.0, 1.0]  # each brought something


def test_what_was_given_up_is_continued_by_the_next_call(hub: Hub, waits: list[float]) -> None:
    hub.cut = [1000, *[0] * (MAX_TRIES - 1)]
    assert "owner/name: it cannot be downloaded" in (message := refusal())
    kept = "call it again: what has arrived is kept, and it goes on there"
    assert message.endswith(f"; {kept}; HF_ENDPOINT takes the address of a mirror")
    assert waits == [1.0, 2.0, 4.0, 8.0]
    assert not {"model.safetensors", "download.json"} & set(names_in(cached_folder(NAME)))
    hub.asked.clear()
    fetch(NAME)
    assert [part for path, part, _ in hub.asked if path.startswith("/blob/")] == ["bytes=1000-"]


def test_who_stops_a_download_is_told_that_the_next_call_goes_on(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.cut = [1000]
    monkeypatch.setattr("nemo_asr.published.transfer.time.sleep", lambda _: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(SystemExit) as ended, reported_to_user("nemo-lite"):
        fetch(NAME)
    assert ended.value.code == 130
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == "SIGINT: stopped; what has arrived of hf:owner/name is kept, and the same command goes on there"
    hub.asked.clear()
    fetch(NAME)
    assert [part for path, part, _ in hub.asked if path.startswith("/blob/")] == ["bytes=1000-"]


def test_a_store_without_ranges_sends_all_again(hub: Hub) -> None:
    hub.cut, hub.takes_ranges = [1000], False
    assert (fetch(NAME) / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("is_longer", [False, True])
def test_another_content_is_never_used(hub: Hub, name: str, is_longer: bool) -> None:
    content = FILES[name]
    hub.sent[name] = content + b"x" if is_longer else content[:-1] + b"x"
    message = refusal(CheckpointError)
    assert f"/{name}: the file is not what the server states: got " in message
    assert (f"got {len(content) + 1} bytes, wanted {len(content)};" in message) is is_longer
    left = names_in(cached_folder(NAME))
    assert name not in left
    assert not any(each == "download.json" or each.startswith(f".{name}") for each in left)


def test_a_server_that_is_busy_is_waited_for_as_it_says(
    hub: Hub, waits: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    hub.refusals = [(429, {"Retry_After": "7"}), (503, {})]
    fetch(NAME)
    assert waits == [7.0, 2.0]
    told = [line for line in capsys.readouterr().err.splitlines() if "trying again" in line]
    assert told[0] == "hf:owner/name: HTTP Error 429: Too Many Requests; trying again in 7 s"
    assert len(told) == 2


def test_a_wait_that_is_too_long_is_told(hub: Hub, waits: list[float]) -> None:
    hub.refusals = [(429, {"Retry_After": "3600"})]
    assert "which asks to wait for 3600 s" in refusal()
    assert waits == []


def test_what_is_not_there_is_told_with_what_to_do(hub: Hub) -> None:
    with pytest.raises(
        ModelNotFoundError, match=r"hf:owner/other: there is no such repository or revision: got 404 for"
    ):
        fetch(Repository("owner/other"))
    assert not cached_folder(Repository("owner/other")).exists()
    hub.refusals = [(403, {})]
    assert f"agree to its conditions at {hub.address}/owner/name" in refusal()


def test_a_refusal_by_where_the_server_redirects_is_told_as_such(hub: Hub) -> None:
    hub.refused_by_store = 403
    host = hub.store.removeprefix("http://")
    url = f"{hub.address}/owner/name/resolve/main/model.safetensors"
    assert refusal().startswith(f"hf:owner/name: the server refuses it: got 403 from {host} for {url}; ")


def test_offline_the_cache_is_used_and_the_network_is_not(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFoundError, match="it is not in the cache, and nothing is downloaded offline: got no /"):
        fetch(NAME, offline=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert refusal().endswith("; fetch it with a network: nemo-lite models get hf:owner/name")
    assert hub.asked == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "OFF")
    folder = fetch(NAME)
    hub.asked.clear()
    assert fetch(NAME, offline=True) == folder
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch(NAME, refresh=True) == folder
    assert hub.asked == []


def test_a_server_that_cannot_be_reached_is_one_line(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert 'it cannot be downloaded: got "Connection refused" from http://' in refusal()


def test_a_host_that_has_no_address_is_told_at_once(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, waits: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    def without_network(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setenv("HF_ENDPOINT", "http://nowhere.invalid")
    monkeypatch.setattr(socket, "getaddrinfo", without_network)
    assert ': got "Temporary failure in name resolution" from http://nowhere.invalid/' in refusal()
    assert (waits, capsys.readouterr().err) == ([], "")


def test_a_network_that_fails_while_a_file_comes_is_waited_for(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    fails = [False, True, False]  # of the list, of the first file, of its second try
    resolve = socket.getaddrinfo

    def sometimes(*arguments: Any, **named: Any) -> Any:
        if fails and fails.pop(0):
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve(*arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", sometimes)
    fetch(NAME)
    assert waits == [1.0]


@pytest.mark.parametrize("number", [1, 2])  # of the list, of the first file
def test_a_network_that_is_lost_while_an_answer_comes_is_waited_for(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, waits: list[float], number: int
) -> None:
    read, reads = HTTPResponse.read, iter(range(1, 100))

    def once_lost(self: HTTPResponse, amt: int | None = None) -> bytes:
        if next(reads) == number:
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
        return read(self, amt)

    monkeypatch.setattr(HTTPResponse, "read", once_lost)
    assert (fetch(NAME) / "model.safetensors").read_bytes() == WEIGHTS
    assert waits == [1.0]


def test_a_list_that_is_cut_is_asked_for_again(hub: Hub, waits: list[float]) -> None:
    hub.cut_lists = [40]
    fetch(NAME)
    assert waits == [1.0]


@pytest.mark.parametrize("variable", ["HF_ENDPOINT", "http_proxy"])
@pytest.mark.parametrize("address", ["http://a..b", "http://host:abc", "http://host b"])
def test_an_address_that_is_none_is_told_at_once(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, waits: list[float], variable: str, address: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://nowhere.invalid")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv(variable, address)
    assert refusal().startswith(
        "hf:owner/name: an address cannot be used: the server's, a proxy's, or where it redirects: "
    )
    assert waits == []


@pytest.mark.parametrize(
    "address", ["http://[::1", "mirror.example", "https://me:secret@mirror.example", "https://a/?b"]
)
def test_another_spelling_is_no_address_of_a_server(hub: Hub, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    shown = address.replace("me:secret", "...")
    assert refusal(UsageError) == f"HF_ENDPOINT: this is no address: got {shown}, wanted such as https://huggingface.co"


def test_a_file_of_the_cache_that_was_cut_is_fetched_again(hub: Hub) -> None:
    folder = fetch(NAME)
    (folder / "model.safetensors").write_bytes(WEIGHTS[:100])
    assert (fetch(NAME) / "model.safetensors").read_bytes() == WEIGHTS


def test_a_kind_that_is_not_read_is_refused_before_its_weights_are_fetched(hub: Hub) -> None:
    def check(path: Path) -> None:
        raise CheckpointError("another kind", place=path.name)

    with pytest.raises(CheckpointError, match=r"hf:owner/name: config\.json: another kind"):
        fetch(NAME, check=check)
    assert [path for path, *_ in hub.asked if "model.safetensors" in path] == []


def test_a_repository_of_pickles_is_refused_before_anything_is_fetched(hub: Hub) -> None:
    del hub.files["model.safetensors"]
    message = refusal(CheckpointError)
    assert "no model that is read here: got pytorch_model.bin, wanted one .nemo file, or config.json and" in message
    assert message.endswith(f"; {DOOR}")
    assert not cached_folder(NAME).exists()


def test_a_name_that_leads_elsewhere_is_not_written(hub: Hub, tmp_path: Path) -> None:
    hub.files |= {"../../escaped.json": b"{}", "download.json": b"{}"}
    fetch(NAME)
    assert not list(tmp_path.rglob("escaped.json"))
    hub.asked.clear()
    fetch(NAME)
    assert hub.asked == []


def test_a_cache_that_cannot_be_written_is_told_with_its_variable(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NEMO_LITE_CACHE", str(tmp_path / "file"))
    told = refusal(UsageError)
    assert "file/hf/owner/name: the folder is not writable: got " in told
    assert told.endswith("; set NEMO_LITE_CACHE to another folder, or correct the permissions")


def test_a_disk_that_is_too_small_is_told_before(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemo_asr.published.hub.shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    assert "the disk is too small for the model: got 0.0 MB free, wanted 1.0 MB; free" in refusal(UsageError)


def test_a_second_process_says_that_it_waits(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    folder = cached_folder(NAME)
    folder.mkdir(parents=True)
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(folder / ".lock")]
    with Popen(command, stdin=PIPE, stdout=PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        Timer(0.3, other.stdin.close).start()
        assert fetch(NAME) == folder
    assert f"waiting for another process, which downloads to {folder}\n" in capsys.readouterr().err


def test_two_threads_fetch_a_model_once(hub: Hub) -> None:
    with ThreadPoolExecutor(4) as threads:
        assert {*threads.map(fetch, [NAME] * 4)} == {cached_folder(NAME)}
    assert [path for path, *_ in hub.asked].count("/blob/model.safetensors") == 1


def test_a_cache_that_cannot_be_locked_is_told_with_its_variable(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", without_locks)
    told = refusal(UsageError)
    assert '/.lock: the folder cannot be locked: got "No locks available" (ENOLCK); set NEMO_LITE_CACHE to' in told


def test_a_revision_has_its_own_folder() -> None:
    other = parse_repository("hf:a/b@v1.0")
    assert (other, str(other), cached_folder(other).name) == (Repository("a/b", "v1.0"), "hf:a/b@v1.0", "b@v1.0")


MODEL = "ngc:nvidia/nemo/stt@1.0.0rc1"


@pytest.mark.parametrize("states_digest", [False, True])
def test_a_file_of_ngc_is_fetched_and_continued(hub: Hub, tmp_path: Path, states_digest: bool) -> None:
    hub.files, hub.large = {"stt.nemo": WEIGHTS, "notes.txt": b"more"}, ("stt.nemo",) * states_digest
    hub.cut = [1000, 500_000]
    path = fetch(parse_repository(MODEL))
    assert path == tmp_path / "ngc" / "nvidia" / "nemo" / "stt@1.0.0rc1" / "stt.nemo"
    assert path.read_bytes() == WEIGHTS
    assert [part for path, part, _ in hub.asked if path.startswith("/blob/")] == [None, "bytes=1000-", "bytes=501000-"]
    (file,) = download_of(path.parent).files
    assert (file.name, file.sha256) == ("stt.nemo", hashlib.sha256(WEIGHTS).hexdigest())


@pytest.mark.parametrize("sent", [WEIGHTS[:-1] + b"x", WEIGHTS + b"x"])
def test_another_content_of_ngc_is_never_used(hub: Hub, sent: bytes) -> None:
    hub.files, hub.large, hub.sent = {"stt.nemo": WEIGHTS}, ("stt.nemo",), {"stt.nemo": sent}
    with pytest.raises(CheckpointError, match="the file is not what the server states: got "):
        fetch(parse_repository(MODEL))
    assert names_in(cached_folder(parse_repository(MODEL))) == [".lock"]


def test_of_several_files_of_ngc_one_is_named(hub: Hub) -> None:
    hub.files = {"a.nemo": WEIGHTS, "b.nemo": b"b"}
    with pytest.raises(CheckpointError, match=r"no model that is read here: got a\.nemo, b\.nemo, wanted one \.nemo"):
        fetch(parse_repository(MODEL))
    model = parse_repository(f"{MODEL}/b.nemo")
    assert str(model) == f"{MODEL}/b.nemo"
    assert fetch(model).read_bytes() == b"b"
    assert fetch(parse_repository(f"{MODEL}/a.nemo")).read_bytes() == WEIGHTS
    asked = len(hub.asked)
    assert fetch(model).read_bytes() == b"b"
    assert len(hub.asked) == asked


def test_what_ngc_does_not_have_is_one_line(hub: Hub) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        fetch(parse_repository("ngc:nvidia/nemo/stt@2"))
    assert "stt@2: there is no such model, version or file, or it is not for everybody" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["stt@1", "nvidia/nemo/stt", "a/b/c/d@1", "a/../b@1", "a/b@1/c.pt"])
def test_a_model_of_ngc_that_is_spelled_otherwise_is_refused(text: str) -> None:
    with pytest.raises(
        UsageError, match=rf"this names no model of NGC: wanted ngc:ORG/TEAM/NAME@VERSION, or ngc:.*; {DOOR}$"
    ):
        parse_repository(f"ngc:{text}")
