"""The head of a FLAC file against its first frame: what is changed in one of them alone is found."""

import pytest
from toys.hostile_audio import encoded, speech_like

from nemo_asr.run.audio.flac import check_flac
from nemo_lite.base.errors import DataError


def refusal(content):
    """The text of the refusal; "" where there is none."""
    try:
        check_flac(lambda size, start: content[start : start + size])
    except DataError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("num_channels", [1, 2, 4])
@pytest.mark.parametrize(("subtype", "rate"), [("PCM_16", 16000), ("PCM_24", 44100), ("PCM_S8", 655350)])
def test_files_of_libsndfile_agree_with_themselves(num_channels, subtype, rate):
    assert refusal(encoded(speech_like(6000, num_channels), "FLAC", subtype, rate)) == ""


@pytest.mark.parametrize(
    ("byte", "bit", "told"),
    [
        (18, 0x80, "got 16000 Hz, 2 channels, 16 bits, wanted 540288 Hz, 2 channels, 16 bits"),
        (20, 0x04, "got 16000 Hz, 2 channels, 16 bits, wanted 16000 Hz, 4 channels, 16 bits"),
        (21, 0x80, "got 16000 Hz, 2 channels, 16 bits, wanted 16000 Hz, 2 channels, 8 bits"),
    ],
    ids=["rate", "channels", "bits"],
)
def test_another_rate_or_number_of_channels_or_bits_in_the_head_is_found(byte, bit, told):
    content = bytearray(encoded(speech_like(6000, 2), "FLAC"))
    content[byte] ^= bit
    assert refusal(bytes(content)) == f"is damaged: its head and its first frame of samples disagree: {told}"


@pytest.mark.parametrize(("sizes", "told"), [((65535, 65535), "65535 to 65535"), ((16, 4095), "16 to 4095")])
def test_other_sizes_of_blocks_in_the_head_are_found_which_the_decoder_would_fill_with_zeros(sizes, told):
    content = encoded(speech_like(6000, 2), "FLAC")
    changed = content[:8] + sizes[0].to_bytes(2, "big") + sizes[1].to_bytes(2, "big") + content[12:]
    assert refusal(changed).endswith(f"disagree: got a frame of 4096 samples, wanted {told}")


@pytest.mark.parametrize("length", [1, 16, 192, 200, 256, 257, 576, 4096, 4097, 65535])
def test_files_of_any_length_agree_with_themselves(length):
    assert refusal(encoded(speech_like(length), "FLAC")) == ""


@pytest.mark.parametrize("byte", range(4, 42))
def test_two_bytes_lost_anywhere_in_the_head_are_found(byte):
    content = encoded(speech_like(6000, 2), "FLAC")
    assert refusal(content[:byte] + content[byte + 2 :]).startswith("is damaged: ")


@pytest.mark.parametrize("content", [b"fLaC", b"fLaC" + bytes(50), b"fLaC\0\0\0\x22" + bytes(34) + b"\1\0\0\0" * 1000])
def test_a_head_without_properties_and_one_without_end_are_refused(content):
    assert refusal(content).startswith("is damaged: ")
