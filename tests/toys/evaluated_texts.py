"""Evaluated values of small texts: best paths, transcripts, and wires under their unique names."""

import torch

LABELS = list(" abc")
BLANK = 4


def batch(words, num_frames=12):
    """Best paths that spell ``words`` with a blank after each label, and their lengths."""
    paths = torch.full((len(words), num_frames), BLANK)
    for row, word in zip(paths, words, strict=True):
        row[0 : 2 * len(word) : 2] = torch.tensor([LABELS.index(letter) for letter in word])
    return paths, torch.tensor([2 * len(word) for word in words])


def transcripts(words):
    ids = torch.zeros(len(words), max(map(len, words)), dtype=torch.long)
    for row, word in zip(ids, words, strict=True):
        row[: len(word)] = torch.tensor([LABELS.index(letter) for letter in word])
    return ids, torch.tensor([len(word) for word in words])


def wires(heard, said, loss=1.0, **more):
    targets, lengths = transcripts(said)
    return {
        "IS_FROM_DIST_EVAL": False,
        "loss~~~CTCLossNM~~~1": [torch.tensor(loss)],
        "predictions~~~GreedyCTCDecoder~~~2": [batch(heard)[0]],
        "transcripts~~~AudioToTextDataLayer~~~3": [targets],
        "transcript_length~~~AudioToTextDataLayer~~~4": [lengths],
        **more,
    }
