"""From transcripts to what a report shows of a set: rates with intervals, and the worst utterances to hear and see."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from nemo_asr.scoring.bootstrap import UtteranceErrors
from nemo_asr.scoring.differences import differences
from nemo_asr.scoring.report.content import ScoredSet, Utterance
from nemo_asr.scoring.report.media import Clip, make_clip
from nemo_asr.scoring.report.set_scores import MOST_SPEAKERS, MOST_WORDS, score_rows
from nemo_asr.scoring.report.transcripts import ScoredUtterance
from nemo_lite.errors import DataError
from nemo_lite.utils.files import path_in_list

MOST_UTTERANCES = 20  # of all sets together, that are shown in full
FEWEST_OF_A_SET = 2  # also where there are many sets
MAX_CLIP_BYTES = 7_000_000  # of all clips together: with the rest, a page stays below 10 MB


class ClipMaker:
    """Makes clips until the page has enough of them."""

    def __init__(self, max_bytes: int = MAX_CLIP_BYTES) -> None:
        self._left = max_bytes

    def clip_of(self, row: ScoredUtterance) -> tuple[Clip | None, str]:
        """The recording of an utterance, and a note: what is left out, or why there is none."""
        if not row.audio_filepath:
            return None, "the transcripts do not say where the recording is"
        folder = os.path.dirname(row.place.rpartition(":")[0])  # place: the manifest and its line
        try:
            clip = make_clip(path_in_list(row.audio_filepath, folder), row.offset, row.duration)
        except DataError as error:
            return None, str(error)
        if clip.num_bytes > self._left:
            return None, "the recording is left out to keep this page small"
        self._left -= clip.num_bytes
        return clip, f"the first {clip.seconds:.0f} s of the recording" if clip.is_cut else ""


def scored_sets(transcripts: Mapping[str, Sequence[ScoredUtterance]], clips: ClipMaker) -> list[ScoredSet]:
    """What a report shows of the sets; those without utterances are left out."""
    some = {name: rows for name, rows in transcripts.items() if rows}
    most = max(FEWEST_OF_A_SET, MOST_UTTERANCES // max(len(some), 1))
    return [_scored_set(name, rows, most, clips) for name, rows in some.items()]


def _scored_set(name: str, rows: Sequence[ScoredUtterance], most: int, clips: ClipMaker) -> ScoredSet:
    scores = score_rows(rows)
    words, use_cer = scores.by_word, scores.unit == "character"
    return ScoredSet(
        name=name,
        num_utterances=len(rows),
        num_words=scores.words.reference_length,
        wer=scores.wer,
        cer=scores.cer,
        insertions=scores.words.insertions,
        deletions=scores.words.deletions,
        substitutions=scores.words.substitutions,
        unit=scores.unit,
        num_wrong=int(np.count_nonzero(scores.errors.errors)),
        worst=[_utterance(rows[item], scores.errors, item, use_cer, clips) for item in _worst(scores.errors, most)],
        clusters=str(scores.clusters),
        by_speaker=scores.by_speaker[:MOST_SPEAKERS],
        num_speakers=len(scores.by_speaker),
        by_length=scores.by_length,
        lost=[(word, count, words.said[word]) for word, count in words.most_lost(MOST_WORDS)],
        inserted=words.most_inserted(MOST_WORDS),
        confused=words.most_confused(MOST_WORDS),
    )


def _worst(counts: UtteranceErrors, most: int) -> list[int]:
    """The positions of the utterances with the most errors; of equally many, those with the shorter reference first."""
    order = np.lexsort((counts.lengths, -counts.errors))[:most]
    return [int(item) for item in order if counts.errors[item]]


def _utterance(row: ScoredUtterance, counts: UtteranceErrors, item: int, use_cer: bool, clips: ClipMaker) -> Utterance:
    clip, note = clips.clip_of(row)
    return Utterance(
        place=row.place,
        pieces=differences(row.reference, row.hypothesis, use_cer),
        num_errors=int(counts.errors[item]),
        num_units=int(counts.lengths[item]),
        clip=clip,
        note=note,
    )
