"""A kind of manifest as a user would write it: seconds, audio file, text and class of a line, separated by tabs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nemo_asr.run.manifest_kinds import Line, Source, register_manifest


@register_manifest
class TabSeparated(Source):
    suffixes = (".tsv",)

    def entries(self) -> Iterator[tuple[int, int, Line | str]]:
        offset = 0
        for number, raw in enumerate(Path(self.path).read_bytes().splitlines(keepends=True), 1):
            yield offset, number, _line_of(raw)
            offset += len(raw)

    def line(self, offset: int) -> Line:
        self.descriptor()  # an error where the file has changed
        with open(self.path, "rb") as file:
            file.seek(offset)
            line = _line_of(file.readline())
        assert isinstance(line, Line)
        return line


def _line_of(raw: bytes) -> Line | str:
    try:
        seconds, path, text, label = raw.decode().rstrip("\n").split("\t")
        return Line(float(seconds), path, text=text, label=label)
    except ValueError:
        return "a line has seconds, a file, a text and a class, with tabs between them"
