"""Kaldi's matrices: the values that Kaldi's own code reads from the same bytes, and every kind of damage."""

import base64
import struct
import tracemalloc

import numpy as np
import pytest

from nemo_asr.data.kaldi import HEADER_BYTES, header_of, matrix_of
from nemo_lite.errors import DataError

PLAIN = [
    [1.3823, 3.2865, 1.3217],
    [-5.2126, 3.6214, 1.7855],
    [-2.1478, 2.3245, 1.4583],
    [1.1765, 0.1137, 2.1869],
    [-2.9458, -0.6516, -1.9285],
]
# Written by kaldiio 2.18.1, read by kaldi-native-io 1.23.0, which is Kaldi's code: the bytes, and the values.
MATRICES = {
    "FM": (
        "AEJGTSAEBQAAAAQDAAAAafCwP5FVUkAML6k/282mwGfFZ0A1i+Q/xHUJwCjEFEA8qbo/iZiWP8PV6D1i9QtAQYg8wN7RJr9Y2Pa/",
        PLAIN,
    ),
    "DM": (
        "AEJETSAEBQAAAAQDAAAAAAAAIA0e9j8AAAAgskoKQAAAAIDhJfU/AAAAYLvZFMAAAADgrPgMQAAAAKBmkfw/AAAAgLguAcAAAAAAhZgCQAAA"
        "AIAnVfc/AAAAIBHT8j8AAABguBq9PwAAAECsfgFAAAAAIAiRB8AAAADAO9rkvwAAAAAL2/6/",
        PLAIN,
    ),
    "CM": (
        "AEJDTSDbzabAR1gNQQUAAAADAAAAAACwQSa5HL8rhFmaSvb//ytfW73Lym3W/wBZwEDA/5lAAEDAZv8A",
        [
            [1.3823, 3.2864, 1.3218],
            [-5.2126, 3.6214, 1.7855],
            [-2.1407, 2.3197, 1.4594],
            [1.1766, 0.1137, 2.1869],
            [-2.9458, -0.6517, -1.9285],
        ],
    ),
    "CM2": (
        "AEJDTTIg282mwEdYDUEFAAAAAwAAABy/SvZbvQAA///LytBYatpQwSa5WZpt1rBBK4QrXw==",
        [
            [1.3823, 3.2864, 1.3218],
            [-5.2126, 3.6214, 1.7855],
            [-2.1478, 2.3245, 1.4583],
            [1.1766, 0.1137, 2.1869],
            [-2.9458, -0.6517, -1.9285],
        ],
    ),
    "CM3": (
        "AEJDTTMg282mwEdYDUEFAAAAAwAAAL71vQD/yljawbia1kGEXw==",
        [
            [1.3696, 3.275, 1.335],
            [-5.2126, 3.6214, 1.7853],
            [-2.164, 2.3396, 1.4735],
            [1.1617, 0.1224, 2.201],
            [-2.9608, -0.6397, -1.9215],
        ],
    ),
}


@pytest.mark.parametrize("kind", MATRICES)
def test_values_are_those_of_kaldis_own_code(kind):
    written, values = MATRICES[kind]
    content = base64.b64decode(written)
    header = header_of(content[:HEADER_BYTES])
    assert (header.kind.decode(), header.num_rows, header.num_columns, header.size) == (kind, 5, 3, len(content))
    for surplus in (b"", b"the next matrix"):
        matrix = matrix_of(content + surplus)
        assert matrix.dtype == np.float32
        np.testing.assert_allclose(matrix, values, atol=6e-5)


@pytest.mark.parametrize("kind", MATRICES)
def test_a_matrix_that_ends_early_is_refused_wherever_it_ends(kind):
    content = base64.b64decode(MATRICES[kind][0])
    for length in range(len(content)):
        with pytest.raises(DataError, match=r"no binary Kaldi matrix|ends within its header|the matrix ends early"):
            matrix_of(content[:length])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b" [\n 1 2 ]\n", r"there is no binary Kaldi matrix: got ' \[.*copy-feats"),
        (b"\0BFV \x04\x03\0\0\0", "there is no binary Kaldi matrix"),
        (b"", "there is no binary Kaldi matrix"),
        (b"\0BFM " + struct.pack("<bibi", 4, 0, 4, 3), "the matrix has no usable size: got 0 x 3"),
        (
            b"\0BCM " + struct.pack("<ffii", 0, 1, -1, 3),
            "no usable size: got -1 x 3, wanted at most 33554432 values, 128 MiB",
        ),
        (b"\0BFM " + struct.pack("<bibi", 4, 1 << 30, 4, 1 << 30), "no usable size: got 1073741824 x 1073741824"),
        (b"\0BCM " + struct.pack("<ffii", 0, 1, 1 << 13, (1 << 13) + 1), "no usable size: got 8192 x 8193"),
        (b"\0BCM " + struct.pack("<ffii", 0, 1, 1, (1 << 15) + 1), "no usable size: got 1 x 32769"),
        (b"\0BDM " + struct.pack("<bibi", 4, 1 << 12, 4, (1 << 12) + 1), "no usable size: got 4096 x 4097"),
        (b"\0BFM " + struct.pack("<bibif", 4, 1, 4, 1, np.nan), "values that are NaN or infinite"),
        (b"\0BCM3 " + struct.pack("<ffiib", np.inf, 1, 1, 1, 5), "values that are NaN or infinite"),
    ],
)
def test_what_is_no_usable_matrix_is_said(content, problem):
    with pytest.raises(DataError, match=problem):
        matrix_of(content)


@pytest.mark.parametrize(("kind", "content_bytes"), [("CM", 1), ("CM2", 2), ("FM", 4), ("DM", 8)])
def test_decoding_a_matrix_takes_little_more_memory_than_its_values(kind, content_bytes):
    rows, columns = 20_000, 80
    token = f"\0B{kind} ".encode()
    sizes = struct.pack("<ffii", 0, 1, rows, columns) if "C" in kind else struct.pack("<bibi", 4, rows, 4, columns)
    content = token + sizes + bytes(8 * columns * (kind == "CM") + content_bytes * rows * columns)
    tracemalloc.start()
    try:
        assert matrix_of(content).shape == (rows, columns)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1.2 * 4 * rows * columns
