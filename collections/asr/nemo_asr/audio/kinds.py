"""Files in the place of bare samples of 16 bits: told by their first bytes. Nothing is opened or decoded in here."""

from __future__ import annotations

from nemo_asr.audio.reading import kind_of_audio

HEAD_BYTES = 4096
"""In which a file is told from samples."""

# Source: ISO/IEC 11172-3, 2.4.2.3, and 13818-3: kbit/s of layer III by the code, for MPEG 1 and for 2 and 2.5.
_MP3_BITRATES = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
)
_MP3_RATES = (44100, 48000, 32000, 0)  # of MPEG 1; half of it for 2, a quarter for 2.5


def kind_of_bytes(start: bytes) -> str:
    """The kind of the audio file that begins so; "": it may be samples.

    Args:
        start: some of its first bytes; `HEAD_BYTES` are enough.
    """
    kind = kind_of_audio(start)
    if kind not in ("MP3", "AAC") or start.startswith(b"ID3"):
        return kind or ""
    # Samples may be the first two bytes of a frame. A second frame behind it is no chance.
    header = int.from_bytes(start[:7].ljust(7, b"\0"), "big")
    if kind == "AAC":
        size = header >> 13 & 0x1FFF
    else:
        version, bitrate, rate = header >> 43 & 3, header >> 36 & 15, _MP3_RATES[header >> 34 & 3]  # version 3: MPEG 1
        unit = 144 if version == 3 else 72
        rate >>= {3: 0, 2: 1}.get(version, 2)
        size = unit * 1000 * _MP3_BITRATES[version != 3][bitrate] // rate + (header >> 33 & 1) if rate else 0
    return kind if size and start[size : size + 2] == start[:2] else ""
