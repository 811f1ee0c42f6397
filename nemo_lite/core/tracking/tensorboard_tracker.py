"""TensorboardTracker: training steps as curves. Evaluations are written by their ``EvaluatorCallback``."""

from __future__ import annotations

from nemo_lite.core.action_state import TbWriter
from nemo_lite.core.callbacks.loggers import flush
from nemo_lite.core.tracking.records import Record, Tracker, numbers_of


class TensorboardTracker(Tracker):
    """Writes ``loss``, ``param/lr`` and ``misc/...`` of the recorded steps.

    Args:
        writer: the factory's ``tb_writer``.
    """

    def __init__(self, writer: TbWriter) -> None:
        self._writer = writer

    def write(self, record: Record) -> None:
        """Write a training step."""
        if record["kind"] == "train":
            for tag, number in numbers_of(record).items():
                self._writer.add_scalar(tag, number, record["step"])

    def close(self) -> None:
        """Put everything on disk."""
        flush(self._writer)
