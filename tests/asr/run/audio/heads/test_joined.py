"""Files that were joined by `cat`, that grew behind their head, or whose head knows no length: all of it is read."""

from __future__ import annotations

import io
import re
import struct

import numpy as np
import pytest
import soundfile
from toys.hostile_audio import RATE, chunk, encoded, format_chunk, rf64, speech_like, wav

from nemo_asr.run.audio import heads
from nemo_asr.run.audio.files import Window
from nemo_asr.run.audio.flac import FlacStream
from nemo_asr.run.audio.mp3 import frame_of
from nemo_asr.run.audio.reading import audio_seconds, read_audio
from nemo_lite.base.errors import DataError

KINDS = [
    ("WAV", "PCM_16"),
    ("WAV", "PCM_24"),
    ("WAV", "ULAW"),
    ("WAV", "FLOAT"),
    ("WAV", "IMA_ADPCM"),
    ("FLAC", "PCM_16"),
    ("OGG", "VORBIS"),
    ("OGG", "OPUS"),
    ("MP3", "MPEG_LAYER_III"),
    ("AIFF", "PCM_16"),
    ("AU", "PCM_16"),
    ("CAF", "PCM_16"),
    ("W64", "PCM_16"),
    ("NIST", "PCM_16"),
]


def samples_of(content, **options):
    return read_audio(content, sample_rate=None, **options).samples


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(heads, "_plans", type(heads._plans)())


@pytest.mark.parametrize(("kind", "subtype"), KINDS)
def test_joined_files_are_read_one_behind_the_other(kind, subtype, tmp_path, capsys):
    one = encoded(speech_like(9000, seed=1)[:, 0], kind, subtype)
    other = encoded(speech_like(5001, seed=2)[:, 0], kind, subtype)
    for content in ([one, other], [one, one], [other, one, other]):
        whole = np.concatenate([samples_of(each) for each in content])
        (tmp_path / "a").write_bytes(b"".join(content))
        for source in (str(tmp_path / "a"), b"".join(content)):
            np.testing.assert_array_equal(samples_of(source), whole)
            assert audio_seconds(source) == len(whole) / RATE
            begin = len(samples_of(content[0])) - 800  # across the place where they were joined
            part = samples_of(source, offset=begin / RATE, duration=0.1, exact=True)
            np.testing.assert_array_equal(part, whole[begin : begin + 1600])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("kind", ["WAV", "AIFF", "AU", "CAF", "W64", "NIST"])
def test_a_recording_of_another_format_behind_the_samples_is_none_of_them(kind, capsys):
    one, other = encoded(speech_like(9000, seed=1)[:, 0], kind), encoded(speech_like(9000, seed=2)[:, 0], "FLAC")
    np.testing.assert_array_equal(samples_of(one + other), np.concatenate([samples_of(one), samples_of(other)]))
    assert capsys.readouterr().err == ""


def test_what_has_another_rate_or_other_channels_is_left_out_and_told_in_seconds(capsys):
    one, other, stereo = (encoded(speech_like(8000, n), rate=rate) for n, rate in ((1, RATE), (1, 8000), (2, RATE)))
    np.testing.assert_array_equal(samples_of(one + other + stereo + one), np.tile(samples_of(one), 2))
    told = capsys.readouterr().err
    assert "warning: the audio holds 4 recordings: 1.000 s of 8000 Hz, 1 channel are left out; it begins with" in told
    assert "0.500 s of 16000 Hz, 2 channels are left out; it begins with 16000 Hz, 1 channel" in told


def test_a_damaged_recording_behind_another_is_refused_as_one_alone_is():
    content = encoded(speech_like(8000))
    with pytest.raises(DataError, match="is damaged: 16000 bytes of samples promised, 8000 are there"):
        samples_of(content + content[:-8000])


def counted_less(content, kind, count, whole):
    """With a head that counts so many samples of all."""
    numbers = {
        "WAV": [(b"data", "<I", 2)],
        "AIFF": [(b"SSND", ">I", 2)],
        "AU": [(b".snd\0\0\0\x18", ">I", 2)],
        "CAF": [(b"data", ">q", 2)],
        "W64": [(b"data\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a", "<Q", 2)],
    }
    changed = bytearray(content)
    if kind == "NIST":
        return content.replace(b"sample_count -i %d" % whole, b"sample_count -i %d" % count)
    if kind == "FLAC":
        packed = int.from_bytes(content[18:26], "big") - whole + count
        changed[18:26] = packed.to_bytes(8, "big")
    for mark, form, sample_bytes in numbers.get(kind, []):
        at = content.index(mark) + len(mark)
        (length,) = struct.unpack_from(form, content, at)
        struct.pack_into(form, changed, at, length - sample_bytes * (whole - count))
    return bytes(changed)


@pytest.mark.parametrize("kind", ["WAV", "AIFF", "AU", "CAF", "W64", "NIST", "FLAC"])
def test_samples_behind_those_that_the_head_counts_are_read(kind, capsys):
    samples = speech_like(8192)[:, 0]
    content = encoded(samples, kind)
    grown = counted_less(content, kind, 4096, len(samples))
    assert grown != content
    np.testing.assert_array_equal(samples_of(grown, name=f"a.{kind}"), samples_of(content))
    told = f"warning: a.{kind} holds more than its head counts, as a file that grew: it is read to its end"
    assert capsys.readouterr().err.count(told) == 1


@pytest.mark.parametrize(
    "behind",
    [
        bytes(100_000),
        chunk(b"LIST", b"INFO" + bytes(90_000)),
        chunk(b"elm1", bytes(range(256)) * 100),  # a chunk of a program's own
        chunk(b"LIST", b"\1" * 90_000, 80_000),
        b"TAG" + b"\1" * 125,
        b"\1" * 3000,
        b"<x:xmpmeta>of a camera</x:xmpmeta>\r\n" * 1000,
    ],
    ids=["zeros", "chunk", "own chunk", "chunk of a wrong size", "tag", "little", "text"],
)
def test_what_is_no_sound_behind_the_samples_is_left_out(behind, capsys):
    content = encoded(speech_like(8000))
    np.testing.assert_array_equal(samples_of(content + behind), samples_of(content))
    assert capsys.readouterr().err == ""


SAMPLES = speech_like(8000)[:, 0]
DATA = SAMPLES.tobytes()


def w64(size):
    content = bytearray(encoded(SAMPLES, "W64"))
    at = content.index(b"data") + 16
    content[at : at + 8] = size.to_bytes(8, "little")
    return bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        *(w64(size) for size in (0, 24, 2**63 - 1, 2**63, 2**64 - 1)),
        *(rf64(DATA, size) for size in (0, 2**63 - 1, 2**64 - 1)),
        *(wav(format_chunk(), chunk(b"data", DATA, size)) for size in (0, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000)),
        wav(format_chunk(), chunk(b"data", DATA, 0))[:4] + bytes(4) + wav(format_chunk(), chunk(b"data", DATA, 0))[8:],
        counted_less(encoded(SAMPLES, "FLAC"), "FLAC", 0, 8000),
        counted_less(encoded(SAMPLES, "AU"), "AU", 0, 8000),
        encoded(SAMPLES, "CAF").replace(b"data" + struct.pack(">q", 16004), b"data" + struct.pack(">q", -1)),
    ],
)
def test_a_size_that_the_writer_did_not_know_means_to_the_end(content, tmp_path):
    (tmp_path / "a").write_bytes(content)
    for source in (content, str(tmp_path / "a")):
        np.testing.assert_array_equal(samples_of(source), samples_of(encoded(SAMPLES)))
        assert audio_seconds(source) == 0.5


def test_an_empty_file_of_unknown_size_holds_no_samples():
    for content in (wav(format_chunk(), chunk(b"data", b"")), wav(format_chunk(), b"data\0\0\0\0LIST\4\0\0\0INFO")):
        with pytest.raises(DataError, match="the audio holds no samples"):
            samples_of(content)


@pytest.mark.parametrize(("kind", "lacking"), [("WAV", 44), ("AIFF", 36), ("AU", 44), ("CAF", 44), ("W64", 44)])
def test_a_lack_of_a_head_or_a_block_is_no_damage_in_any_format(kind, lacking):
    content = encoded(SAMPLES, kind)
    whole, cut = samples_of(content), samples_of(content[:-lacking])
    assert abs(len(whole) - len(cut) - lacking / 2) <= 8  # W64 and CAF fill up
    np.testing.assert_array_equal(cut, whole[: len(cut)])
    assert audio_seconds(content[:-lacking]) == len(cut) / RATE


def test_a_lack_of_a_block_is_no_damage_in_formats_of_blocks(tmp_path):
    samples = speech_like(5 * 44100)[:, 0]
    adpcm, flac, compressed = encoded(SAMPLES, "WAV", "IMA_ADPCM"), encoded(samples, "FLAC", rate=44100), vbr(6)
    stream = FlacStream(lambda count, at: flac[at : at + count], 0)
    last_frame = len(flac) - stream.last(len(flac)).at
    for content, cut, most in ((adpcm, 100, 1017), (flac, last_frame, 4096), (compressed, 20, 2 * 576)):
        whole, lacking = samples_of(content), samples_of(content[:-cut])
        assert 0 <= len(whole) - len(lacking) <= most
        # The last samples before a cut are decoded from fewer blocks.
        np.testing.assert_array_equal(lacking[: len(lacking) - 1200], whole[: len(lacking) - 1200])
        (tmp_path / "a").write_bytes(content[:-cut])
        assert len(samples_of(str(tmp_path / "a"), exact=True, offset=0.1)) > 0
    for cut in (50, 30_000):
        with pytest.raises(DataError, match="is damaged"):
            samples_of(flac[:-cut])


# MP3: frames with their own sizes; a count of them only where a head has it.


def mp3(samples, rate=RATE, subtype="MPEG_LAYER_III", **options):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="MP3", subtype=subtype, **options)
    return file.getvalue()


def without_head(content):
    """Without the frame that says how many there are."""
    assert re.search(b"Xing|Info", content[:64])
    return content[frame_of(content[:4]).num_bytes :]


def vbr(seconds, rate=RATE, num_channels=1):
    """Silence, then noise: libmpg123's guess from the mean of the first frames is far off."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.2, (seconds * rate // 2, num_channels))
    return mp3(np.concatenate([np.zeros_like(noise), noise]), rate, bitrate_mode="VARIABLE", compression_level=0.5)


ID3V2 = b"ID3\4\0\0\0\0\0\x0aTIT2\0\0\0\0\0\0"
ID3V1 = b"TAG" + bytes(125)
APE = b"APETAGEX" + struct.pack("<IIII", 2000, 64 + 32, 1, 0x80000000) + bytes(8 + 64 + 32)


@pytest.mark.parametrize("num_channels", [1, 2])
@pytest.mark.parametrize("rate", [8000, 11025, 16000, 24000, 32000, 44100])
def test_mp3_without_a_count_is_read_to_its_end(rate, num_channels):
    content = vbr(8, rate, num_channels)
    frame = frame_of(without_head(content)[:4])
    for tagged in (
        without_head(content),
        without_head(content) + ID3V1,
        ID3V2 + without_head(content) + ID3V1,
        ID3V2 + without_head(content) + APE,
    ):
        samples = samples_of(tagged)
        # One frame of filling at the beginning or the end stays without LAME's head.
        assert 0 <= len(samples) - 8 * rate <= 3 * frame.num_samples
        assert audio_seconds(tagged) == len(samples) / rate
        part = samples_of(tagged, offset=6.0, duration=0.5, exact=True)
        np.testing.assert_array_equal(part, samples[6 * rate : 6 * rate + rate // 2])


def test_mp3_whose_head_counts_the_first_part_alone_is_read_to_its_end(capsys):
    content = vbr(6)
    count_at = re.search(b"Xing|Info", content).end() + 4
    changed = bytearray(content)
    struct.pack_into(">II", changed, count_at, 100, 9000)
    assert len(samples_of(bytes(changed), name="a.mp3")) >= 6 * RATE
    assert "a.mp3 holds more than its head counts" in capsys.readouterr().err


def test_mp3_that_lacks_more_than_its_head_allows_is_damaged():
    content = vbr(6)
    with pytest.raises(DataError, match=r"is damaged: 96000 samples promised, \d+ could be read"):
        samples_of(content[: len(content) * 3 // 4])


def test_mp3_with_and_without_heads_may_be_joined():
    one, other = vbr(4), vbr(2)
    for content in (one + other, one + ID3V1 + ID3V2 + other):
        np.testing.assert_array_equal(samples_of(content), np.concatenate([samples_of(one), samples_of(other)]))
    for content in (without_head(one) + other, one + without_head(other), without_head(one) + without_head(other)):
        assert 0 <= len(samples_of(content)) - 6 * RATE <= 3 * 1152


def test_mp3_in_wav_is_read_to_its_end():
    stream = without_head(vbr(4))
    head = struct.pack("<HHIIHHHHIHHH", 0x55, 1, RATE, 4000, 1, 0, 12, 1, 2, 144, 1, 0)
    for content in (
        wav(chunk(b"fmt ", head), chunk(b"fact", bytes(4)), chunk(b"data", stream)),
        wav(chunk(b"fmt ", head), chunk(b"data", stream, 0xFFFFFFFF)),
        wav(chunk(b"fmt ", head), chunk(b"data", stream), chunk(b"LIST", b"INFO")),
    ):
        np.testing.assert_array_equal(samples_of(content), samples_of(stream))


def test_flac_behind_a_tag_is_flac():
    content = encoded(SAMPLES, "FLAC")
    np.testing.assert_array_equal(samples_of(ID3V2 + content), samples_of(content))
    np.testing.assert_array_equal(samples_of(ID3V2 + content + content), np.tile(samples_of(content), 2))


# The pieces of it.


def test_a_window_is_a_file_of_stretches_and_of_bytes_in_their_place():
    content = bytes(range(200))
    window = Window(lambda count, at: content[at : at + count], [range(10, 20), b"abc", range(50, 60)])
    whole = content[10:20] + b"abc" + content[50:60]
    assert window.read() == whole
    assert window.size == len(whole) == 23
    for at in (11, 0, 22, 23, 5):
        assert window.seek(at) == window.tell() == at
        assert window.read(7) == whole[at : at + 7]
    assert window.seek(-2, 2) == 21
    assert window.seek(-100, 1) == 21
    assert window.read_at(100, 9) == whole[9:]


@pytest.mark.parametrize("seed", range(20))
def test_damaged_heads_of_joined_files_end_in_samples_or_in_one_line(seed):
    rng = np.random.default_rng(seed)
    for kind, subtype in KINDS:
        content = bytearray(2 * encoded(speech_like(3000)[:, 0], kind, subtype))
        for place in rng.integers(0, len(content), 6):
            content[place] = int(rng.integers(256))
        content, told = bytes(content)[: int(rng.integers(1, len(content)))], ""
        try:
            assert len(samples_of(content)) > 0
        except DataError as error:
            told = str(error)
        assert "\n" not in told


def test_mp3_with_a_hole_is_read_on_and_what_is_no_sound_at_its_end_is_told(capsys):
    content = without_head(vbr(4))
    rubbish = np.random.default_rng(1).bytes(3000).replace(b"\xff", b"\xfe")
    half = frame_of(content[:4]).num_bytes
    while half < len(content) // 2:
        half += frame_of(content[half : half + 4]).num_bytes
    holed = content[:half] + rubbish + content[half:]
    assert len(samples_of(holed)) == len(samples_of(content))
    assert capsys.readouterr().err == ""
    np.testing.assert_array_equal(samples_of(content + 100 * rubbish, name="b.mp3"), samples_of(content))
    told = f"b.mp3 is read up to byte {len(content)}: the 300000 bytes behind it are left out"
    assert told in capsys.readouterr().err


def test_many_recordings_in_one_file_are_read_and_those_beyond_are_told(monkeypatch, capsys):
    content = encoded(speech_like(50))
    np.testing.assert_array_equal(samples_of(300 * content), np.tile(samples_of(content), 300))
    monkeypatch.setattr(heads, "_MOST_PARTS", 5)
    assert len(samples_of(9 * content, name="c.wav")) == 5 * 50
    assert f"c.wav is read up to byte {5 * len(content)}" in capsys.readouterr().err
