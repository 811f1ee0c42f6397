"""fetch: the files of a published model in the cache folder, whole and verified, or an error of one line.

From Hugging Face and from NVIDIA's NGC. What the server states about a file (size, and SHA-256 or git's SHA-1) is what
it must be. Files arrive under another name, which a later try continues. No model is read here, and nothing of a
repository is run.
"""

from __future__ import annotations

import base64
import fcntl
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from tqdm import tqdm

from nemo_asr.published.catalogue import DOOR, NGC_PREFIX, PREFIX, SPELLINGS, Repository
from nemo_asr.published.transfer import StatedFile, Transfer
from nemo_lite.base.errors import CheckpointError, ModelNotFoundError, NemoLiteError, UsageError
from nemo_lite.base.files import (
    FileKind,
    JsonLimits,
    json_text,
    make_writable_folder,
    parse_json,
    refusing_unwritable,
    synchronise,
    write_atomically,
)
from nemo_lite.base.interruption import Interrupted
from nemo_lite.base.verified import RecordKind, VerifiedFile, delete_listed

# Any: values of JSON.

CACHE_VARIABLE, CACHE = "NEMO_LITE_CACHE", "~/.cache/nemo_lite"
OFFLINE_VARIABLE, TOKEN_VARIABLE = "HF_HUB_OFFLINE", "HF_TOKEN"
ENDPOINT_VARIABLE, ENDPOINT = "HF_ENDPOINT", "https://huggingface.co"
RECORD = "download.json"
NGC_VARIABLE, NGC = "NGC_ENDPOINT", "https://api.ngc.nvidia.com"
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_DIGEST_OF = {False: re.compile("[0-9a-f]{40}"), True: re.compile("[0-9a-f]{64}")}  # whether it is of Git LFS
_LIST = FileKind("the server's list of files", 64 << 20, CheckpointError, f"see {ENDPOINT_VARIABLE}")
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


def cached_folder(repository: Repository) -> Path:
    """Where the files of a repository are, or are to be."""
    owner, _, name = repository.name.rpartition("/")
    revision = "" if repository.revision == "main" else f"@{repository.revision}"
    cache = Path(os.environ.get(CACHE_VARIABLE) or CACHE).expanduser()
    file = repository.file and f"@{repository.file}"  # each of several files is a model
    return cache / repository.prefix.rstrip(":") / owner / f"{name}{revision}{file}"


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
        refresh: ask the server again, unless offline, and fetch what has changed there.

    Raises:
        ModelNotFoundError: it is not there, it cannot be reached, or the connection broke off; the next call goes on
            where this one ended.
        CheckpointError: the server sends something else than it states, or has no files that are read here.
        UsageError: the cache cannot be written to, the disk is full, or a variable of the environment is wrong.
    """
    folder = cached_folder(repository)
    offline = offline or os.environ.get(OFFLINE_VARIABLE, "").lower() in ("1", "true", "yes", "on")  # as HF has it
    if (offline or not refresh) and (found := _found(folder)) is not None:
        return found
    if offline:
        remedy = f"fetch it with a network: nemo-lite models get {repository}"
        problem = "it is not in the cache, and nothing is downloaded offline"
        raise ModelNotFoundError(problem, place=str(repository), got=f"no {folder}", remedy=remedy)
    host = _HOSTS[repository.prefix](repository)
    files = _wanted(host.files(repository), repository)  # of a name that is refused no folder stays
    with _locked(folder):
        if not refresh and (found := _found(folder)) is not None:  # another process was faster
            return found
        _fetch_files(host.transfer, repository, files, folder, check)
        stored = [VerifiedFile(file.name, file.sha256_of(folder / file.name), file.bytes) for file in files]
        done = Download(repository=repository.name, revision=repository.revision, server=host.address, files=stored)
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
    """One thread of one process of this machine at a time; the others wait.

    Raises:
        UsageError: the folder cannot be written to, or not be locked.
    """
    with ExitStack() as stack:
        try:
            make_writable_folder(folder)
            with refusing_unwritable(folder / ".lock", "the folder cannot be locked"):
                file = stack.enter_context(open(folder / ".lock", "a"))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    print(f"waiting for another process, which downloads to {folder}", file=sys.stderr)
                    fcntl.flock(file, fcntl.LOCK_EX)
        except UsageError as error:
            error.remedy = f"set {CACHE_VARIABLE} to another folder, or correct the permissions"
            raise
        yield


def _wanted(files: Sequence[StatedFile], repository: Repository) -> list[StatedFile]:
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
        remedy=DOOR,
    )


def _fetch_files(
    transfer: Transfer,
    repository: Repository,
    files: Sequence[StatedFile],
    folder: Path,
    check: Callable[[Path], object],
) -> None:
    """Put all files into the folder. Raises the errors of :func:`fetch`."""
    missing = [file for file in files if not file.is_at(folder / file.name)]
    parts = {file.name: folder / f".{file.name}.{file.digest[:16] or file.bytes}.part" for file in missing}
    arrived = sum(part.stat().st_size for part in parts.values() if part.is_file())
    total = sum(file.bytes for file in missing)
    if (free := shutil.disk_usage(folder).free) < total - arrived:
        got, wanted = f"{free / 1e6:.1f} MB free", f"{(total - arrived) / 1e6:.1f} MB"
        remedy = f"free some space, or set {CACHE_VARIABLE} to another folder"
        raise UsageError(
            "the disk is too small for the model", place=str(folder), got=got, wanted=wanted, remedy=remedy
        )
    if missing:
        print(f"downloading {repository}, {total / 1e6:.1f} MB, to {folder}", file=sys.stderr)
    try:
        with tqdm(total=total, initial=arrived, unit="B", unit_scale=True, disable=None) as bar:
            for file in files:
                if (part := parts.get(file.name)) is not None:
                    with refusing_unwritable(part, "the download cannot be written"):
                        transfer.receive(file, part, bar)
                if file.name == _CONFIG:
                    try:
                        check(part or folder / _CONFIG)
                    except NemoLiteError as error:  # about what a user asked for, not a file that is arriving
                        error.place = f"{repository}: {_CONFIG}"
                        raise
    except Interrupted as stop:
        stop.kept = f"what has arrived of {repository} is kept, and the same command goes on there"
        raise
    # Only when all are there: until then the folder is the model that it was, not one of old and new files.
    gone = set[str]()  # such as weights in one file, which are in several by now
    with suppress(CheckpointError):  # there is no record, or it was changed
        gone = {file.name for file in download_of(folder).files} - {file.name for file in files}
    with refusing_unwritable(folder, "the download cannot be written"):
        if parts or gone:
            (folder / RECORD).unlink(missing_ok=True)
        for name, part in parts.items():
            os.replace(part, folder / name)
        delete_listed(folder, gone)
        synchronise(folder)


class _HuggingFace:
    """Hugging Face, or a mirror of it, with the token in HF_TOKEN: its address, what fetches from it, and its lists.

    Raises:
        UsageError: a variable of the environment cannot be used.
    """

    def __init__(self, repository: Repository) -> None:
        self.address = _address(ENDPOINT_VARIABLE, ENDPOINT)
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        parts = urlsplit(self.address)
        if not (token.isascii() and token.isprintable()):
            raise UsageError("the token has letters that a header cannot have", place=TOKEN_VARIABLE, wanted="hf_...")
        if token and parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
            remedy = f"give an address of https, or unset {TOKEN_VARIABLE}"
            problem = "a token would be readable on the way"
            raise UsageError(problem, place=ENDPOINT_VARIABLE, got=self.address, wanted="https", remedy=remedy)
        page = f"{self.address}/{repository.name}"
        not_for_you = f"the token in {TOKEN_VARIABLE} may not read it" if token else "it wants a token"
        refusals = {
            401: (
                f"there is no such repository, or {not_for_you}",
                f"look at {page}, and set {TOKEN_VARIABLE} to a token that may read it; {DOOR}",
            ),
            403: (
                "the repository wants consent first",
                f"agree to its conditions at {page} with the account of the token in {TOKEN_VARIABLE}",
            ),
            404: ("there is no such repository or revision", f"correct the name; {DOOR}"),
        }
        self.transfer = Transfer(
            str(repository), token, refusals, address_remedy=f"{ENDPOINT_VARIABLE} takes the address of a mirror"
        )

    def files(self, repository: Repository) -> list[StatedFile]:
        """The files in the top folder of a repository. Raises the errors of :func:`fetch`."""
        url = f"{self.address}/api/models/{repository.name}/tree/{repository.revision}"
        content = parse_json(self.transfer.read(url, _LIST.max_bytes + 1), url, _LIST)
        if not isinstance(content, list):
            raise _LIST.refusal(f"{_LIST.name} is none", url, got=type(content).__name__, wanted="a list")
        at = f"{self.address}/{repository.name}/resolve/{repository.revision}"
        return [file for entry in content if (file := _stated(entry, at)) is not None]


class _Ngc:
    """NVIDIA's NGC, or a mirror of it: public models. It states a SHA-256 of some files.

    Raises:
        UsageError: a variable of the environment cannot be used.
    """

    def __init__(self, repository: Repository) -> None:
        self.address = _address(NGC_VARIABLE, NGC)
        remedy = f"correct it: {SPELLINGS[NGC_PREFIX]}; {DOOR}"
        problem = "there is no such model, version or file, or it is not for everybody"
        refusals = dict.fromkeys((401, 403, 404), (problem, remedy))
        self.transfer = Transfer(
            str(repository), refusals=refusals, address_remedy=f"{NGC_VARIABLE} takes the address of a mirror"
        )

    def files(self, repository: Repository) -> list[StatedFile]:
        """Those of a version, or the one that is named. Raises the errors of :func:`fetch`."""
        at = f"{self.address}/v2/models/{repository.name}/versions/{repository.revision}/files"
        content = parse_json(self.transfer.read(f"{at}/", _LIST.max_bytes + 1), f"{at}/", _LIST)
        entries = content.get("modelFiles") if isinstance(content, dict) else None
        if not isinstance(entries, list):
            raise _LIST.refusal(f"{_LIST.name} is none", f"{at}/", got=type(entries).__name__, wanted="modelFiles")
        files = [file for entry in entries if (file := _stated_by_ngc(entry, at)) is not None]
        return [file for file in files if file.name == repository.file] if repository.file else files


def _stated_by_ngc(entry: Any, url: str) -> StatedFile | None:
    """A file of NGC's list; None for another kind of name, and for what lacks facts."""
    if not isinstance(entry, dict):
        return None
    try:
        digest = base64.b64decode(str(entry.get("sha256_base64") or ""), validate=True).hex()
    except ValueError:
        return None
    return _file(entry.get("path"), entry.get("sizeInBytes"), digest, url) if len(digest) in (0, 64) else None


def _file(path: object, size: object, digest: str, url: str) -> StatedFile | None:
    """None for the name of another folder, for that of our record, and for what is no size."""
    name = str(path)
    if not _FILE_NAME.fullmatch(name) or name == RECORD or not isinstance(size, int) or size < 0:
        return None
    return StatedFile(name, f"{url}/{name}", size, digest)


_HOSTS: Mapping[str, type[_HuggingFace] | type[_Ngc]] = {PREFIX: _HuggingFace, NGC_PREFIX: _Ngc}


def _address(variable: str, default: str) -> str:
    """The address of a server that a variable of the environment gives. Raises UsageError: it is none."""
    address = (os.environ.get(variable) or default).strip().rstrip("/")
    with suppress(ValueError):  # such as an open bracket
        parts = urlsplit(address)
        has_more = parts.query or parts.fragment or "@" in parts.netloc
        if parts.scheme in ("http", "https") and parts.hostname and not has_more:
            return address
    shown = re.sub("//[^/]*@", "//...@", address)  # without a password
    raise UsageError("this is no address", place=variable, got=shown, wanted=f"such as {default}")


def _stated(entry: Any, url: str) -> StatedFile | None:
    """A file of the server's list; None for a folder, for another kind of name, and for what lacks facts."""
    if not isinstance(entry, dict) or entry.get("type") != "file":
        return None
    stored = entry.get("lfs")
    stated = stored if isinstance(stored, dict) else entry
    digest = str(stated.get("oid"))
    if not _DIGEST_OF[stated is stored].fullmatch(digest):
        return None
    return _file(entry.get("path"), stated.get("size"), digest, url)
