"""A server in a thread that answers as Hugging Face and NGC do: a list of files, redirects, ranges, refusals."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

TOKEN = "hf_secret"


@dataclass
class Hub:
    """What the server has, and how it answers. Its store of large files is another server, at another port.

    Attributes:
        files: of the repository ``owner/name``.
        large: names of the files that are stored as Git LFS: redirected, with a SHA-256.
        private: whether a token is wanted.
        sent: what is sent in the place of a file's content.
        cut, cut_lists: after how many bytes of a content, or a list, the connection is cut, once each.
        refusals: codes for the next answers about files, each with its headers.
        takes_ranges: whether the store does.
        refused_by_store: a code for all its answers; 0: it has what it is asked for.
        asked: the path, the ``Range`` and the ``Authorization`` of each request.
    """

    files: dict[str, bytes]
    large: tuple[str, ...] = ("model.safetensors", "model.nemo")
    private: bool = False
    moved: str = ""
    sent: dict[str, bytes] = field(default_factory=dict)
    cut: list[int] = field(default_factory=list)
    cut_lists: list[int] = field(default_factory=list)
    refusals: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    takes_ranges: bool = True
    refused_by_store: int = 0
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    address: str = ""
    store: str = ""

    def listed_by_ngc(self) -> bytes:
        """NGC's answer about the files of a version: of those in ``large`` with a SHA-256."""
        entries = [
            {"path": name, "sizeInBytes": len(content)}
            | (
                {"sha256_base64": base64.b64encode(hashlib.sha256(content).digest()).decode()}
                if name in self.large
                else {}
            )
            for name, content in self.files.items()
        ]
        return json.dumps({"modelFiles": entries}).encode()

    def listed(self) -> bytes:
        """The answer about the files in a tree."""
        entries: list[dict[str, object]] = [{"type": "directory", "path": "onnx", "oid": "0" * 40, "size": 0}]
        for name, content in self.files.items():
            entry: dict[str, object] = {"type": "file", "path": name, "size": len(content)}
            if name in self.large:
                entry["oid"] = "1" * 40
                entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            else:
                entry["oid"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entries.append(entry)
        return json.dumps(entries).encode()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    is_store = False

    def log_message(self, *args: object) -> None:
        """Not on the terminal of the tests."""

    def do_GET(self) -> None:
        hub, path = self.hub, self.path
        self.hub.asked.append((path, self.headers["Range"], self.headers["Authorization"]))
        if self.is_store and hub.refused_by_store:
            self._answer(hub.refused_by_store, b"")
        elif self.is_store:
            self._content(path.removeprefix("/blob/"))
        elif hub.private and self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._answer(401, b"{}")
        elif hub.moved and hub.moved not in path:
            self._answer(307, b"", Location=path.replace("owner/name", hub.moved))
        elif "/tree/main" in path and (hub.moved or "owner/name") in path:
            self._answer(200, hub.listed(), hub.cut_lists)
        elif path.endswith("/versions/1.0.0rc1/files/"):
            self._answer(200, hub.listed_by_ngc())
        elif ("/resolve/main/" in path or "/versions/" in path) and (name := path.rpartition("/")[2]) in hub.files:
            if hub.refusals:
                code, headers = hub.refusals.pop(0)
                self._answer(code, b"", **headers)
            elif name in hub.large or "/versions/" in path:
                self._answer(302, b"", Location=f"{hub.store}/blob/{name}")
            else:
                self._content(name)
        else:
            self._answer(404, b"{}")

    def _content(self, name: str) -> None:
        content, start = self.hub.sent.get(name, self.hub.files[name]), 0
        if self.headers["Range"] and self.hub.takes_ranges:
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
        last = len(content) - 1
        headers = {"Content-Range": f"bytes {start}-{last}/{len(content)}"} if start else {}
        self._answer(206 if start else 200, content[start:], self.hub.cut if self.is_store else (), **headers)

    def _answer(self, code: int, content: bytes, cut: Sequence[int] = (), **headers: str) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if content and isinstance(cut, list) and cut:
            content = content[: cut.pop(0)]
        self.wfile.write(content)


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub with its addresses, until the block ends."""
    front, store = (type("_Of", (_Handler,), {"hub": hub, "is_store": is_store}) for is_store in (False, True))
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for handler in (front, store)]
    hub.address, hub.store = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


@contextmanager
def asked_here(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The same, in the place of Hugging Face, with a cache of its own, no token and no wish to be offline."""
    with serving(hub):
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("NGC_ENDPOINT", hub.address)
        monkeypatch.setenv("NEMO_LITE_CACHE", str(cache))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield hub
