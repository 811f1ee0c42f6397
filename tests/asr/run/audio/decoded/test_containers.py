"""Audio that PyAV decodes: exact parts, channels, damage in one line; and what is said without it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import soundfile

from nemo_asr.data.examined import examine
from nemo_asr.data.speech_data_layer import AudioToTextDataLayer
from nemo_asr.run.audio import decoded, kinds
from nemo_asr.run.audio.kinds import audio_suffixes
from nemo_asr.run.audio.reading import audio_seconds, open_part, read_audio
from nemo_asr.run.transcribe.inputs import recordings_of
from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.base.errors import DataError, UsageError

RATE = 16000
HAS_AV, FFMPEG = kinds.has_av(), shutil.which("ffmpeg")  # ffmpeg makes files here
AMR = b"#!AMR\n" + b"".join(bytes([0x3C]) + bytes((7 * n + 13 * k) % 256 for k in range(31)) for n in range(50))
needs_av = pytest.mark.skipif(not HAS_AV, reason="PyAV is not installed")


def tones(num_samples, num_channels=1):
    times = np.arange(num_samples) / RATE
    return np.stack([0.3 * np.sin(2 * np.pi * (440 + 220 * channel) * times) for channel in range(num_channels)], 1)


def make(path, samples, codec="aac"):
    """Encode samples of 16 kHz with what is installed."""
    if FFMPEG:
        soundfile.write(path.with_suffix(".source.wav"), samples, RATE)
        words = [FFMPEG, "-y", "-v", "error", "-i", str(path.with_suffix(".source.wav"))]
        subprocess.run([*words, "-c:a", codec, str(path)], check=True)
        path.with_suffix(".source.wav").unlink()
        return str(path)
    import av

    layout = "mono" if samples.shape[1] == 1 else "stereo"
    rate = 48000 if codec == "libopus" else RATE
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T, np.float32), "fltp", layout)
        frame.sample_rate, frame.pts = RATE, 0
        resampler = av.AudioResampler(stream.codec_context.format.name, layout, rate, stream.codec_context.frame_size)
        for some in (*resampler.resample(frame), *resampler.resample(None), None):
            container.mux(stream.encode(some))
    return str(path)


@pytest.fixture
def decoder(monkeypatch):
    """PyAV, and nothing is kept from one test for another."""
    if not HAS_AV:
        pytest.skip("PyAV is not installed")
    monkeypatch.setattr(decoded, "_kept", OrderedDict())


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.setattr(kinds, "has_av", lambda: False)
    monkeypatch.setattr(decoded, "_kept", OrderedDict())


# FFmpeg's encoder fills up to a multiple of 32 samples.
@pytest.mark.parametrize("num_samples", [RATE, RATE + 32, 3 * RATE + 992])
def test_as_many_samples_are_read_as_were_encoded(num_samples, decoder, tmp_path):
    path = make(tmp_path / "a.m4a", tones(num_samples))
    audio = read_audio(path, sample_rate=None)
    assert (len(audio.samples), audio.source_rate, audio.num_channels) == (num_samples, RATE, 1)
    middle = slice(4096, num_samples - 4096)  # an onset and an end ring
    np.testing.assert_allclose(audio.samples[middle], tones(num_samples)[middle, 0], atol=0.02)
    assert audio_seconds(path) == num_samples / RATE
    assert read_audio(Path(path).read_bytes(), sample_rate=None).samples.tobytes() == audio.samples.tobytes()


def test_a_part_is_to_the_bit_that_of_the_whole(decoder, tmp_path, monkeypatch):
    path = make(tmp_path / "a.m4a", tones(2 * RATE, 2))
    whole = read_audio(path, sample_rate=None).samples
    monkeypatch.setattr("nemo_asr.run.audio.files._PIECE_VALUES", 1000)
    part = read_audio(path, sample_rate=None, offset=0.3, duration=0.4).samples
    assert part.tobytes() == whole[4800:11200].tobytes()
    assert "beyond the end" in refusal(path, offset=1.9, duration=1.0)
    assert "disagrees with" in refusal(path, duration=1.0)


def test_tags_in_another_encoding_than_utf_8_do_not_matter(decoder, tmp_path):
    content = Path(make(tmp_path / "a.m4a", tones(RATE))).read_bytes()
    assert b"Lavf" in content  # the program that wrote it
    assert len(read_audio(content.replace(b"Lavf", b"\xe4avf"), sample_rate=None).samples) == RATE


def test_a_channel_is_that_channel(decoder, tmp_path):
    path = make(tmp_path / "a.m4a", tones(RATE, 2))
    for channel in range(2):
        samples = read_audio(path, sample_rate=None, channel=channel).samples
        np.testing.assert_allclose(samples[1024:-1024], tones(RATE, 2)[1024:-1024, channel], atol=0.03)
    assert "has no channel 2: wanted a channel from 0 to 1" in refusal(path, channel=2)


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.webm", "libopus"),
        ("a.mp4", "aac"),
        ("a.mka", "flac"),
        ("a.wma", "wmav2"),
        ("a.ts", "aac"),
        ("a.m2ts", "mp2"),
        ("a.avi", "pcm_s16le"),
        ("a.ac3", "ac3"),
        ("a.eac3", "eac3"),
        ("a.mp2", "mp2"),
        ("a.caf", "alac"),
        ("a.oga", "flac"),
    ],
)
def test_other_containers_are_read(name, codec, decoder, tmp_path):
    if name not in ("a.webm", "a.mp4", "a.mka") and not FFMPEG:
        pytest.skip("PyAV cannot make one")
    path = make(tmp_path / name, tones(RATE), codec)
    audio = read_audio(path, sample_rate=RATE)
    assert abs(len(audio.samples) - RATE) <= 2048
    spectrum = np.abs(np.fft.rfft(audio.samples))
    assert spectrum.argmax() * RATE / len(audio.samples) == pytest.approx(440, abs=2)


def test_telephones_amr_is_read(decoder, tmp_path):
    (tmp_path / "a.amr").write_bytes(AMR)
    audio = read_audio(str(tmp_path / "a.amr"), sample_rate=None)
    assert (len(audio.samples), audio.source_rate) == (50 * 160, 8000)


def test_a_long_file_is_decoded_once_and_a_changed_one_again(decoder, tmp_path, monkeypatch):
    path = make(tmp_path / "a.m4a", tones(RATE))
    calls, decode = [], decoded._decode
    monkeypatch.setattr(decoded, "_decode", lambda *given: calls.append(1) or decode(*given))
    with open_part(path) as one, open_part(path, offset=0.5) as other:  # both at once
        assert [len(next(part.pieces())) for part in (one, other)] == [RATE, RATE // 2]
    assert len(calls) == 1
    make(tmp_path / "a.m4a", tones(2 * RATE))
    assert audio_seconds(path) == 2.0
    assert len(calls) == 2


def test_what_is_kept_is_bounded(decoder, tmp_path, monkeypatch):
    monkeypatch.setattr(decoded, "KEPT_BYTES", 4 * RATE)
    for number in range(3):
        audio_seconds(make(tmp_path / f"{number}.m4a", tones(RATE)))
    assert len(decoded._kept) == 1
    monkeypatch.setattr(decoded, "_MOST_BYTES", 4000)
    monkeypatch.setattr(decoded, "_kept", OrderedDict())
    told = refusal(str(tmp_path / "0.m4a"))
    assert told.endswith("0.m4a is too long: wanted at most 0 GiB of samples; convert it to FLAC, or cut it")


def test_a_file_that_ends_early_is_damaged_and_never_short(decoder, tmp_path):
    content = Path(make(tmp_path / "a.m4a", tones(20 * RATE))).read_bytes()
    for share in (0.1, 0.5, 0.9):
        assert "is damaged" in refusal(content[: int(share * len(content))])


def test_an_mp4_file_without_its_index_says_so_and_what_to_do():
    start, samples = b"\0\0\0\x10ftypM4A \0\0\2\0", b"\0\0\1\0mdat" + bytes(248)
    remedy = "copy it anew; a recording that was broken off may never have had it"
    assert refusal(start + samples) == f"the audio is damaged: the index of its samples (moov) is missing; {remedy}"
    assert refusal(start + samples[:-50]) == (
        "the audio is damaged: 272 bytes promised, 222 are there; copy it anew: its end is missing"
    )
    longer = b"\0\0\0\1mdat" + (1 << 40).to_bytes(8, "big")
    assert f"{(1 << 40) + 16} bytes promised, 32 are there" in refusal(start + longer)
    boxes = start + b"\0\0\0\x08free" * 2000  # of many boxes the rest is not looked at
    assert "moov" not in refusal(boxes + b"\0\0\1\0moov")


def test_a_webm_file_that_ends_before_its_length_is_damaged(decoder, tmp_path):
    content = Path(make(tmp_path / "a.webm", tones(20 * RATE), "libopus")).read_bytes()
    told = refusal(content[: int(0.6 * len(content))])
    promised, held = map(
        float, re.fullmatch(r"the audio is damaged: (.*) s promised, (.*) s could be read", told).groups()
    )
    assert promised == pytest.approx(20, abs=0.1)
    assert 10 < held < 14


@pytest.mark.skipif(not (HAS_AV and FFMPEG), reason="PyAV and ffmpeg are needed to make such a file")
def test_a_file_that_ends_between_two_packets_is_damaged(decoder, tmp_path):
    import av

    command = [str(FFMPEG), "-v", "error", "-i", make(tmp_path / "a.m4a", tones(20 * RATE)), "-c", "copy"]
    # The index at the beginning, so that all but the samples is there.
    subprocess.run([*command, "-movflags", "+faststart", str(tmp_path / "b.m4a")], check=True)
    with av.open(str(tmp_path / "b.m4a")) as container:
        starts = [packet.pos for packet in container.demux() if packet.pos]
    content = (tmp_path / "b.m4a").read_bytes()
    for end in (starts[-100], starts[-100] + 7):
        assert "is damaged" in refusal(content[:end])


def remuxed(source, path, change, last=None):
    """The packets of a file in another one: heard at ``change(seconds)``, or left out for None; the last one lasts."""
    import av

    with av.open(source) as old, av.open(str(path), "w") as new:
        stream, first = new.add_stream_from_template(old.streams.audio[0]), None
        packets = [packet for packet in old.demux(old.streams.audio[0]) if packet.dts is not None]
        if last is not None:
            packets[-1].duration = round(last / packets[-1].time_base)
        for packet in packets:
            at = float(packet.pts * packet.time_base)
            first = at if first is None else first
            at -= first
            if (moved := change(at)) is not None:
                packet.pts += round((moved - at) / packet.time_base)
                packet.dts += round((moved - at) / packet.time_base)
                packet.stream = stream
                new.mux(packet)
    return str(path)


def loud_spans(path, **options):
    """Seconds in which there is sound, to 50 ms, and the length."""
    audio = read_audio(path, sample_rate=None, **options)
    hop = audio.source_rate // 20
    levels = np.abs(audio.samples[: len(audio.samples) // hop * hop]).reshape(-1, hop).max(axis=1) > 0.05
    edges = np.flatnonzero(np.diff(np.concatenate([[False], levels, [False]]))) / 20
    return edges.reshape(-1, 2).tolist(), len(audio.samples) / audio.source_rate


TIMED = [("a.mkv", "libopus"), ("a.webm", "libopus"), ("a.m4a", "aac"), ("a.mkv", "aac"), ("a.ts", "aac")]


@needs_av
@pytest.mark.parametrize(("name", "codec"), TIMED)
def test_a_pause_of_the_container_is_silence_and_times_behind_it_are_right(name, codec, decoder, tmp_path):
    source = make(tmp_path / f"source{name[1:]}", tones(3 * RATE), codec)
    for change, loud in (
        (lambda at: at if at < 1 else at + 2, [[0, 1], [3, 5]]),  # it stops for a while
        (lambda at: None if 1 <= at < 1.5 else at, [[0, 1], [1.5, 3]]),  # packets are lost
    ):
        path = remuxed(source, tmp_path / name, change)
        spans, seconds = loud_spans(path)
        np.testing.assert_allclose(spans, loud, atol=0.13)  # a packet of AAC lasts 64 ms
        assert seconds == pytest.approx(loud[-1][1], abs=0.1)
        assert audio_seconds(path) == seconds
        part = read_audio(path, sample_rate=None, offset=0.8, duration=2.0, strict=False)
        whole = read_audio(path, sample_rate=None).samples
        begin = round(0.8 * part.source_rate)
        assert part.samples.tobytes() == whole[begin : begin + len(part.samples)].tobytes()
        assert loud_spans(Path(path).read_bytes()) == (spans, seconds)


@needs_av
@pytest.mark.parametrize(("name", "codec"), [each for each in TIMED if each[0] != "a.ts"])
def test_sound_that_begins_late_does_so_in_what_is_read(name, codec, decoder, tmp_path):
    source = make(tmp_path / f"source{name[1:]}", tones(2 * RATE), codec)
    path = remuxed(source, tmp_path / name, lambda at: at + 1.5)
    spans, seconds = loud_spans(path)
    np.testing.assert_allclose(spans, [[1.5, 3.5]], atol=0.13)
    assert seconds == pytest.approx(3.5, abs=0.15)


@needs_av
def test_a_last_packet_that_lasts_is_followed_by_silence(decoder, tmp_path):
    path = remuxed(make(tmp_path / "source.m4a", tones(2 * RATE)), tmp_path / "a.m4a", lambda at: at, last=1.5)
    spans, seconds = loud_spans(path)
    np.testing.assert_allclose(spans, [[0, 2]], atol=0.13)
    assert seconds == pytest.approx(3.5, abs=0.1)


@needs_av
def test_small_differences_of_times_put_no_silence_between_frames(decoder, tmp_path):
    source = make(tmp_path / "source.mkv", tones(3 * RATE), "libopus")
    rng = np.random.default_rng(0)
    path = remuxed(source, tmp_path / "a.mkv", lambda at: max(0, at + rng.uniform(-0.004, 0.004)))
    plain, moved = (read_audio(each, sample_rate=None).samples for each in (source, path))
    assert abs(len(plain) - len(moved)) < 100
    np.testing.assert_array_equal(plain[-48000:], moved[-48000:])


@needs_av
@pytest.mark.parametrize("jump", [3 * 3600, 1e6])
def test_times_that_jump_are_no_hours_of_silence(jump, decoder, tmp_path, capsys):
    source = make(tmp_path / "source.mkv", tones(3 * RATE), "libopus")
    path = remuxed(source, tmp_path / f"{jump:g}.mkv", lambda at: at if at < 1.5 else at + jump)
    assert audio_seconds(path) == pytest.approx(3, abs=0.1)
    told = f"{path}: times in it jump by {jump:.0f} s, which is no silence: it is read without them"
    assert told in capsys.readouterr().err
    path = remuxed(source, tmp_path / f"begins at {jump:g}.mkv", lambda at: at + jump)
    assert audio_seconds(path) == pytest.approx(3, abs=0.1)


def test_bytes_that_only_begin_like_a_container_are_refused_in_one_line(decoder):
    for start in (
        b"\0\0\0\x20ftypM4A ",
        b"\x1a\x45\xdf\xa3",
        b"#!AMR\n",
        b"\xff\xf1",
        b"\x30\x26\xb2\x75\x8e\x66\xcf\x11",
    ):
        for rest in (b"", bytes(500), b"#EXTM3U\nfile:///etc/passwd\n" * 20, np.random.default_rng(0).bytes(3000)):
            refusal(start + rest)


def test_a_playlist_is_no_audio_and_is_not_followed(decoder, tmp_path):
    (tmp_path / "a.m4a").write_text("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nsecret.m4a\n")
    assert "is not a WAV" in refusal(str(tmp_path / "a.m4a"))


def test_a_film_without_sound_holds_no_audio(decoder, tmp_path):
    if not FFMPEG:
        pytest.skip("ffmpeg is not installed")
    command = [FFMPEG, "-v", "error", "-f", "lavfi", "-i", "color=size=32x32:duration=1", "-an"]
    subprocess.run([*command, str(tmp_path / "a.mp4")], check=True)
    assert "holds no audio" in refusal(str(tmp_path / "a.mp4"))


@needs_av
def test_a_watch_ends_the_decoding_as_soon_as_it_may(decoder, tmp_path):
    told = []

    def watch(num_values):
        told.append(num_values)
        raise DataError("it is enough")

    path = make(tmp_path / "a.m4a", tones(20 * RATE))
    for source in (path, Path(path).read_bytes()):
        with pytest.raises(DataError, match="it is enough"), open_part(source, watch=watch):
            pass
    assert len(told) == 2
    assert max(told) <= 17 * RATE
    assert not decoded._kept


@pytest.mark.parametrize("kind", ["FLAC", "WAV", "OGG"])
def test_a_watch_ends_the_reading_of_pieces(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("nemo_asr.run.audio.files._PIECE_VALUES", 2000)
    told = []

    def watch(num_values):
        told.append(num_values)
        if num_values > 5000:
            raise DataError("it is enough")

    soundfile.write(tmp_path / "a", tones(RATE, 2), RATE, format=kind)
    with open_part(str(tmp_path / "a"), exact=True, watch=watch) as part:
        pieces = part.pieces()
        assert [len(next(pieces)) for _ in range(2)] == [1000, 1000]
        with pytest.raises(DataError, match="it is enough"):
            next(pieces)
    assert told == [2000, 4000, 6000]


def test_a_full_disk_is_one_line(decoder, tmp_path, monkeypatch):
    path = make(tmp_path / "a.m4a", tones(RATE))

    def full(self, samples):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(decoded.DecodedWriter, "add", full)
    assert "(No space left on device); free space there, or set TMPDIR" in refusal(path)


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.webm", "libopus"),
        ("a.m4a", "aac"),
        ("a.aac", "aac"),
        ("a.wma", "wmav2"),
        ("a.oga", "flac"),
        ("a.ts", "aac"),
        ("a.avi", "pcm_s16le"),
    ],
)
def test_joined_files_are_read_one_behind_the_other(name, codec, decoder, tmp_path):
    if not FFMPEG:
        pytest.skip("ffmpeg makes the files")
    one, other = (
        Path(make(tmp_path / f"{seconds}{name}", tones(seconds * RATE), codec)).read_bytes() for seconds in (2, 1)
    )
    alone = [read_audio(each, sample_rate=None).samples for each in (one, other)]
    whole = read_audio(one + other, sample_rate=None).samples
    if name in ("a.aac", "a.ts"):  # frames that go on: the decoder hears them as one
        assert len(whole) == pytest.approx(sum(map(len, alone)), abs=0.15 * RATE)
    else:
        np.testing.assert_array_equal(whole, np.concatenate(alone))
    rate = read_audio(one, sample_rate=None).source_rate
    part = read_audio(one + other, sample_rate=None, offset=1.9, duration=0.2).samples
    assert part.tobytes() == whole[round(1.9 * rate) :][: len(part)].tobytes()


def test_joined_amr_is_read_one_behind_the_other(decoder):
    assert len(read_audio(AMR + AMR, sample_rate=None).samples) == 2 * 50 * 160


def test_the_codecs_of_a_caf_file_that_libsndfile_reads_need_no_decoder(nothing_installed, tmp_path):
    soundfile.write(tmp_path / "a.caf", tones(RATE), RATE, "PCM_24")
    assert audio_seconds(str(tmp_path / "a.caf")) == 1.0
    soundfile.write(tmp_path / "b.caf", tones(RATE), RATE, "ALAC_16")
    assert "is CAF (ALAC and others), which only PyAV decodes; pip" in refusal(str(tmp_path / "b.caf"))


@needs_av
def test_training_checks_and_transcription_read_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "a.m4a", tones(RATE, 2))
    line = {"audio_filepath": "a.m4a", "offset": 0.25, "duration": 0.5, "text": "a", "channel": 1}
    (tmp_path / "train.json").write_text(json.dumps(line) + "\n")
    layer = AudioToTextDataLayer("train.json", ["a"], 1, shuffle=False)
    (batch,) = layer.loader(training=True, shard=Shard()).epoch(0)
    assert batch.values[0].shape == (1, RATE // 2)
    (item,) = examine("train.json").items
    assert (item.seconds, item.num_channels, item.problem) == (0.5, 2, "")
    (recording,) = recordings_of(["train.json"])
    np.testing.assert_array_equal(recording.read(RATE).samples, batch.values[0][0].numpy())
    (found,) = recordings_of([str(tmp_path)])  # folders too
    assert found.source.endswith("a.m4a")
    assert [each.channel for each in recordings_of(["a.m4a"], "each")] == [0, 1]


def test_without_a_decoder_the_error_names_the_extra(nothing_installed, tmp_path):
    remedy = "pip install av (the extra formats of nemo-lite); or convert it to 16-bit WAV or FLAC"
    (tmp_path / "a.amr").write_bytes(AMR)
    told = refusal(str(tmp_path / "a.amr"))
    assert told.endswith(f"a.amr is AMR, which only PyAV decodes; {remedy}")
    assert ".m4a" not in audio_suffixes()
    with pytest.raises(UsageError, match=r"can be decoded by PyAV only: got a\.amr; pip install av"):
        recordings_of([str(tmp_path)])


def test_without_a_decoder_a_folder_says_what_it_leaves_out(nothing_installed, tmp_path, capsys):
    soundfile.write(tmp_path / "b.wav", tones(100), RATE)
    (tmp_path / "a.amr").write_bytes(AMR)
    (found,) = recordings_of([str(tmp_path)])
    assert found.source.endswith("b.wav")
    assert "1 file left out (a.amr): pip install av" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["https://host/a.wav", "http://host/a.m4a", "s3://bucket/a.wav", "HTTPS://host/a.wav"])
def test_an_address_is_refused_with_what_to_do(name, tmp_path):
    told = f"the audio file {name} is an address, no file; download it first, and name the file"
    assert refusal(name) == told
    (recording,) = recordings_of([name])
    assert recording.audio == name
    (tmp_path / "train.json").write_text(json.dumps({"audio_filepath": name, "duration": 1, "text": "a"}) + "\n")
    (item,) = examine(str(tmp_path / "train.json")).items
    assert item.problem == f"{tmp_path}/train.json:1: {told}"


def test_the_address_of_a_manifest_is_refused():
    for read in (examine, lambda name: recordings_of([name])):
        with pytest.raises(DataError, match="is an address, no file; download it first, and name the file"):
            read("https://host/train.json")


def refusal(source, **arguments):
    with pytest.raises(DataError) as error:
        read_audio(source, sample_rate=RATE, **arguments)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)
