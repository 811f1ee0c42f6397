"""Files from a server: whole and as it states them, or an error of one line.

Redirects, connections that break, servers that are busy: here alone, for models and for corpora. What a server states
of a file is its size, and often a digest.
"""

from __future__ import annotations

import hashlib
import http.client
import socket
import ssl
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from tqdm import tqdm

from nemo_lite.base.errors import CheckpointError, ModelNotFoundError, NemoLiteError
from nemo_lite.base.files import FileKind, digest_of_file, read_bytes, synchronise

# Any: a response of urllib.

MAX_TRIES = 5  # one after another, without a byte in between
MAX_WAIT_SECONDS = 120.0  # that a server may ask for
_TIMEOUT_SECONDS = 60
_CHUNK_BYTES = 1 << 20
_NETWORK = (URLError, ConnectionError, TimeoutError, ssl.SSLError, http.client.HTTPException)
_BROKE_OFF = "the connection broke off"
_DIGESTS = {64: "SHA-256", 40: "git's SHA-1"}
_OF_GIT = FileKind("the file", 256 << 20, CheckpointError)  # larger ones are of Git LFS


class StatedFile(NamedTuple):
    """A file as its server states it.

    Attributes:
        name: in its folder.
        url: of its content.
        bytes: its size.
        digest: a SHA-256, git's SHA-1 of a small file, or "" where the server states none.
    """

    name: str
    url: str
    bytes: int
    digest: str = ""

    def digest_of(self, path: Path) -> str:
        """The digest of a file, of the kind that the server states; "" for none."""
        if len(self.digest) != 40:
            return digest_of_file(path) if self.digest else ""
        content = read_bytes(path, _OF_GIT)
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()

    def sha256_of(self, path: Path) -> str:
        """The SHA-256 of a file that is as it is stated. It is read only where the server states another digest."""
        return self.digest if len(self.digest) == 64 else digest_of_file(path)

    def is_at(self, path: Path) -> bool:
        """Whether it is there, as it is stated."""
        return path.is_file() and path.stat().st_size == self.bytes and self.digest_of(path) == self.digest


@dataclass(frozen=True)
class Transfer:
    """What fetches from a server.

    Attributes:
        place: of errors: what is fetched, as its user calls it.
        token: of an account, which goes to the server that is asked and not to where it redirects; "" for none.
        refusals: by code, what an answer means, and what to do.
        error: the class of errors about what cannot be fetched.
        other_error: the class of errors about what is not as it is stated.
        remedy: what to do where it breaks off.
        address_remedy: what to do where the server cannot be reached, or sends one elsewhere.
    """

    place: str
    token: str = ""
    refusals: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    error: type[NemoLiteError] = ModelNotFoundError
    other_error: type[NemoLiteError] = CheckpointError
    remedy: str = "call it again: what has arrived is kept, and it goes on there"
    address_remedy: str = ""

    def read(self, url: str, max_bytes: int) -> bytes:
        """An answer, at most so many bytes of it. Raises the errors of :meth:`receive`."""

        def all_of(response: Any) -> bytes:
            data = _read(response, max_bytes)
            if response.length and len(data) < max_bytes:
                raise ConnectionError(_BROKE_OFF)
            return data

        data: bytes = self._tried(url, all_of)
        return data

    def size(self, url: str) -> int | None:
        """The size of a file, in bytes; None where the server states none. Raises the errors of :meth:`receive`."""
        size: int | None = self._tried(url, lambda response: _whole_number(response.headers.get("Content-Length")))
        return size

    def receive(self, file: StatedFile, part: Path, bar: tqdm[Any]) -> None:
        """Fill a file, going on where it ends; in the end it is whole and verified, or there is an error.

        Raises:
            ModelNotFoundError: the server does not give it; or `error`. What has arrived stays, for the next time.
            CheckpointError: it is not what the server stated; or `other_error`. Nothing stays.
        """
        part.touch()
        tries, most = 0, part.stat().st_size
        while part.stat().st_size < file.bytes:
            try:
                self._append(file, part, bar)
                error: Exception = ConnectionError(_BROKE_OFF)
            except _NETWORK as caught:
                error = caught
            size = part.stat().st_size
            if size < file.bytes:
                tries, most = (1, size) if size > most else (tries + 1, most)
                self._wait(error, tries, file.url)
        synchronise(part)
        size = part.stat().st_size
        digest = file.digest_of(part) if size == file.bytes else ""
        if size != file.bytes or digest != file.digest:
            part.unlink()
            got, wanted = f"{size} bytes", str(file.bytes)
            if digest:
                got, wanted = f"{_DIGESTS[len(digest)]} {digest}", file.digest
            remedy = "try again; if it stays so, tell its owner, or that of the mirror"
            problem = "the file is not what the server states"
            raise self.other_error(problem, place=file.url, got=got, wanted=wanted, remedy=remedy)

    def _append(self, file: StatedFile, part: Path, bar: tqdm[Any]) -> None:
        start = part.stat().st_size
        with self._open(file.url, {"Range": f"bytes={start}-"} if start else {}) as response:
            # What ignores the range sends all of the file again.
            goes_on = response.status == 206 and str(response.headers.get("Content-Range")).startswith(
                f"bytes {start}-"
            )
            if start and not goes_on:
                bar.update(-start)
                start = 0
            with open(part, "ab" if goes_on else "wb") as out:
                # One byte more than stated is enough to tell that it is another file.
                while chunk := _read(response, min(_CHUNK_BYTES, file.bytes + 1 - start)):
                    out.write(chunk)
                    start += len(chunk)
                    bar.update(len(chunk))

    def _tried(self, url: str, read: Any) -> Any:
        tries = 0
        while True:
            try:
                with self._open(url) as response:
                    return read(response)
            except _NETWORK as error:
                # A first question to a name that means no host: there is no network, or the name is wrong.
                unknown_host = isinstance(getattr(error, "reason", None), socket.gaierror)
                tries = MAX_TRIES if unknown_host else tries + 1
                self._wait(error, tries, url)

    def _open(self, url: str, headers: Mapping[str, str] = {}) -> Any:
        request = urllib.request.Request(url, headers={"User-Agent": "nemo_lite", **headers})  # noqa: S310 - checked
        if self.token:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        try:
            return urllib.request.build_opener(_Redirects(self)).open(request, timeout=_TIMEOUT_SECONDS)
        except HTTPError as error:
            error.close()
            # Of the server that is asked: where it redirects to, and what stands between, refuse for other reasons.
            if error.code in self.refusals and _host_of(error.url) == _host_of(url):
                problem, remedy = self.refusals[error.code]
                raise self.refusal(problem, f"{error.code} for {url}", remedy) from None
            raise
        except (ValueError, http.client.InvalidURL) as error:
            problem = "an address cannot be used: the server's, a proxy's, or where it redirects"
            raise self.refusal(problem, f'"{error}" for {url}', self.address_remedy) from None

    def _wait(self, error: Exception, tries: int, url: str) -> None:
        """Wait before the next try. Raises `error` where there is none."""
        seconds = float(2 ** (tries - 1))
        if isinstance(error, HTTPError):
            asked = _whole_number(error.headers.get("Retry-After"))
            seconds = seconds if asked is None else float(asked)
            if error.code not in (408, 429) and error.code < 500:
                got = f"{error.code} from {_host_of(error.url)} for {url}"
                raise self.refusal("the server refuses it", got, self.remedy) from None
            cause: object = error
        else:
            cause = error.reason if isinstance(error, URLError) else error
            cause = getattr(cause, "strerror", None) or cause
        if tries >= MAX_TRIES or seconds > MAX_WAIT_SECONDS:
            wait = f", which asks to wait for {seconds:g} s" if seconds > MAX_WAIT_SECONDS else ""
            remedy = "; ".join(filter(None, dict.fromkeys((self.remedy, self.address_remedy))))
            raise self.refusal("it cannot be downloaded", f'"{cause}" from {url}{wait}', remedy) from None
        # Not through print: the bar would stand in the same line.
        tqdm.write(f"{self.place}: {cause}; trying again in {seconds:g} s", file=sys.stderr)
        time.sleep(seconds)

    def refusal(self, problem: str, got: str, remedy: str, wanted: str = "") -> NemoLiteError:
        """The error about what cannot be fetched."""
        return self.error(problem, place=self.place, got=got, wanted=wanted, remedy=remedy)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirects, also to other hosts. The token does not go there, and https does not become http."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.scheme not in ("https", old.scheme):
            problem, got = "the server redirects to where nothing is fetched from", f"{new.scheme}://{new.netloc}"
            raise self._transfer.refusal(problem, got, self._transfer.address_remedy, wanted="https")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        token = req.unredirected_hdrs.get("Authorization")
        if request is not None and token and (old.scheme, old.netloc) == (new.scheme, new.netloc):
            request.add_unredirected_header("Authorization", token)
        return request


def _host_of(url: str) -> str:
    return urlsplit(url).netloc


def _read(response: Any, num_bytes: int) -> bytes:
    """At most so many bytes.

    Raises:
        URLError: the system's error about the network, which else is taken for one about the file that is written.
    """
    try:
        data: bytes = response.read(num_bytes)
    except OSError as error:
        raise URLError(error) from error
    return data


def _whole_number(header: str | None) -> int | None:
    text = (header or "").strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 18 else None
