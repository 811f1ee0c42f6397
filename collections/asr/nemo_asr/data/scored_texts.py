"""Texts of an evaluated set, as they are compared and as a file has them, a line for each utterance."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_asr.run.text.languages import NO_LANGUAGE
from nemo_asr.scoring.intervals import Clusters, clusters_of
from nemo_asr.scoring.normalize import score_normalizer
from nemo_lite.backends.pytorch.nm import DataLayerNM
from nemo_lite.base.files import make_writable_folder, write_atomically


class TextsToScore(NamedTuple):
    """References and hypotheses of some utterances, as they are compared.

    Attributes:
        references, hypotheses: one for each utterance.
        written: what a score normaliser was given: the text and what was recognised; None without one.
        normalizer: its name.
    """

    references: list[str]
    hypotheses: list[str]
    written: list[tuple[str, str]] | None = None
    normalizer: str | None = None


def normalizer_for(data_layer: DataLayerNM, name: str) -> Callable[[str], str]:
    """The normaliser of that name for texts in the language of the data."""
    language = data_layer.new_parser().language if isinstance(data_layer, SpeechDataLayer) else NO_LANGUAGE
    return score_normalizer(name, language)


def texts_to_score(
    data_layer: DataLayerNM, items: Sequence[int], said: Sequence[str], heard: Sequence[str], normalizer: str | None
) -> TextsToScore:
    """The texts of utterances as they are compared.

    Args:
        data_layer: where the utterances come from.
        items: their positions in it.
        said: what their label ids say: without what the vocabulary cannot write.
        heard: what was recognised.
        normalizer: a name of `nemo_asr.scoring.normalize`: both sides go through it, the references as they are
            written in the data, but for ``none`` without marks such as ``<unk>`` that are no labels. None: as
            `references_in_data` and `hypotheses_in_data` give them.

    Raises:
        DataError: the manifest has changed since it was opened.
    """
    if normalizer is None:
        return TextsToScore(references_in_data(data_layer, items, said), hypotheses_in_data(data_layer, heard))
    if isinstance(data_layer, SpeechDataLayer):
        said = [data_layer.utterance_of(item).text for item in items]
        if normalizer != "none":
            said = list(map(data_layer.new_parser().without_marks, said))
    normalize = normalizer_for(data_layer, normalizer)
    written = list(zip(said, heard, strict=True))
    return TextsToScore(list(map(normalize, said)), list(map(normalize, heard)), written, normalizer)


def write_transcripts(
    path: Path,
    data_layer: DataLayerNM,
    items: Sequence[int],
    references: Sequence[str],
    hypotheses: Sequence[str],
    written: Sequence[tuple[str, str]] | None = None,
    normalizer: str | None = None,
    more: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Write one JSON object a line, all or nothing: place, audio_filepath, offset, duration, reference, hypothesis.

    ``speaker`` is there where the manifest has it, as a text. Where the data layer knows no audio files, an object has
    only the place and the texts.

    Args:
        path: the file, made with its folder or replaced.
        data_layer: where the utterances come from.
        items: their positions in it.
        references: what was said, one for each item.
        hypotheses: what was recognised.
        written: texts and what was recognised before a score normaliser changed them; they become ``text`` and
            ``recognised``.
        normalizer: its name.
        more: further names and values of each line.

    Raises:
        UsageError: it cannot be written.
        DataError: the manifest has changed since it was opened.
    """
    rows = zip(items, references, hypotheses, strict=True)
    objects = [{**_about(data_layer, item), "reference": said, "hypothesis": heard} for item, said, heard in rows]
    for row, (text, recognised) in zip(objects, written or (), strict=False):
        row |= {"text": text, "recognised": recognised, "score_normalizer": normalizer}
    for row, values in zip(objects, more or (), strict=False):
        row |= values
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in objects)
    lines = text.encode(errors="replace")  # in the name of a file a byte that is no UTF-8 becomes "?"
    make_writable_folder(path.parent)
    write_atomically(path, lambda file: file.write_bytes(lines))


def _about(data_layer: DataLayerNM, item: int) -> dict[str, Any]:
    if not isinstance(data_layer, SpeechDataLayer):
        return {"place": data_layer.place_of(item)}
    utterance = data_layer.utterance_of(item)
    where: dict[str, Any] = {"offset": utterance.offset, "duration": utterance.duration}
    if utterance.channel is not None:
        where["channel"] = utterance.channel
    if utterance.speaker is not None:
        where["speaker"] = speaker_name(utterance.speaker)
    return {"place": utterance.place, "audio_filepath": utterance.audio_path, **where}


def speaker_name(speaker: object) -> str:
    """A manifest's ``speaker``, which may be any JSON value, as a text."""
    return speaker if isinstance(speaker, str) else json.dumps(speaker, ensure_ascii=False, sort_keys=True)


def references_in_data(data_layer: DataLayerNM, items: Sequence[int], texts: Sequence[str]) -> list[str]:
    """The texts against which the utterances at these positions are scored: see `CharParser.reference`.

    A missing text is empty, so every word said about it is an insertion. Where the data layer does not read texts, what
    the label ids say.

    Args:
        data_layer: where the utterances come from.
        items: their positions in it.
        texts: what their label ids say, one for each: without what the vocabulary cannot write.

    Raises:
        DataError: the manifest has changed since it was opened.
    """
    if not isinstance(data_layer, SpeechDataLayer):
        return list(texts)
    parser = data_layer.new_parser()
    return [parser.reference(data_layer.utterance_of(item).text) for item in items]


def references_to_score(data_layer: DataLayerNM, items: Sequence[int], normalizer: str | None) -> list[str]:
    """The references of `texts_to_score`, which need no hypotheses; empty where the data layer has no texts."""
    nothing = [""] * len(items)
    return texts_to_score(data_layer, items, nothing, nothing, normalizer).references


def have_words(data_layer: DataLayerNM, normalizer: str | None) -> bool:
    """Whether any utterance has words to be scored; also where the data layer does not read texts.

    Args:
        data_layer: an evaluation set.
        normalizer: as of `texts_to_score`.

    Raises:
        DataError: the manifest has changed since it was opened.
    """
    if not isinstance(data_layer, SpeechDataLayer):
        return True
    number = len(data_layer)
    blocks = (range(first, min(first + 256, number)) for first in range(0, number, 256))  # the first nearly always has
    return any(each.strip() for rows in blocks for each in references_to_score(data_layer, rows, normalizer))


def hypotheses_in_data(data_layer: DataLayerNM, texts: Sequence[str]) -> list[str]:
    """Texts that a model wrote, as they are compared with `references_in_data`: see `CharParser.hypothesis`.

    Args:
        data_layer: where the utterances come from.
        texts: what was recognised.
    """
    if not isinstance(data_layer, SpeechDataLayer):
        return list(texts)
    return list(map(data_layer.new_parser().hypothesis, texts))


def clusters_in_data(data_layer: DataLayerNM, items: Sequence[int]) -> Clusters | None:
    """Which of the utterances at these positions belong together, by speaker or recording; None: that is not known.

    Raises:
        DataError: the manifest has changed since it was opened.
    """
    if not isinstance(data_layer, SpeechDataLayer):
        return None
    utterances = [data_layer.utterance_of(item) for item in items]
    speakers = [None if utterance.speaker is None else speaker_name(utterance.speaker) for utterance in utterances]
    return clusters_of(speakers, [utterance.audio_path for utterance in utterances])
