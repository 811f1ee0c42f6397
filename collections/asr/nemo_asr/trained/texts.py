"""What the texts of manifests teach: n-gram language models in a model's spelling."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_asr.published.catalogue import repository_of
from nemo_asr.run.arguments import parameters_of, paths_in
from nemo_asr.run.manifest import Manifest, Utterances
from nemo_asr.run.search.ngram import UNKNOWN, Estimated, LanguageModel, NgramCounter, estimate
from nemo_asr.run.text.forms import APOSTROPHES, plain_letters
from nemo_asr.run.text.labels import has_words, in_letters, spelled
from nemo_asr.run.text.parser import CharParser, make_parser
from nemo_asr.shipped import examples_folder
from nemo_asr.tasks.recipe import Recipe, load_recipe
from nemo_asr.trained.folder import find_model
from nemo_asr.trained.model import read_with_recipe
from nemo_lite.base.errors import CheckpointError, UsageError

MOST_ORDER = 6  # KenLM reads no longer n-grams unless it is built for them
_LINES_AT_ONCE = 1 << 14


class Speller:
    """Texts to words, as a model of some labels writes them.

    Args:
        parser: rewrites texts, and turns them into ids of labels.
        labels: what the ids stand for.
    """

    def __init__(self, parser: CharParser, labels: Sequence[str]) -> None:
        self.parser = parser
        self._written = [spelled(label) for label in labels]
        self._has_spaces = has_words(labels)

    def words(self, text: str) -> list[str]:
        """The words; each label is one where the labels have no space. None where the parser refuses the text."""
        symbols = [self._written[i] for i in self.parser(text) or ()]
        return in_letters("".join(symbols)).split() if self._has_spaces else symbols

    def sentences(self, utterances: Utterances[Any]) -> Iterator[list[str]]:
        """The words of each text that has some."""
        return filter(None, map(self.words, texts_of(utterances)))


class Trained(NamedTuple):
    """A language model, and what it was made of.

    Attributes:
        estimated: the model and how it was smoothed.
        num_texts, num_words: what was counted.
        lost: what the labels could not write, in one line; "" for nothing.
        spelling: how texts were rewritten.
    """

    estimated: Estimated
    num_texts: int
    num_words: int
    lost: str
    spelling: str


class Perplexity(NamedTuple):
    """How well a language model predicts texts.

    Attributes:
        value: 10 to the power of minus the mean of log10 P over words and ends of texts, unknown words left out.
        num_words: of the texts.
        num_unknown: words of the texts that the model does not know.
    """

    value: float
    num_words: int
    num_unknown: int


def train_language_model(utterances: Utterances[Any], speller: Speller, order: int) -> Trained:
    """The n-gram model of the texts of utterances.

    Raises:
        UsageError: the order is out of range.
        DataError: the texts have no words, or a file of a text cannot be read.
    """
    check_order(order)
    counter = NgramCounter(order)
    for sentence in speller.sentences(utterances):
        counter.add(sentence)
    parser = speller.parser
    return Trained(
        estimate(counter, utterances.name), counter.num_sentences, counter.num_words, parser.report(), parser.describe()
    )


def check_order(order: int) -> None:
    """Raise UsageError for an order out of range."""
    if not 1 <= order <= MOST_ORDER:
        raise UsageError("the order of a language model is out of range", got=str(order), wanted=f"1 to {MOST_ORDER}")


def perplexity(model: LanguageModel, sentences: Iterator[list[str]]) -> Perplexity:
    """How well a model predicts sentences, each a list of words."""
    positions = {word: number for number, word in enumerate(model.words)}
    total, num_scored, num_words, num_unknown = 0.0, 0, 0, 0
    for sentence in sentences:
        state = np.array([model.start()])
        for word in sentence:
            position = positions.get(word, UNKNOWN)
            score, state = model.score_batch(state, np.array([position]))
            num_unknown += position == UNKNOWN
            total += 0.0 if position == UNKNOWN else float(score[0])
        total += float(model.end_batch(state)[0])
        num_words += len(sentence)
        num_scored += 1
    return Perplexity(10 ** (-total / max(num_scored + num_words - num_unknown, 1)), num_words, num_unknown)


def speller_of(model: str | None, utterances: Utterances[Any]) -> Speller:
    """The spelling of a model, or of no particular one.

    Args:
        model: a trained model's folder, or a configuration or its name. None: the letters that the texts have.
        utterances: of manifests.

    Raises:
        CheckpointError, ConfigError: there is no such model or configuration.
        UsageError: the model is no model of texts.
    """
    if model is None:
        return _speller_of_letters(utterances)
    recipe = recipe_named(model)
    return Speller(text_layer(recipe, list(utterances.paths)).new_parser(), recipe.labels)


def recipe_named(model: str) -> Recipe:
    """The configuration that a trained model carries, or one by its file or name.

    Raises:
        CheckpointError, ConfigError: there is no such model or configuration.
    """
    return read_with_recipe(model)[1] if is_trained(model) else load_recipe(Path(model).expanduser())


def is_trained(model: str) -> bool:
    """Whether this is a trained model and no configuration, of whose name there may be a folder of data."""
    path = Path(model).expanduser()
    if repository_of(model) is not None:
        return True
    with suppress(CheckpointError):
        return find_model(path).exists()
    return path.is_dir() and not (examples_folder() / "configs" / f"{model}.yaml").is_file()


def text_layer(recipe: Recipe, manifest: str | Sequence[str]) -> SpeechDataLayer:
    """The data layer with which a model is evaluated, for work on the texts: it reads no audio.

    Raises:
        UsageError: the data layer is no one of manifests and texts.
        DataError: the manifest cannot be read.
    """
    layer_class = recipe.data_layer_class(training=False)
    if not issubclass(layer_class, SpeechDataLayer) or "load_audio" not in parameters_of(layer_class):
        problem, place = "the data layer for evaluation reads no manifests of texts", recipe.config.place()
        remedy = "give a configuration that is evaluated on loose files"
        raise UsageError(problem, place=place, got=layer_class.__name__, wanted="AudioToTextDataLayer", remedy=remedy)
    layer = recipe.data_layer(manifest, training=False, batch_size=1, load_audio=False)
    assert isinstance(layer, SpeechDataLayer)
    return layer


def open_texts(paths: Sequence[str]) -> Manifest:
    """The utterances of manifests, with or without audio.

    Raises:
        DataError: a manifest is missing, empty or has lines that are not valid.
    """
    return Manifest.open([part for path in paths for part in paths_in(path)], lenient=True)


def texts_of(utterances: Utterances[Any]) -> Iterator[str]:
    """All texts, as they are written, without what they belong to."""
    for first in range(0, len(utterances), _LINES_AT_ONCE):
        rows = np.arange(first, min(first + _LINES_AT_ONCE, len(utterances)))
        for ref in utterances.refs(rows):
            yield utterances.reader.utterance(ref).text


def _speller_of_letters(utterances: Utterances[Any]) -> Speller:
    """Lower case, in the letters that the texts have; digits and punctuation are no letters, an apostrophe is one."""
    characters: set[str] = set()
    for text in texts_of(utterances):
        characters.update(unicodedata.normalize("NFC", plain_letters(text).lower()))
    letters = sorted(c for c in characters - {*APOSTROPHES} if c.isalpha() or unicodedata.category(c).startswith("M"))
    labels = [" ", "'", *letters]
    return Speller(make_parser(labels, "auto", do_lowercase=None), labels)
