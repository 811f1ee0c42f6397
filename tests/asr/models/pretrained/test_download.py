"""Published models: found in the cache, downloaded when asked for, checked; a clear line without a network."""

from __future__ import annotations

import io
import urllib.error
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from toys.nemo_archives import write_0

from nemo_asr.models import pretrained as download
from nemo_asr.models.pretrained import PUBLISHED, local_file
from nemo_lite.errors import CheckpointError, ModelNotFoundError

NAME = "QuartzNet15x5-En"


class Answer(io.BytesIO):
    """What a server answers."""

    def __init__(self, content: bytes, length: int) -> None:
        super().__init__(content)
        self.headers = Message()
        self.headers["Content-Length"] = str(length)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(download, "CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "QuartzNet15x5-En-Base.nemo"


def answering(monkeypatch: pytest.MonkeyPatch, content: bytes, length: int) -> list[str]:
    asked: list[str] = []

    def answer(url: str, timeout: float) -> Any:
        asked.append(url)
        return Answer(content, length)

    monkeypatch.setattr("urllib.request.urlopen", answer)
    return asked


def test_a_model_is_downloaded_once_and_again_when_asked(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_0(tmp_path / "server.nemo")
    content = (tmp_path / "server.nemo").read_bytes()
    asked = answering(monkeypatch, content, len(content))
    assert local_file(NAME, PUBLISHED) == local_file(NAME, PUBLISHED) == cache
    assert (asked, cache.read_bytes()) == ([PUBLISHED[NAME].location], content)
    local_file(NAME, PUBLISHED, refresh=True)
    assert len(asked) == 2
    assert "QuartzNet15x5-En-Base.nemo, SHA-256 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "length", "message"),
    [
        (b"half", 8, "the download is not complete: got 4 of 8 bytes"),
        (b"<html>", 6, "the .nemo archive is no tar file"),
    ],
)
def test_what_is_no_whole_model_is_not_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, length: int, message: str
) -> None:
    answering(monkeypatch, content, length)
    with pytest.raises(CheckpointError, match=message):
        local_file(NAME, PUBLISHED)
    assert list(cache.parent.iterdir()) == []


def test_without_a_network_the_line_says_so_and_where_the_file_is(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(url: str, timeout: float) -> Any:
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", fail)
    message = (
        f"{NAME}: there is no network to it: got Name or service not known; download https://api.ngc.nvidia.com/v2/"
    )
    with pytest.raises(FileNotFoundError, match=message) as caught:
        local_file(NAME, PUBLISHED)
    assert isinstance(caught.value, ModelNotFoundError)
    assert "\n" not in str(caught.value)


def test_another_name_is_answered_with_the_nearest(cache: Path) -> None:
    message = r'from_pretrained: there is no such model: got "QuartzNet15x5-Em" \(did you mean QuartzNet15x5-En\?\)'
    with pytest.raises(FileNotFoundError, match=message):
        local_file("QuartzNet15x5-Em", PUBLISHED)
