"""Transcripts longer than the encoder's output: CTC cannot align them. Reads no audio."""

from __future__ import annotations

from nemo_asr.data.preflight import Infeasible
from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_lite import Dag, DataLayerNM, NmTensor, logging
from nemo_lite.core.shapes import frames_of
from nemo_lite.errors import UsageError

_MAX_SHOWN = 20


def leave_out_infeasible(data_layer: DataLayerNM, log_probs: NmTensor) -> int:
    """Train without the utterances whose frames, after the encoder's stride, cannot hold their text; list them.

    Their CTC loss is infinite, so that every step with one of them would be lost. A data layer of another kind than
    `SpeechDataLayer` keeps all.

    Args:
        data_layer: the utterances.
        log_probs: the wire whose time axis the text has to fit in.

    Returns:
        How many there are.

    Raises:
        DataError: all are.
    """
    if isinstance(data_layer, SpeechDataLayer):
        data_layer.leave_out_textless()
    found = _list_infeasible(data_layer, log_probs, "they are left out of training")
    if found and isinstance(data_layer, SpeechDataLayer):
        data_layer.leave_out([each.row for each in found], "with a text that does not fit its frames")
    return len(found)


def warn_of_infeasible(data_layer: DataLayerNM, log_probs: NmTensor) -> int:
    """List the utterances of an evaluation set whose frames cannot hold their text; returns how many."""
    return len(_list_infeasible(data_layer, log_probs, "they count as they are recognised, and their loss is infinite"))


def _list_infeasible(data_layer: DataLayerNM, log_probs: NmTensor, consequence: str) -> list[Infeasible]:
    if not isinstance(data_layer, SpeechDataLayer):
        return []
    try:
        num_frames = frames_of(Dag([log_probs]), log_probs)
    except UsageError as error:
        logging.warning("Transcripts are not compared with the encoder's output: %s", error)
        return []
    found = data_layer.infeasible(num_frames)
    for infeasible in found[:_MAX_SHOWN]:
        logging.warning("%s", infeasible)
    if found:
        more = f" ({len(found) - _MAX_SHOWN} more are not listed)" if len(found) > _MAX_SHOWN else ""
        count = f"{len(found)} of {len(data_layer)} texts do not fit their frames{more}"
        logging.warning(f"{data_layer.utterances.name}: {count}: {consequence} (a smaller stride gives more frames)")
    return found
