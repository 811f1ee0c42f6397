"""fetch: the files of a Hugging Face repository in the cache folder, whole and verified, or an error of one line.

What the server states about a file (size, and SHA-256 or git's SHA-1) is what it must be. Files arrive under another
name, which a later try continues. No model is read here, and nothing of a repository is run.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import os
import re
import shutil
import ssl
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

import msgspec
from tqdm import tqdm

from nemo_asr.published.catalogue import Repository
from nemo_lite.base.errors import CheckpointError, ModelNotFoundError, UsageError
from nemo_lite.base.files import (
    FileKind,
    JsonLimits,
    digest_of_file,
    json_text,
    make_writable_folder,
    parse_json,
    read_bytes,
    refusing_unwritable,
    synchronise,
    write_atomically,
)
from nemo_lite.base.verified import RecordKind, VerifiedFile

# Any: a response of urllib, and values of JSON.

CACHE_VARIABLE, CACHE = "NEMO_LITE_CACHE", "~/.cache/nemo_lite"
OFFLINE_VARIABLE, TOKEN_VARIABLE = "HF_HUB_OFFLINE", "HF_TOKEN"
ENDPOINT_VARIABLE, ENDPOINT = "HF_ENDPOINT", "https://huggingface.co"
RECORD = "download.json"
MAX_TRIES = 5  # one after another, without a byte in between
MAX_WAIT_SECONDS = 120.0  # that a server may ask for
_TIMEOUT_SECONDS = 60
_CHUNK_BYTES = 1 << 20
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NETWORK = (URLError, ConnectionError, TimeoutError, ssl.SSLError, http.client.HTTPException)
_DIGESTS = {64: "SHA-256", 40: "git's SHA-1"}
_DIGEST_OF = {False: re.compile("[0-9a-f]{40}"), True: re.compile("[0-9a-f]{64}")}  # whether it is of Git LFS
_LIST = FileKind("the server's list of files", 64 << 20, CheckpointError, f"see {ENDPOINT_VARIABLE}")
_OF_GIT = FileKind("the file", 256 << 20, CheckpointError)  # larger ones are of Git LFS
# Of a folder of transformers; settings are small. Pickled weights are not read, so they are not fetched.
_SETTINGS, _MAX_SETTINGS_BYTES = (".json", ".txt", ".model"), 64 << 20
_CONFIG, _WEIGHTS, _INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_PART_OF_WEIGHTS = re.compile(r"model-[0-9]+-of-[0-9]+\.safetensors")


class Download(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a folder of the cache: ``download.json``. It is written last, so that a folder counts whole.

    Attributes:
        repository, revision: what was fetched.
        server: from where.
        files: with their SHA-256.
    """

    format: str = "nemo_lite download"
    version: int = 1
    repository: str
    revision: str
    server: str
    files: list[VerifiedFile]

    def is_whole(self, folder: Path) -> bool:
        """Whether all files are there, with their sizes. Their contents were compared when they arrived."""
        return not any(file.problem(folder, contents=False) for file in self.files)


_RECORD = RecordKind(
    FileKind("the record of a download", 8 << 20, CheckpointError, "remove its folder, and fetch it again"),
    "nemo_lite download",
    1,
    Download,
    json_text,
    JsonLimits(),
)


class _Listed(NamedTuple):
    """A file of a repository, as the server states it: the digest is a SHA-256, or git's SHA-1 of a small file."""

    name: str
    bytes: int
    digest: str

    def digest_of(self, path: Path) -> str:
        if len(self.digest) == 64:
            return digest_of_file(path)
        content = read_bytes(path, _OF_GIT)
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()

    def is_at(self, path: Path) -> bool:
        return path.is_file() and path.stat().st_size == self.bytes and self.digest_of(path) == self.digest


def cached_folder(repository: Repository, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the files of a repository are, or are to be."""
    owner, _, name = repository.name.partition("/")
    revision = "" if repository.revision == "main" else f"@{repository.revision}"
    return Path(environ.get(CACHE_VARIABLE) or CACHE).expanduser() / "hf" / owner / f"{name}{revision}"


def fetch(
    repository: Repository,
    *,
    check: Callable[[Path], object] = Path.exists,
    offline: bool = False,
    refresh: bool = False,
) -> Path:
    """The model of a repository: a folder of transformers, or a .nemo file. What is in the cache needs no network.

    Args:
        repository: which.
        check: takes the path of ``config.json`` before the weights are fetched, and raises an error where it is of a
            model that is not read here.
        offline: use the cache alone; so does the environment variable HF_HUB_OFFLINE.
        refresh: ask the server again, and fetch what has changed there.

    Raises:
        ModelNotFoundError: it is not there, it cannot be reached, or the connection broke off; the next call goes on
            where this one ended.
        CheckpointError: the server sends something else than it states, or has no files that are read here.
        UsageError: the cache cannot be written to, the disk is full, or a variable of the environment is wrong.
    """
    folder = cached_folder(repository)
    if not refresh and (found := _found(folder)) is not None:
        return found
    if offline or os.environ.get(OFFLINE_VARIABLE, "").lower() not in ("", "0", "false", "no"):
        remedy = f"fetch it with a network: nemo-lite models get {repository}"
        problem = "it is not in the cache, and nothing is downloaded offline"
        raise ModelNotFoundError(problem, place=str(repository), got=f"no {folder}", remedy=remedy)
    server = _Server.of_environment()
    with _locked(make_writable_folder(folder)):
        if not refresh and (found := _found(folder)) is not None:  # another process was faster
            return found
        files = _wanted(server.files(repository), repository)
        _fetch_files(server, repository, files, folder, check)
        stored = [VerifiedFile(file.name, digest_of_file(folder / file.name), file.bytes) for file in files]
        done = Download(repository=repository.name, revision=repository.revision, server=server.address, files=stored)
        text = _RECORD.text(msgspec.to_builtins(done))
        for old in folder.glob(".*.part"):  # of contents that the server has no more
            old.unlink()
        write_atomically(folder / RECORD, lambda path: path.write_text(text, encoding="utf-8"))
    return _model_in(folder, [file.name for file in files])


def download_of(folder: Path) -> Download:
    """The record of a folder of the cache.

    Raises:
        CheckpointError: there is none, or it was changed.
    """
    return _RECORD.read(folder / RECORD)


def _found(folder: Path) -> Path | None:
    """The model in a folder of the cache; None where it is not whole."""
    if not (folder / RECORD).is_file():
        return None
    done = download_of(folder)
    return _model_in(folder, [file.name for file in done.files]) if done.is_whole(folder) else None


def _model_in(folder: Path, names: Sequence[str]) -> Path:
    return next((folder / name for name in names if name.endswith(".nemo")), folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process of this machine at a time; the others wait."""
    with open(folder / ".lock", "a") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def _wanted(files: Sequence[_Listed], repository: Repository) -> list[_Listed]:
    """The files that a reader needs: one .nemo file, or settings and then weights.

    Raises:
        CheckpointError: there are none, or several .nemo files.
    """
    by_name = {file.name: file for file in files}
    archives = [file for file in files if file.name.endswith(".nemo")]
    if len(archives) == 1:
        return archives
    weights = [file for file in files if _PART_OF_WEIGHTS.fullmatch(file.name)] if _INDEX in by_name else []
    weights = [by_name[_WEIGHTS]] if _WEIGHTS in by_name else weights
    if _CONFIG in by_name and weights:
        small = [file for file in files if file.name.endswith(_SETTINGS) and file.bytes <= _MAX_SETTINGS_BYTES]
        return [by_name[_CONFIG], *(file for file in small if file.name != _CONFIG), *weights]
    others = [name for name in by_name if name.endswith((".nemo", ".bin", ".safetensors", ".onnx", ".pt", ".gguf"))]
    raise CheckpointError(
        "the repository has no model that is read here",
        place=str(repository),
        got=", ".join(others[:4]) or "no weights",
        wanted=f"one .nemo file, or {_CONFIG} and {_WEIGHTS}",
        remedy="nemo-lite models list has models that are",
    )


def _fetch_files(
    server: _Server, repository: Repository, files: Sequence[_Listed], folder: Path, check: Callable[[Path], object]
) -> None:
    """Put all files into the folder. Raises the errors of :func:`fetch`."""
    missing = [file for file in files if not file.is_at(folder / file.name)]
    parts = {file.name: folder / f".{file.name}.{file.digest[:16]}.part" for file in missing}
    arrived = sum(part.stat().st_size for part in parts.values() if part.is_file())
    total = sum(file.bytes for file in missing)
    if (free := shutil.disk_usage(folder).free) < total - arrived:
        got, wanted = f"{free / 1e9:.1f} GB free", f"{(total - arrived) / 1e9:.1f} GB"
        remedy = f"free some space, or set {CACHE_VARIABLE} to another folder"
        raise UsageError(
            "the disk is too small for the model", place=str(folder), got=got, wanted=wanted, remedy=remedy
        )
    if missing:
        print(f"downloading {repository}, {total / 1e6:.1f} MB, to {folder}", file=sys.stderr)
    with tqdm(total=total, initial=arrived, unit="B", unit_scale=True, disable=None) as bar:
        for file in files:
            if (part := parts.get(file.name)) is not None:
                with refusing_unwritable(part, "the download cannot be written"):
                    server.receive(repository, file, part, bar)
                    os.replace(part, folder / file.name)
                    synchronise(folder)
            if file.name == _CONFIG:
                check(folder / _CONFIG)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirects, also to other hosts. The token does not go there, and https does not become http."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.scheme not in ("https", old.scheme):
            problem, got = "the server redirects to where nothing is fetched from", f"{new.scheme}://{new.netloc}"
            remedy = f"see {ENDPOINT_VARIABLE}"
            raise ModelNotFoundError(problem, place=req.full_url, got=got, wanted="https", remedy=remedy)
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        token = req.unredirected_hdrs.get("Authorization")
        if request is not None and token and (old.scheme, old.netloc) == (new.scheme, new.netloc):
            request.add_unredirected_header("Authorization", token)
        return request


@dataclass(frozen=True)
class _Server:
    """Hugging Face, or a mirror of it.

    Attributes:
        address: ``https://huggingface.co``.
        token: of an account; "" for none.
    """

    address: str
    token: str

    @classmethod
    def of_environment(cls) -> _Server:
        """The server that HF_ENDPOINT names, with the token in HF_TOKEN.

        Raises:
            UsageError: a value cannot be used.
        """
        address = (os.environ.get(ENDPOINT_VARIABLE) or ENDPOINT).strip().rstrip("/")
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise UsageError("this is no address", place=ENDPOINT_VARIABLE, got=address, wanted=f"such as {ENDPOINT}")
        if not (token.isascii() and token.isprintable()):
            raise UsageError("the token has letters that a header cannot have", place=TOKEN_VARIABLE, wanted="hf_...")
        if token and parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
            remedy = f"give an address of https, or unset {TOKEN_VARIABLE}"
            problem = "a token would be readable on the way"
            raise UsageError(problem, place=ENDPOINT_VARIABLE, got=address, wanted="https", remedy=remedy)
        return cls(address, token)

    def files(self, repository: Repository) -> list[_Listed]:
        """The files in the top folder of a repository."""
        url = f"{self.address}/api/models/{repository.name}/tree/{repository.revision}"
        tries = 0
        while True:
            try:
                with self._open(url, repository) as response:
                    data = response.read(_LIST.max_bytes + 1)
                break
            except _NETWORK as error:
                tries += 1
                self._wait(error, tries, repository, url)
        content = parse_json(data, url, _LIST)
        if not isinstance(content, list):
            raise _LIST.refusal(f"{_LIST.name} is none", url, got=type(content).__name__, wanted="a list")
        return [file for file in map(_listed, content) if file is not None]

    def receive(self, repository: Repository, file: _Listed, part: Path, bar: Any) -> None:
        """Fill a file, going on where it ends; in the end it is whole and verified, or there is an error.

        Raises:
            ModelNotFoundError: the server does not give it. What has arrived stays, for the next time.
            CheckpointError: it is not what the server stated. Nothing stays.
        """
        url = f"{self.address}/{repository.name}/resolve/{repository.revision}/{file.name}"
        part.touch()
        tries, most = 0, part.stat().st_size
        while part.stat().st_size < file.bytes:
            try:
                self._append(url, repository, file, part, bar)
                error: Exception = ConnectionError("the connection broke off")
            except _NETWORK as caught:
                error = caught
            size = part.stat().st_size
            if size < file.bytes:
                tries, most = (1, size) if size > most else (tries + 1, most)
                self._wait(error, tries, repository, url)
        synchronise(part)
        size = part.stat().st_size
        digest = file.digest_of(part) if size == file.bytes else ""
        if digest != file.digest:
            part.unlink()
            kind = _DIGESTS[len(file.digest)]
            got, wanted = (f"{kind} {digest}", file.digest) if digest else (f"{size} bytes", str(file.bytes))
            remedy = "try again; if it stays so, tell the owner of the repository or of the mirror"
            raise CheckpointError(
                "the file is not what the server states", place=url, got=got, wanted=wanted, remedy=remedy
            )

    def _append(self, url: str, repository: Repository, file: _Listed, part: Path, bar: Any) -> None:
        start = part.stat().st_size
        with self._open(url, repository, {"Range": f"bytes={start}-"} if start else {}) as response:
            # What ignores the range sends all of the file again.
            goes_on = response.status == 206 and str(response.headers.get("Content-Range")).startswith(
                f"bytes {start}-"
            )
            if start and not goes_on:
                bar.update(-start)
                start = 0
            with open(part, "ab" if goes_on else "wb") as out:
                # One byte more than stated is enough to tell that it is another file.
                while chunk := response.read(min(_CHUNK_BYTES, file.bytes + 1 - start)):
                    out.write(chunk)
                    start += len(chunk)
                    bar.update(len(chunk))

    def _open(self, url: str, repository: Repository, headers: Mapping[str, str] = {}) -> Any:
        request = urllib.request.Request(url, headers={"User-Agent": "nemo_lite", **headers})  # noqa: S310 - checked
        if self.token:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        try:
            return urllib.request.build_opener(_Redirects).open(request, timeout=_TIMEOUT_SECONDS)
        except HTTPError as error:
            error.close()
            if error.code in (401, 403, 404):
                raise self._refusal(error.code, repository, url) from None
            raise

    def _refusal(self, code: int, repository: Repository, url: str) -> ModelNotFoundError:
        page = f"{self.address}/{repository.name}"
        own_token = f"the token in {TOKEN_VARIABLE}" if self.token else f"no {TOKEN_VARIABLE}"
        problem, remedy = {
            401: (
                "there is no such repository, or it is not for everybody",
                f"look at {page}, and set {TOKEN_VARIABLE} to a token that may read it",
            ),
            403: (
                "the repository wants consent first",
                f"agree to its conditions at {page} with the account of the token",
            ),
            404: ("there is no such repository or revision", "correct the name; nemo-lite models list has names"),
        }[code]
        return ModelNotFoundError(
            problem, place=str(repository), got=f"{code} for {url} with {own_token}", remedy=remedy
        )

    def _wait(self, error: Exception, tries: int, repository: Repository, url: str) -> None:
        """Wait before the next try.

        Raises:
            ModelNotFoundError: there is none.
        """
        remedy = "call it again: what has arrived is kept, and it goes on there"
        place, seconds = str(repository), float(2 ** (tries - 1))
        if isinstance(error, HTTPError):
            asked = str(error.headers.get("Retry-After", ""))
            seconds = float(asked) if asked.isascii() and asked.isdecimal() and len(asked) < 9 else seconds
            if error.code not in (408, 429) and error.code < 500:
                raise ModelNotFoundError(
                    "the server refuses it", place=place, got=f"{error.code} for {url}", remedy=remedy
                )
        if tries >= MAX_TRIES or seconds > MAX_WAIT_SECONDS:
            wait = f", which asks to wait for {seconds:g} s" if seconds > MAX_WAIT_SECONDS else ""
            got = f'"{error}" from {url}{wait}'
            raise ModelNotFoundError("it cannot be downloaded", place=place, got=got, remedy=remedy) from None
        time.sleep(seconds)


def _listed(entry: Any) -> _Listed | None:
    """A file of the server's list; None for a folder, for another kind of name, and for what lacks facts."""
    if not isinstance(entry, dict) or entry.get("type") != "file":
        return None
    stored = entry.get("lfs")
    stated = stored if isinstance(stored, dict) else entry
    name, size, digest = str(entry.get("path")), stated.get("size"), str(stated.get("oid"))
    if not _FILE_NAME.fullmatch(name) or not isinstance(size, int) or size < 0:
        return None
    return _Listed(name, size, digest) if _DIGEST_OF[stated is stored].fullmatch(digest) else None
