"""Members of tar files, byte by byte: also such as tarfile does not write."""

from __future__ import annotations

import tarfile


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, **fields: object) -> bytes:
    """A header as tarfile writes it, and the content."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.PAX_FORMAT) + content + bytes(-len(content) % 512)
