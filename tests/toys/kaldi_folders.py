"""A Kaldi data folder with one ark file of plain matrices."""

import struct

import numpy as np

TEXTS = ["a", "ab", "b a", "c", "abc"]


def matrix_bytes(matrix):
    num_rows, num_columns = matrix.shape
    return b"\0BFM " + struct.pack("<bibi", 4, num_rows, 4, num_columns) + matrix.astype("<f4").tobytes()


def spoken(text):
    """Eight frames of each letter, told by one of four features, and two frames of silence behind it."""
    frames = np.eye(4, dtype=np.float32)[[" abc".index(letter) for letter in text]]
    return np.pad(frames[:, None].repeat(8, 1), ((0, 0), (0, 2), (0, 0))).reshape(-1, 4)


def make_folder(folder, texts=TEXTS, num_features=4, with_durations=True, speech=False):
    """Utterance number n has 20 + n frames of the value n, or what is `spoken`; the matrices."""
    folder.mkdir(exist_ok=True)
    matrices = [np.full((20 + number, num_features), number, np.float32) for number in range(len(texts))]
    matrices = [spoken(text) for text in texts] if speech else matrices
    ark, scp = b"", []
    for number, matrix in enumerate(matrices):
        ark += f"utt{number} ".encode()
        scp.append(f"utt{number} {folder}/feats.ark:{len(ark)}\n")
        ark += matrix_bytes(matrix)
    (folder / "feats.ark").write_bytes(ark)
    (folder / "feats.scp").write_text("".join(scp))
    (folder / "text").write_text("".join(f"utt{number} {text}\n" for number, text in enumerate(texts)))
    if with_durations:
        (folder / "utt2dur").write_text("".join(f"utt{n} {len(each) / 100}\n" for n, each in enumerate(matrices)))
    return matrices
