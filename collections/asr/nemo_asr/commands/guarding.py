"""``--guard``: what a fine-tuned model has won and forgotten, beside the model that it started from. It only tells."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from nemo_asr.commands.recognised_sets import recognise_utterances
from nemo_asr.data.scored_texts import texts_to_score, write_transcripts
from nemo_asr.run.options import unique_tags
from nemo_asr.scoring.intervals import bootstrap_interval, paired_test, utterance_errors
from nemo_asr.scoring.report.records import METRICS_FILE, GuardedSet
from nemo_asr.scoring.report.transcripts import SUFFIX, ScoredUtterance, clusters_in, read_transcripts
from nemo_asr.tasks.recipe import Recipe
from nemo_asr.trained.folder import MODEL
from nemo_asr.trained.model import TrainedModel, load_model
from nemo_lite import DataLayerNM, NeuralModuleFactory, logging
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
from nemo_lite.base.errors import NemoLiteError, UsageError
from nemo_lite.base.files import make_writable_folder
from nemo_lite.base.outputs import check_output, write_output
from nemo_lite.core.trackers import MetricsFile, Trackers, interval, percent

FOLDER = "guard"
"""In the run's folder: a folder of transcripts for each model."""
WON, LOST, FORGOT, UNCLEAR = "won", "lost", "forgot", "no clear change"
"""Verdicts on a set: better; worse, of a set to be learnt and of a guard; the difference may be chance."""
_BEFORE = "before"
_AVERAGED = "averaged"
_PROGRAM, _REMEDY = "nemo-lite train", "move it away"


class Guard:
    """The rates of a run's sets with the model that training starts from, and with those that the run keeps.

    Transcripts are in ``RUN/guard``, a folder for each model. The evaluation sets are those to be won, the guard sets
    those not to be forgotten.

    Args:
        args: of the training, with ``init_from``, ``run_dir`` and ``guard``.
        factory: where models run.
        make_data: from a recipe and a manifest to a data layer for evaluation.

    Raises:
        UsageError: a file is in the way of the transcripts.
    """

    def __init__(
        self, args: Namespace, factory: NeuralModuleFactory, make_data: Callable[[Recipe, str], DataLayerNM]
    ) -> None:
        self._args, self._factory, self._make_data = args, factory, make_data
        self._folder: Path = args.run_dir / FOLDER
        manifests = [*args.eval_datasets, *args.guard]
        self._manifests = dict(zip(unique_tags(manifests), manifests, strict=True))
        self._guards = list(self._manifests)[len(args.eval_datasets) :]
        self._kept = [MODEL, *([_AVERAGED] if args.average_last or args.average_best or args.ema_decay else [])]
        factory.on_first(self._check_places)

    def _check_places(self) -> None:
        for model in (_BEFORE, *self._kept):
            for name in self._manifests:
                check_output(self._path(model, name), _PROGRAM, remedy=_REMEDY)

    def before(self) -> None:
        """Recognise all sets with the model that training starts from, unless the run goes on. All ranks call it.

        Raises:
            CheckpointError: there is no such model, or it carries no configuration.
            DataError: a recording cannot be read.
        """
        if not self._factory.from_first(self._goes_on):
            self._recognise(_BEFORE, self._args.init_from)

    def _goes_on(self) -> bool:
        """Whether the run has begun before, with these sets: their transcripts are there then."""
        checkpoints = CheckpointFolder(self._args.checkpoint_dir or self._args.run_dir / "checkpoints")
        return not checkpoints.is_empty() and all(self._path(_BEFORE, name).is_file() for name in self._manifests)

    def after(self) -> None:
        """Recognise them with the models that the run keeps; say and record what has changed. All ranks call it.

        What goes wrong is a warning: the run is worth more than this.
        """
        for kept in self._kept:
            try:
                model = self._recognise(kept, self._args.run_dir / kept)
                self._factory.on_first(partial(self._tell, kept, model))
            except NemoLiteError as error:
                logging.warning("%s was not compared with %s: %s", kept, self._args.init_from, error)

    def _recognise(self, name: str, path: str | Path) -> TrainedModel:
        model = load_model(path, factory=self._factory)
        for tag, manifest in self._manifests.items():
            layer = self._make_data(model.recipe, manifest)
            result = recognise_utterances(model, layer, self._factory)
            scored = result.items, result.references, result.hypotheses
            self._factory.on_first(partial(self._write, self._path(name, tag), layer, *scored))
        return model

    def _write(
        self, path: Path, layer: DataLayerNM, items: Sequence[int], said: Sequence[str], heard: Sequence[str]
    ) -> None:
        texts = texts_to_score(layer, items, said, heard, self._args.score_normalizer)
        make_writable_folder(path.parent)
        lines = partial(write_transcripts, data_layer=layer, items=items, **texts._asdict())
        write_output(path, lines, _PROGRAM, remedy=_REMEDY)

    def _path(self, model: str, name: str) -> Path:
        return self._folder / model / f"{name}{SUFFIX}"

    def _tell(self, kept: str, model: TrainedModel) -> None:
        args, metric = self._args, self._args.eval_metric
        sets = [self._compared(kept, name) for name in self._manifests]
        place = str(args.run_dir / kept)
        head = f"{place} (step {model.card.step}) beside {args.init_from}, {metric.upper()} with 95 % intervals:"
        logging.info("%s\n%s", head, "\n".join(f"  {line}" for line in told(sets)))
        forgotten = [each.name for each in sets if each.verdict == FORGOT]
        if forgotten:
            remedy = "mix old data into --train_dataset (new.json:1,old.json:1), or train with a lower --lr"
            logging.warning("Forgotten: %s is worse on %s; %s", place, ", ".join(forgotten), remedy)
        records = Trackers([MetricsFile(args.run_dir / METRICS_FILE)])
        facts: Mapping[str, Any] = {"step": model.card.step, "path": place, "init_from": str(args.init_from)}
        records.record("guard", **facts, metric=metric, sets=[asdict(each) for each in sets])
        records.close()

    def _compared(self, kept: str, name: str) -> GuardedSet:
        before, after = (read_transcripts(self._path(model, name)) for model in (_BEFORE, kept))
        return compare_guarded(name, before, after, is_guard=name in self._guards, metric=self._args.eval_metric)


def compare_guarded(
    name: str, before: Sequence[ScoredUtterance], after: Sequence[ScoredUtterance], *, is_guard: bool, metric: str
) -> GuardedSet:
    """The rates of a set with two models, and whether they differ.

    Args:
        name: of the set.
        before, after: its transcripts by each model. Both are compared with the references of the second: labels of the
            two may write a text in other ways.
        is_guard: it is not to be forgotten.
        metric: ``wer`` or ``cer``.

    Raises:
        UsageError: the utterances are not the same.
    """
    heard_before = {row.place: row.hypothesis for row in before}
    if [*heard_before] != [row.place for row in after]:
        got = f"{len(before)} and {len(after)} utterances"
        raise UsageError("the two models were not scored on the same utterances", place=name, got=got)
    said, use_cer, clusters = [row.reference for row in after], metric == "cer", clusters_in(after)
    old = utterance_errors([*heard_before.values()], said, use_cer, clusters)
    new = utterance_errors([row.hypothesis for row in after], said, use_cer, clusters)
    of_old, of_new, test = bootstrap_interval(old), bootstrap_interval(new), paired_test(old, new)
    worse = FORGOT if is_guard else LOST
    return GuardedSet(
        name=name,
        is_guard=is_guard,
        num_utterances=test.num_utterances,
        before=old.rate,
        before_low=of_old.low,
        before_high=of_old.high,
        after=new.rate,
        after_low=of_new.low,
        after_high=of_new.high,
        difference=test.difference,
        difference_low=test.interval.low,
        difference_high=test.interval.high,
        verdict=UNCLEAR if not test.is_sure else WON if test.difference < 0 else worse,
    )


def told(sets: Sequence[GuardedSet]) -> Iterator[str]:
    """A line for each set: which kind, its rates before and after, and how far the difference may be chance."""
    width = max(len(each.name) for each in sets)
    for each in sets:
        values = asdict(each)
        rates = " -> ".join(f"{percent(values[key])}{interval(values, key)}" for key in ("before", "after"))
        low, high = each.difference_low, each.difference_high
        if each.verdict == UNCLEAR:
            change = f"{UNCLEAR}, {100 * each.difference:+.2f} points [{100 * low:+.2f} to {100 * high:+.2f}]"
        else:
            ends = sorted(abs(100 * end) for end in (low, high))
            change = f"{each.verdict} {abs(100 * each.difference):.2f} points [{ends[0]:.2f} to {ends[1]:.2f}]"
        yield f"{'guard' if each.is_guard else 'new':<5}  {each.name:<{width}}  {rates}: {change}"
