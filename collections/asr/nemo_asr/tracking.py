"""How a training of the speech scripts is recorded: which trackers its options ask for, and how a set is scored."""

from __future__ import annotations

import platform
import shlex
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import nemo_lite
from nemo_asr.data.speech_data_layer import clusters_in_data, hypotheses_in_data, references_in_data, write_transcripts
from nemo_asr.scoring.callbacks import (
    process_classification_evaluation_epoch,
    process_evaluation_epoch,
    rate_intervals,
    score_classes,
    score_evaluation,
)
from nemo_asr.scoring.rates import Clusters
from nemo_asr.scoring.report.records import METRICS_FILE as METRICS
from nemo_asr.scoring.report.records import RunRecords, read_records
from nemo_lite import DataLayerNM, NeuralModuleFactory, logging
from nemo_lite.core import Collected
from nemo_lite.core.trackers import TRACKERS, MetricsFile, TensorboardTracker, TerminalLines, Tracker, Trackers
from nemo_lite.errors import NemoLiteError
from nemo_lite.utils.nemo_logging import LogMode

CLASS_METRIC = "error"
"""What counts of a classifier: the share of recordings that it gives another class."""


def trackers_of(args: Namespace, factory: NeuralModuleFactory) -> Trackers:
    """The terminal, RUN/metrics.jsonl, TensorBoard, and the services of ``--track``; with several ranks on rank 0.

    Args:
        args: what ``AsrArgParser`` gave.
        factory: the run's.

    Raises:
        UsageError: a service's package is not installed.
    """
    return factory.on_first(lambda: Trackers(_trackers(args, factory))) or Trackers()


def _trackers(args: Namespace, factory: NeuralModuleFactory) -> list[Tracker]:
    trackers: list[Tracker] = []
    if logging.style == "plain":  # else a SimpleLossLoggerCallback writes lines and events, as NeMo's scripts do
        trackers.append(_terminal(args))
        if factory.tb_writer is not None:
            trackers.append(TensorboardTracker(factory.tb_writer))
    if args.run_dir is not None:
        trackers.append(MetricsFile(args.run_dir / METRICS))
    trackers += [TRACKERS[name].make(args.exp_name, args.run_dir) for name in args.track if name in TRACKERS]
    return trackers


def _terminal(args: Namespace) -> TerminalLines:
    saved, run = args.run_dir or args.checkpoint_dir, args.run_dir
    of_classes = args.eval_metric == CLASS_METRIC
    words = ("Evaluate: nemo-lite eval", "--eval_datasets MANIFEST")
    verb, what = words if of_classes else ("Transcribe: nemo-lite transcribe", "FILES")
    use = f"{verb} {shlex.quote(str(saved))} {what}" if saved else ""
    report = f"Report so far: nemo-lite report {shlex.quote(str(run))}" if run and args.report else ""
    # The one that counts comes first.
    rates = [CLASS_METRIC] if of_classes else sorted(("wer", "cer"), key=lambda rate: rate != args.eval_metric)
    records = read_records(run / METRICS) if run and (run / METRICS).is_file() else RunRecords()
    evaluations = [each for of_set in records.evaluations.values() for each in of_set.values()]
    earlier = [*evaluations, *([records.model] if records.model else [])]
    return TerminalLines(rates, use, report, earlier, records.seconds, starts_trained=bool(args.init_from))


def start_record(args: Namespace, factory: NeuralModuleFactory) -> dict[str, Any]:
    """What the record of a run's start says beside its steps: arguments, versions, precision."""
    versions = {"nemo_lite": nemo_lite.__version__, "torch": torch.__version__, "python": platform.python_version()}
    return {"arguments": plain_arguments(args), "versions": versions, "precision": factory.optim_level.short}


def plain_arguments(args: Namespace) -> dict[str, Any]:
    """The options as values that JSON can hold, by name; those that it cannot hold as texts."""
    return {name: value if _is_plain(value) else str(value) for name, value in sorted(vars(args).items())}


class ScoredSet:
    """Scores what an evaluation of a set collected: the ``user_epochs_done_callback`` of an evaluator.

    It gives ``loss``, ``wer`` and ``cer``, for both rates the ends of their 95 % intervals (``wer_low``, ``wer_high``,
    ...; by speaker or recording where the data layer knows them). It writes the transcripts to a file, which each
    evaluation replaces. In the log's style "nemo" it also logs the lines of ``process_evaluation_epoch``.

    Args:
        name: of the set.
        data_layer: where it comes from.
        folder: of ``NAME.transcripts.jsonl``; ``None`` writes none.
        metric: ``wer`` or ``cer``: which of them NeMo's lines show.
    """

    def __init__(self, name: str, data_layer: DataLayerNM, folder: Path | None = None, metric: str = "wer") -> None:
        self._name, self._data_layer, self._metric = name, data_layer, metric
        self._path = None if folder is None else folder / f"{name}.transcripts.jsonl"
        # Of the utterances that were scored last.
        self._clusters: tuple[list[int], Clusters | None] = [], None
        self._references: tuple[list[int], list[str]] = [], []

    def __call__(self, collected: Collected) -> dict[str, float]:
        """The set's loss and error rates, with intervals."""
        self._take_references(collected)
        if logging.style == "nemo":
            process_evaluation_epoch(collected, self._metric, self._name)
        if self._path is not None and collected.positions is not None:
            texts = collected.get("transcripts", []), collected.get("predictions", [])
            try:
                write_transcripts(self._path, self._data_layer, collected.positions, *texts)
            except NemoLiteError as error:  # the run is worth more than these files
                logging.warning("%s", error, mode=LogMode.ONCE)
        return {**score_evaluation(collected), **rate_intervals(collected, self._clusters_of(collected.positions))}

    def _take_references(self, collected: Collected) -> None:
        """Put the utterances' own texts in place of what their label ids say."""
        if collected.positions is None:
            return
        positions, texts = list(collected.positions), collected.get("transcripts", [])
        if self._references[0] != positions:
            try:
                self._references = positions, references_in_data(self._data_layer, positions, texts)
            except NemoLiteError as error:
                logging.warning("%s", error, mode=LogMode.ONCE)
                return
        collected["transcripts"] = self._references[1]
        if "predictions" in collected:
            collected["predictions"] = hypotheses_in_data(self._data_layer, collected["predictions"])

    def _clusters_of(self, positions: Sequence[int] | None) -> Clusters | None:
        """The clusters of the utterances at these positions; nearly always those of the evaluation before."""
        known, clusters = self._clusters
        if positions is not None and known != list(positions):
            try:
                clusters = clusters_in_data(self._data_layer, positions)
            except NemoLiteError as error:
                logging.warning("%s", error, mode=LogMode.ONCE)
                clusters = None
            self._clusters = list(positions), clusters
        return clusters if positions is not None else None


class ScoredClasses:
    """Scores what an evaluation of a classifier collected: the ``user_epochs_done_callback`` of an evaluator.

    It gives ``loss``, ``error``, and the ends of its 95 % interval, ``error_low`` and ``error_high``. In the log's
    style "nemo" it also logs the lines of ``process_classification_evaluation_epoch``.

    Args:
        name: of the set.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, collected: Collected) -> dict[str, float]:
        """The set's loss and error rate."""
        if logging.style == "nemo":
            process_classification_evaluation_epoch(collected, 1, self._name)
        return score_classes(collected)


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
