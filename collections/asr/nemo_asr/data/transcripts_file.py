"""Transcripts of an evaluated set in a file: what was said and what was recognised, a line for each utterance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_asr.scoring.bootstrap import Clusters, clusters_of
from nemo_lite import DataLayerNM
from nemo_lite.utils.files import make_writable_folder, write_atomically


def write_transcripts(
    path: Path, data_layer: DataLayerNM, items: Sequence[int], references: Sequence[str], hypotheses: Sequence[str]
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

    Raises:
        UsageError: it cannot be written.
        DataError: the manifest has changed since it was opened.
    """
    rows = zip(items, references, hypotheses, strict=True)
    objects = ({**_about(data_layer, item), "reference": said, "hypothesis": heard} for item, said, heard in rows)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in objects)
    make_writable_folder(path.parent)
    write_atomically(path, lambda file: file.write_text(lines, encoding="utf-8"))


def _about(data_layer: DataLayerNM, item: int) -> dict[str, Any]:
    if not isinstance(data_layer, SpeechDataLayer):
        return {"place": data_layer.place_of(item)}
    utterance = data_layer.utterance_of(item)
    where: dict[str, Any] = {"offset": utterance.offset, "duration": utterance.duration}
    if utterance.speaker is not None:
        where["speaker"] = speaker_name(utterance.speaker)
    return {"place": utterance.place, "audio_filepath": utterance.audio_path, **where}


def speaker_name(speaker: object) -> str:
    """A manifest's ``speaker``, which may be any JSON value, as a text."""
    return speaker if isinstance(speaker, str) else json.dumps(speaker, ensure_ascii=False, sort_keys=True)


def references_in_data(data_layer: DataLayerNM, items: Sequence[int], texts: Sequence[str]) -> list[str]:
    """What the utterances at these positions are scored against: see `CharParser.reference`.

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


def hypotheses_in_data(data_layer: DataLayerNM, texts: Sequence[str]) -> list[str]:
    """What a model wrote, as it is compared with `references_in_data`: see `CharParser.hypothesis`.

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
    speakers = [None if each.speaker is None else speaker_name(each.speaker) for each in utterances]
    return clusters_of(speakers, [each.audio_path for each in utterances])
