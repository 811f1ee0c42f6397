"""From transcripts to what a report shows of a set: rates with intervals, and the worst utterances to hear and see."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from nemo_asr.scoring.bootstrap import UtteranceErrors, bootstrap_interval, utterance_errors
from nemo_asr.scoring.differences import differences
from nemo_asr.scoring.error_counts import count_errors
from nemo_asr.scoring.report.content import Rate, ScoredSet, Utterance
from nemo_asr.scoring.report.media import Clip, make_clip
from nemo_asr.scoring.report.transcripts import ScoredUtterance
from nemo_asr.text import main_metric
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


def has_no_words(texts: Sequence[str]) -> bool:
    """Whether most of the texts are in a script that puts no spaces between words, as Chinese."""
    return sum(main_metric([" ", *text]) == "cer" for text in texts) * 2 > len(texts)


def _scored_set(name: str, rows: Sequence[ScoredUtterance], most: int, clips: ClipMaker) -> ScoredSet:
    heard, said = [row.hypothesis for row in rows], [row.reference for row in rows]
    counts = count_errors(heard, said)
    words, characters = (utterance_errors(heard, said, use_cer) for use_cer in (False, True))
    use_cer = has_no_words(said)
    sorted_by = characters if use_cer else words
    return ScoredSet(
        name=name,
        num_utterances=len(rows),
        num_words=counts.reference_length,
        wer=Rate(words.rate, bootstrap_interval(words)),
        cer=Rate(characters.rate, bootstrap_interval(characters)),
        insertions=counts.insertions,
        deletions=counts.deletions,
        substitutions=counts.substitutions,
        unit="character" if use_cer else "word",
        num_wrong=int(np.count_nonzero(sorted_by.errors)),
        worst=[_utterance(rows[item], sorted_by, item, use_cer, clips) for item in _worst(sorted_by, most)],
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
