"""WordBeams: the words of the hypotheses of a search, while it spells them label by label; whole texts in the end.

What words are worth is said by `WordScores`, which labels may follow by the search: one over the frames of CTC, or over
the lattice of a transducer. No sounds in here.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_asr.run.search.words import LEFT, ROOT, Places, WordScores
from nemo_asr.run.text.labels import text_of

Floats: TypeAlias = "npt.NDArray[np.float64]"
Ints: TypeAlias = "npt.NDArray[np.int64]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"

TABLES = threading.Lock()
"""Held from `WordBeams.grow` to `WordBeams.keep`: they fill the tables of hot phrases, which streams may share."""
_NEVER = -np.inf
_MOST_WAYS = 16  # of cutting a hypothesis into words that are kept


class Hypothesis(NamedTuple):
    """A text that may have been said.

    Attributes:
        ids: of its labels; where several sequences of labels write the text, of the most probable one.
        score: natural logarithm: of the sounds and, with weights, of the words; of all those sequences together.
        acoustic_score: of the sounds alone: the log-probability of all paths together.
        frames: of a stream, in which frame each label was found first; else empty.
    """

    ids: list[int]
    score: float
    acoustic_score: float
    frames: Sequence[int] = ()


def texts_of(hypotheses: Iterable[tuple[object, Hypothesis]], labels: Sequence[str] | None) -> list[Hypothesis]:
    """Sequences of labels as texts, the best first: the probabilities of those that write one text are added up.

    Args:
        hypotheses: each with what was said before its labels; the best first.
        labels: the vocabulary; None: each sequence counts as a text of its own.
    """
    texts: dict[object, Hypothesis] = {}
    for before, one in hypotheses:
        text = before, text_of(one.ids, labels) if labels else tuple(one.ids)
        texts[text] = _together(texts[text], one) if text in texts else one
    return sorted(texts.values(), key=lambda one: -one.score)


def _together(best: Hypothesis, other: Hypothesis) -> Hypothesis:
    """Two sequences of labels that write one text."""
    score, acoustic = np.logaddexp(best[1:3], other[1:3]).tolist()
    return Hypothesis(best.ids, score, acoustic, best.frames)


class WordBeams:
    """The words of hypotheses (B, K): K for each of B utterances, in their order in the beam.

    Attributes:
        node: (B, K) in the tree of words, behind the labels of the word that is being spelled.
        state: (B, K) of the language model, in front of that word.
        hot_node: (B, K) in the automaton of hot phrases.
        score: (B, K) of all complete words, and of hot phrases. Words without spaces count in ``segmentations``, in the
            place of ``node``, ``state`` and here.
        segmentations: of each hypothesis into words; None where spaces tell words apart, or no words count.

    Args:
        shape: B and K, of hypotheses without labels.
        words: what words are worth; None: nothing.
    """

    def __init__(self, shape: tuple[int, int], words: WordScores | None) -> None:
        self._words = words
        self.node, self.state = np.full(shape, ROOT), np.full(shape, words.start() if words else 0)
        self.segmentations = _Segmentations(shape, words) if words and words.is_segmented else None
        self._has_spaced_words = words is not None and words.has_tree and not words.is_segmented
        self._phrases = words.phrases if words else None
        self.hot_node = np.full(shape, self._phrases.start if self._phrases else ROOT)
        self.score = np.zeros(shape)

    def worth(self, num: int) -> Floats:
        """(num, K) what all words of the first rows are worth, the one that is being spelled included."""
        score: Floats = self.score[:num]
        if self.segmentations:
            score = score + self.segmentations.best(num)
        elif self._words and self._has_spaced_words:
            score = score + self._words.so_far[self.node[:num]]
        return score

    def grow(self, labels: Ints, places: Places, grows: Mask) -> Floats:
        """What words are worth where each label follows each hypothesis of the first b rows.

        Args:
            labels: (b, C) of each row.
            places: (b, classes) of each label among them; -1 where it is not.
            grows: (b, K, C) where a label may follow.

        Returns:
            (b, K, C) what all words are then worth, the one that is being spelled included.
        """
        num = len(labels)
        nodes, states, word_score = self.node[:num], self.state[:num], self.score[:num, :, None]
        begins = np.zeros(labels.shape, bool)
        following: Ints = np.zeros((1, 1, 1), np.int64)
        scores = np.zeros(nodes.shape)
        hot_changes, hot_entries, hot_runs = scores, following, following
        if self.segmentations:
            word_score = np.add(word_score, self.segmentations.grow(labels, np.asarray(grows.any(axis=2))))
        elif self._words and self._has_spaced_words:
            spelling, tree = self._words.spelling, self._words.tree
            begins = spelling.begins[labels]
            is_root = nodes == ROOT
            states = states.copy()
            # Most frames have no label with which a word begins, and then no word ends.
            ends = (begins[:, None, :] & grows).any(axis=2) & ~is_root
            scores[ends], states[ends] = self._words.close(nodes[ends], states[ends])
            following = np.where(begins[:, None, :], ROOT, nodes[:, :, None])
            for characters in spelling.characters.T:
                following = tree.step(following, characters[labels][:, None, :])
            ended = np.where(begins[:, None, :], scores[:, :, None], 0.0)
            word_score = word_score + ended + self._words.so_far[following]
            # A second space would write nothing.
            word_score[is_root[:, :, None] & spelling.is_space[labels][:, None, :]] = _NEVER
        if self._phrases:
            hot_changes, hot_entries, hot_runs = self._phrases.changes(self.hot_node[:num], labels, places)
            gained = hot_changes.take(hot_runs, axis=0)  # (b, K, C)
            word_score = np.add(word_score, gained, out=gained)
        self._grown = _Grown(labels, begins, scores, states, following, hot_changes, hot_entries, hot_runs)
        return word_score

    def keep(self, source: Ints, label_place: Ints, grew: Mask) -> None:
        """Go on with other hypotheses of the same utterances.

        Args:
            source: (b, K) their places in the beam so far.
            label_place: (b, K) of the labels by which they grew, among those given to :meth:`grow` last.
            grew: (b, K) whether they did.
        """
        num, rows = len(source), np.arange(len(source))[:, None]
        begins, num_labels = self._grown.begins, self._grown.labels.shape[1]
        at = rows * self.score.shape[1] + source  # in (b, K), as it lies in memory
        cell = at * num_labels + label_place  # in (b, K, C)
        score = self.score.take(at)
        if self.segmentations:
            self.segmentations.keep(source, label_place, grew)
        elif self._has_spaced_words:
            has_begun = grew & begins[rows, label_place]
            self.state[:num] = np.where(has_begun, self._grown.states.take(at), self.state.take(at))
            score = score + np.where(has_begun, self._grown.scores.take(at), 0.0)
            self.node[:num] = np.where(grew, self._grown.nodes.take(cell), self.node.take(at))
        if self._phrases:
            cell = self._grown.hot_runs.take(at) * num_labels + label_place
            hot_nodes = self._phrases.follow(self._grown.hot_entries.take(cell))
            self.hot_node[:num] = np.where(grew, hot_nodes, self.hot_node.take(at))
            score = score + np.where(grew, self._grown.hot_changes.take(cell), 0.0)
        self.score[:num] = score

    def end(self, alive: Mask) -> tuple[Floats, Mask, Ints]:
        """The texts end. They may go on, as if nothing was asked.

        Args:
            alive: (B, K) which of the places have a hypothesis.

        Returns:
            (B, K) what all words are worth, whether the last one is a whole word, and the characters of it if not.
        """
        total, is_whole, unfinished = self.score.copy(), np.ones(self.score.shape, bool), np.zeros_like(self.node)
        if not self._words:
            return total, is_whole, unfinished
        states = self.state.copy()
        if self._phrases:
            total[alive] += self._phrases.end(self.hot_node[alive])
        if self.segmentations:
            scores, is_whole, unfinished = self.segmentations.end()
            return total + scores, is_whole, unfinished
        is_whole = self._words.complete(self.node)
        ends = alive & is_whole & (self.node != ROOT)
        scores, states[ends] = self._words.close(self.node[ends], self.state[ends])
        total[ends] += scores
        total[alive] += self._words.end(states[alive])
        return total, is_whole, unfinished

    def in_words(self, ids: list[int], is_cut: bool, unfinished: int) -> list[int]:
        """The labels without a space at the end, or without the last word."""
        if self._words is None or not ids:
            return ids
        spelling = self._words.spelling
        if self.segmentations:
            while is_cut and unfinished > 0:
                unfinished -= len(spelling.pieces[ids[-1]])
                ids = ids[:-1]
            return ids
        if is_cut:
            begins = np.flatnonzero(spelling.begins[ids])
            return ids[: int(begins[-1])] if len(begins) else []
        return ids[:-1] if spelling.is_space[ids[-1]] else ids

    def taken(self, rows: Ints) -> WordBeams:
        """The words of the hypotheses of some rows, copied."""
        others = copy.copy(self)
        others.node, others.state, others.hot_node = self.node[rows], self.state[rows], self.hot_node[rows]
        others.score = self.score[rows]
        others.segmentations = self.segmentations.taken(rows) if self.segmentations else None
        return others

    @staticmethod
    def joined(parts: Sequence[WordBeams]) -> WordBeams:
        """The rows of several, one behind the other."""
        joined = copy.copy(parts[0])
        for name in ("node", "state", "hot_node", "score"):
            setattr(joined, name, np.concatenate([getattr(part, name) for part in parts]))
        several = [part.segmentations for part in parts if part.segmentations]
        joined.segmentations = _Segmentations.joined(several) if several else None
        return joined


class _Segmentations:
    """The ways in which the labels of each hypothesis are words, where no space tells: M at most, the best first.

    Two ways with the same unfinished word and the same state of the language model have the same future, so the better
    one alone is kept: the best of all ways is found, as long as a hypothesis has no more than `_MOST_WAYS`.

    Attributes:
        nodes: (B, K, M) in the tree of words, behind the labels of the last word.
        states: (B, K, M) of the language model, in front of that word.
        scores: (B, K, M) of the words before it; minus infinity where there is no such way.
    """

    def __init__(self, shape: tuple[int, int], words: WordScores) -> None:
        self._words = words
        self.nodes, self.states = np.full((*shape, 1), ROOT), np.full((*shape, 1), words.start())
        self.scores = np.zeros((*shape, 1))

    def best(self, num: int) -> Floats:
        """(num, K) the score of the best way of each hypothesis."""
        scores: Floats = self.scores[:num].max(axis=2)
        return scores

    def grow(self, labels: Ints, grows: Mask) -> Floats:
        """The best score (b, K, C) where each label (b, C) follows each hypothesis; ``grows`` (b, K): some label does.

        Each way goes on in two: the label belongs to its last word, or begins a new one.
        """
        num, tree = len(labels), self._words.tree
        nodes, scores = self.nodes[:num], self.scores[:num]
        self._closed, self._behind = self._close(num, grows[:, :, None])
        if scores.shape[2] > 1:  # of ways that end in one state the best
            is_same = self._behind[..., :, None] == self._behind[..., None, :]
            places = np.arange(scores.shape[2])
            mine, other = self._closed[..., :, None], self._closed[..., None, :]
            is_worse = (other > mine) | ((other == mine) & (places < places[:, None]))
            self._closed[(is_same & is_worse).any(axis=3)] = _NEVER
        self._begun: Ints = np.full(labels.shape, ROOT)
        self._gone_on = np.repeat(np.where(nodes == ROOT, LEFT, nodes)[..., None], labels.shape[1], axis=3)
        for characters in self._words.spelling.characters.T:
            self._begun = tree.step(self._begun, characters[labels])
            self._gone_on = tree.step(self._gone_on, characters[labels][:, None, None, :])
        on = np.where(self._gone_on != LEFT, scores[..., None], _NEVER).max(axis=2)
        begun = np.where((self._begun != LEFT)[:, None, :], self._closed.max(axis=2)[:, :, None], _NEVER)
        best: Floats = np.maximum(on, begun)
        return best

    def keep(self, source: Ints, label_place: Ints, grew: Mask) -> None:
        """Go on with the hypotheses from some places (b, K) of the beam; those that grew did so by the label there."""
        num, rows, grew = len(source), np.arange(len(source))[:, None], grew[:, :, None]
        nodes, states, scores = (each[:num][rows, source] for each in (self.nodes, self.states, self.scores))
        gone_on = self._gone_on[rows, source, :, label_place]
        begun = np.broadcast_to(self._begun[rows, label_place][:, :, None], nodes.shape)
        scores_on = np.where(grew & (gone_on == LEFT), _NEVER, scores)
        scores_begun = np.where(grew & (begun != LEFT), self._closed[rows, source], _NEVER)
        all_scores = np.concatenate([scores_on, scores_begun], axis=2)
        order = np.argsort(-all_scores, axis=2, kind="stable")[:, :, :_MOST_WAYS]
        # Utterances behind row ``num`` have ended, and keep theirs.
        ended = (self.scores[num:] > _NEVER).sum(axis=2).max(initial=1)
        most = min(max(int((all_scores > _NEVER).sum(axis=2).max()), int(ended)), _MOST_WAYS)
        kept = (
            np.concatenate([np.where(grew, gone_on, nodes), begun], axis=2),
            np.concatenate([states, self._behind[rows, source]], axis=2),
            all_scores,
        )
        for name, values, nothing in zip(("nodes", "states", "scores"), kept, (ROOT, 0, _NEVER), strict=True):
            old = getattr(self, name)
            new = np.full((*old.shape[:2], most), nothing, old.dtype)
            new[num:, :, : old.shape[2]] = old[num:, :, :most]
            new[:num] = np.take_along_axis(values, order[:, :, :most], axis=2)
            setattr(self, name, new)

    def end(self) -> tuple[Floats, Mask, Ints]:
        """The texts end: scores (B, K), whether all words are words, and the characters of the last one if not."""
        closed, behind = self._close(len(self.nodes), np.ones((1, 1, 1), bool))
        is_whole: Mask = np.asarray((closed > _NEVER).any(axis=2))
        scores, states = np.where(is_whole[:, :, None], closed, self.scores), behind
        counts = scores > _NEVER
        scores[counts] += self._words.end(states[counts])
        best = scores.argmax(axis=2)[:, :, None]
        depths = self._words.tree.depth[np.take_along_axis(self.nodes, best, axis=2)[:, :, 0]]
        return scores.max(axis=2), is_whole, np.where(is_whole, 0, depths)

    def _close(self, num: int, wanted: Mask) -> tuple[Floats, Ints]:
        """(num, K, M) scores with the last word, minus infinity where it is none; the states behind it."""
        nodes, states, scores = self.nodes[:num], self.states[:num].copy(), self.scores[:num]
        is_whole = self._words.complete(nodes) & (scores > _NEVER) & wanted
        closed = np.where(is_whole, scores, _NEVER)
        ends = is_whole & (nodes != ROOT)
        gained, states[ends] = self._words.close(nodes[ends], states[ends])
        closed[ends] += gained
        return closed, states

    def taken(self, rows: Ints) -> _Segmentations:
        """Those of the hypotheses of some rows, copied."""
        others = copy.copy(self)
        others.nodes, others.states, others.scores = self.nodes[rows], self.states[rows], self.scores[rows]
        return others

    @staticmethod
    def joined(parts: Sequence[_Segmentations]) -> _Segmentations:
        """The rows of several, one behind the other."""
        joined, most = copy.copy(parts[0]), max(part.scores.shape[2] for part in parts)
        for name, nothing in (("nodes", ROOT), ("states", 0), ("scores", _NEVER)):
            arrays = [getattr(part, name) for part in parts]
            wider = [(*array.shape[:2], most - array.shape[2]) for array in arrays]
            filled = [
                np.concatenate([array, np.full(shape, nothing, array.dtype)], axis=2)
                for array, shape in zip(arrays, wider, strict=True)
            ]
            setattr(joined, name, np.concatenate(filled))
        return joined


class _Grown(NamedTuple):
    """What happens to words where C labels follow K hypotheses of b utterances.

    Attributes:
        labels: (b, C).
        begins: (b, C) whether a word begins, so that the one before ends.
        scores: (b, K) of the word that then ends.
        states: (b, K) of the language model behind it.
        nodes: (b, K, C) in the tree, behind the label.
        hot_changes, hot_entries: (N, C) of `HotPhrases`.
        hot_runs: (b, K) of `HotPhrases`.
    """

    labels: Ints
    begins: Mask
    scores: Floats
    states: Ints
    nodes: Ints
    hot_changes: Floats
    hot_entries: Ints
    hot_runs: Ints
