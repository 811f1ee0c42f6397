"""Words in the search: spelling, lexicon, hot words, and the scores of a language model."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_asr.run.options import ALPHAS, BETAS, HOTWORD_WEIGHTS
from nemo_asr.run.search.ngram import UNKNOWN, Ids, LanguageModel, Scores, load_language_model
from nemo_asr.run.text.forms import APOSTROPHES, CLOSING_MARKS, folded
from nemo_asr.run.text.labels import OTHER_CASES, case_of, is_without_spaces, spelled
from nemo_lite.base.errors import DataError, UsageError
from nemo_lite.base.files import FileKind, read_text
from nemo_lite.base.ranges import Between, refuse_out_of_range

# Spelling: what each label adds to a text, for searches over words. No scores and no search in this file.


NOTHING = 0
"""The number of no character, which fills up rows of characters."""


class Spelling:
    """Labels as characters and beginnings of words.

    A space, or SentencePiece's mark before a piece, begins a word. Where no label does so, as in Chinese, a word may
    begin with each label.

    Args:
        labels: the vocabulary, without the blank.

    Attributes:
        num_characters: how many numbers of characters there are, `NOTHING` included.
        pieces: what each label writes, without a space before it.
        characters: (labels, most characters of a label) the characters' numbers, without spaces.
        begins: (labels,) whether a word begins with the label.
        is_space: (labels,) whether the label is a space and nothing else, which ends a word of letters.
        has_words: whether texts have spaces between words.

    Raises:
        UsageError: a label has a space within.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        written = [spelled(label) for label in labels]
        begins = [text.startswith(" ") for text in written]
        cores = [text.removeprefix(" ") for text in written]
        within = [label for label, core in zip(labels, cores, strict=True) if " " in core]
        if within:
            wanted = "labels that write at most one word"
            raise UsageError("a search over words cannot use these labels", got=repr(within[0]), wanted=wanted)
        self.pieces = cores
        self._numbers = {c: number for number, c in enumerate(sorted({c for core in cores for c in core}), NOTHING + 1)}
        self.num_characters = len(self._numbers) + 1
        self._case = case_of(labels)
        cases = [changes for label, changes in OTHER_CASES[self._case].items() if label in self._numbers]
        self._other_cases = {old: new for changes in cases for old, new in changes.items()}
        self.characters = np.full((len(labels), max(map(len, cores), default=0) or 1), NOTHING, np.int64)
        for row, core in zip(self.characters, cores, strict=True):
            row[: len(core)] = self.numbers(core)
        self.has_words = any(begins)
        self.begins: npt.NDArray[np.bool_] = np.array(begins) if self.has_words else np.ones(len(labels), bool)
        self.is_space: npt.NDArray[np.bool_] = np.array([label == " " for label in labels])
        # The pieces that may begin a word, and those that may follow within it.
        self._first, self._later = set(cores), set(filter(None, cores))
        if self.has_words:
            pairs = list(zip(cores, begins, strict=True))
            self._first = {core for core, begin in pairs if begin and core}
            self._later = {core for core, begin in pairs if not begin and core}
            if any(begin and not core for core, begin in pairs):  # a space alone; any label may follow it
                self._first |= self._later
        self._longest = max(map(len, self._first | self._later), default=0)

    def numbers(self, word: str) -> list[int]:
        """The numbers of a word's characters. KeyError for a character that is in no label."""
        return [self._numbers[character] for character in word]

    def has_letter(self, character: str) -> bool:
        """Whether some label writes this character."""
        return character in self._numbers

    def in_letters(self, text: str) -> str:
        """``text`` in the labels' letters, where only the case, the width, or the form of an apostrophe is another."""
        if all(map(self.has_letter, text.replace(" ", ""))):
            return text
        characters = unicodedata.normalize("NFC", text)
        return "".join(c if c == " " or self.has_letter(c) else self._in_letters(c) for c in characters)

    def _in_letters(self, character: str) -> str:
        usual = folded(character)
        cased = usual.lower() if self._case == "lower" else usual.upper() if self._case == "upper" else usual
        cased = self._other_cases.get(usual, cased)
        forms = (usual, cased, *(APOSTROPHES if usual in APOSTROPHES else ""))
        return next((form for form in forms if all(map(self.has_letter, form))), cased)

    def can_spell(self, word: str) -> bool:
        """Whether some labels, one after another, write this word."""
        return self._writes(word, self._first, self._later)

    def can_write(self, phrase: str) -> bool:
        """Whether some labels write these words; those of a script without spaces also within longer words."""
        anywhere, words = self._first | self._later, phrase.split()
        loose = [not self.has_words or is_without_spaces(word[0]) for word in words]
        pieces = [(anywhere, anywhere) if free else (self._first, self._later) for free in loose]
        return bool(words) and all(self._writes(word, *two) for word, two in zip(words, pieces, strict=True))

    def _writes(self, word: str, first: Set[str], later: Set[str]) -> bool:
        if not later:
            return word in first
        reached = {end for end in range(1, min(self._longest, len(word)) + 1) if word[:end] in first}
        for start in range(1, len(word)):
            if start in reached:
                ends = range(start + 1, min(start + self._longest, len(word)) + 1)
                reached.update(end for end in ends if word[start:end] in later)
        return bool(word) and len(word) in reached


# Lexicon: words as paths of characters, so that a search knows at each label which words are left. No scores here.


ROOT = 0
"""The node in front of a word."""
LEFT = 1
"""The node of all characters that begin no word."""
NO_WORD = -1
_MOST_LETTERS = 1_000  # of a word; each costs memory while it is searched for
_MOST_DENSE = 1 << 25  # pairs of a node and a character, 4 bytes each
_MOST_KEPT = 1 << 22  # labels of rows and of lists, 16 bytes each
_FEW_LABELS = 64  # are so few that each node may have a row
_AHEAD = 4096  # nodes that are worked out together at most, but for those that are needed
_MOST_OWN = 24  # labels of a node that has no row for itself
_WEIGHTED = re.compile("(.*\\S)\\s*[:\uff1a]\\s*(.*)")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_LIST = FileKind("the list of words", 1 << 26, remedy="give a text file with a word a line")


class Lexicon:
    """A tree of words by their characters.

    Args:
        words: what is in it; a word that the labels cannot spell is left out.
        spelling: of the labels.

    Attributes:
        words: the words, in the order given, each once.
        word_at: (nodes,) the position in ``words`` of the word that ends there, or `NO_WORD`.
        depth: (nodes,) characters from the root; 0 of `LEFT`.
        longest: characters of the longest word.
    """

    def __init__(self, words: Iterable[str], spelling: Spelling) -> None:
        self.words = [word for word in dict.fromkeys(words) if spelling.can_spell(word)]
        paths: dict[tuple[int, int], int] = {}
        ends, depths = [], [0, 0]
        for word in self.words:
            node = ROOT
            for depth, character in enumerate(spelling.numbers(word), 1):
                node = paths.setdefault((node, character), len(paths) + 2)
                if node == len(depths):
                    depths.append(depth)
            ends.append(node)
        self._width = spelling.num_characters
        self.depth: npt.NDArray[np.int64] = np.array(depths)
        self.longest = int(self.depth.max())
        self.word_at: npt.NDArray[np.int64] = np.full(len(depths), NO_WORD, np.int64)
        self.word_at[ends] = np.arange(len(ends))
        places = np.array(list(paths), np.int64).reshape(-1, 2)
        behind = np.arange(2, len(depths))
        self._characters = places[:, 1]  # of each node but the first two: the last one
        self._following: npt.NDArray[np.int32] | None = None
        if len(depths) * self._width <= _MOST_DENSE:
            self._following = np.full((len(depths), self._width), LEFT, np.int32)
            self._following[places[:, 0], places[:, 1]] = behind
            self._following[:, NOTHING] = np.arange(len(depths))
        else:  # many words of many characters, as of Chinese
            keys = places[:, 0] * self._width + places[:, 1]
            order = np.argsort(keys)
            self._keys, self._behind = keys[order], behind[order]
            self._is_inner = np.zeros(len(depths), bool)
            self._is_inner[places[:, 0]] = True

    def step(self, nodes: Ids, characters: Ids) -> Ids:
        """The nodes behind characters; `LEFT` where no word goes on so. Behind ``NOTHING`` they stay."""
        if self._following is not None:
            return self._following[nodes, characters].astype(np.int64)
        nodes, characters = np.broadcast_arrays(nodes, characters)
        following = np.where(characters == NOTHING, nodes, LEFT)
        moves = np.nonzero(self._is_inner[nodes] & (characters != NOTHING))
        keys = nodes[moves] * self._width + characters[moves]
        rows = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        following[moves] = np.where(self._keys[rows] == keys, self._behind[rows], LEFT)
        return following

    def nodes_of(self, word: str, spelling: Spelling) -> list[int]:
        """The nodes behind each character of a word."""
        node, passed = ROOT, []
        for character in spelling.numbers(word):
            node = int(self.step(np.array([node]), np.array(character))[0])
            passed.append(node)
        return passed

    def can_hold(self, phrases: Iterable[str], spelling: Spelling) -> list[bool]:
        """Whether words in a row, without spaces, can hold each phrase, wherever words begin and end in it."""
        order = np.argsort(self._characters, kind="stable")
        firsts = np.searchsorted(self._characters[order], np.arange(self._width + 1))
        results = []
        for phrase in phrases:
            first, *others = spelling.numbers(phrase)
            nodes = order[firsts[first] : firsts[first + 1]] + 2
            for character in others:
                if (self.word_at[nodes] != NO_WORD).any():
                    nodes = np.append(nodes, ROOT)
                nodes = self.step(nodes, np.array(character))
                nodes = nodes[nodes != LEFT]
            results.append(len(nodes) > 0)
        return results


def read_words(path: str | Path) -> list[str]:
    """The words of a text file: the first of each line, so that a pronunciation dictionary does too; ``#`` for remarks.

    Raises:
        DataError: the file cannot be read, is no text, has no words, or one that is too long.
    """
    lines = read_text(Path(path).expanduser(), _LIST).splitlines()
    words = [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
    if not words:
        raise DataError("the list has no words", place=str(path), wanted="a word a line")
    longest = max(words, key=len)
    if len(longest) > _MOST_LETTERS:
        got, wanted = f"{longest[:40]!r}... of {len(longest)} characters", f"words of at most {_MOST_LETTERS}"
        raise DataError("the list has a word that is too long", place=str(path), got=got, wanted=wanted)
    return list(dict.fromkeys(words))


def weighted_phrases(hotwords: Iterable[str], spelling: Spelling) -> dict[str, float | None]:
    """Hot words and phrases, and the weight of each; None: the usual one.

    Args:
        hotwords: words or phrases, ``phrase:weight``, or ``@FILE`` of a text file with such a phrase a line; ``#`` for
            remarks.
        spelling: of the labels, in whose case, width and apostrophes phrases are written; where one writes a colon,
            phrases have no weights, and where none writes a space, spaces in phrases are left out.

    Raises:
        DataError: the file cannot be read, has no phrases, or one that is too long.
        UsageError: a weight is no number, or out of range.
    """
    weights: dict[str, float | None] = {}
    for entry in hotwords:
        place, lines = "hot words", [entry]
        if entry.startswith("@") and len(entry) > 1:
            place = entry[1:]
            lines = read_text(Path(place).expanduser(), _LIST).splitlines()
            lines = [line for line in lines if line.strip() and not line.startswith("#")]
            if not lines:
                raise DataError("the list has no words", place=place, wanted="a word or phrase a line")
        for line in lines:
            match = None if spelling.has_letter(":") else _WEIGHTED.fullmatch(line.strip())
            words, weight = (match[1], folded(match[2])) if match else (line, None)
            if weight is not None:
                is_number = _NUMBER.fullmatch(weight) is not None
                if not is_number or HOTWORD_WEIGHTS.refuses(float(weight)):
                    problem = f"the weight of a hot word is {'out of range' if is_number else 'no number'}"
                    got, wanted = line.strip(), f"a weight {HOTWORD_WEIGHTS}"
                    raise UsageError(problem, place=place, got=got, wanted=wanted)
            phrase = spelling.in_letters((" " if spelling.has_words else "").join(words.split()))
            if len(phrase) > _MOST_LETTERS:
                got, wanted = f"{phrase[:40]!r}... of {len(phrase)} characters", f"at most {_MOST_LETTERS}"
                raise DataError("a hot word is too long", place=place, got=got, wanted=wanted)
            if phrase:
                weights[phrase] = None if weight is None else float(weight)
    return weights


def check_spellable(words: Iterable[str], spelling: Spelling, place: str, are_phrases: bool = False) -> None:
    """See that the labels can spell all words, or phrases.

    Raises:
        UsageError: some words cannot be spelled; the first ones are named.
    """
    bad = [word for word in words if not (spelling.can_write(word) if are_phrases else spelling.can_spell(word))]
    if bad:
        listed = ", ".join(map(repr, bad[:5])) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
        if letters := sorted(
            {letter for word in bad for letter in word if letter != " " and not spelling.has_letter(letter)}
        ):
            listed += f" (no label has {' '.join(letters[:10])}{' ...' if len(letters) > 10 else ''})"
        problem = "the model's labels cannot spell words of the list"
        raise UsageError(problem, place=place, got=listed, remedy="write them in the labels' letters and case")


# HotPhrases: which hot words and phrases a text has, label by label. How labels are searched is not here.

Places: TypeAlias = npt.NDArray[np.int32]

# Of a node: where its row begins, -1 if it was not worked out; where its list begins, and the list's length; the gain
# if a gap follows; and `HotPhrases.so_far`. One record each, so that the processor waits for memory once.
_NODE = np.dtype(
    [("row", np.int32), ("list", np.int32), ("length", np.int32), ("gap_gain", np.float64), ("so_far", np.float64)],
    align=True,
)


class HotPhrases:
    """Words and phrases that count wherever they stand in a text: one automaton over characters for all of them.

    A text gains the weight of a phrase each time that the phrase stands in it, also where two overlap. A phrase begins
    and ends with a word, whose last letter a mark such as a comma may follow; one in a script without spaces may stand
    within a longer word. While a phrase goes on, the share of its weight that its letters so far have counts; what does
    not go on loses that again.

    At most nodes most labels lead where they lead from a shorter end of the text, often from none. So a node keeps a
    list of the few labels of its own and the number of a row with all others; a node with many labels of its own has a
    row for itself. Both are worked out when a search first comes there: a step costs a look-up, whatever the number of
    phrases.

    Source: Aho and Corasick, "Efficient String Matching: An Aid to Bibliographic Search", CACM 1975.

    Args:
        phrases: what counts.
        spelling: of the labels, which can write all of them.

    Attributes:
        start: the node in front of a text.
        so_far: (nodes,) what the phrases that go on here are worth.
    """

    def __init__(self, phrases: Iterable[str], spelling: Spelling) -> None:
        self._gap = spelling.num_characters  # the number of the gap between words
        self._width = self._gap + 1
        gaps = np.where(spelling.begins & spelling.has_words, self._gap, NOTHING)
        self._gaps, self._characters = gaps, list(spelling.characters.T)  # what a label writes
        self._is_space, self._has_gaps, self._num_labels = spelling.is_space, spelling.has_words, len(gaps)
        # The labels in the order of the first two characters that they write.
        written = np.stack([gaps, *self._characters, np.zeros_like(gaps)])
        written = np.where(gaps == NOTHING, np.roll(written, -1, axis=0), written)
        starts = written[0] * self._width + written[1]
        self._in_order = np.argsort(starts, kind="stable")
        self._starts = starts[self._in_order]
        # node * width + character: the node behind, in the order of their making. The first is the gap in front.
        paths = {self._gap: 1}
        depths, ends = [0, 1], list[tuple[int, int]]()
        nodes, phrase_of, shares = list[int](), list[int](), list[float]()
        # In their order, so that nodes behind one another have numbers behind one another.
        in_order = sorted((path, at) for at, phrase in enumerate(phrases) for path in self._paths_of(phrase, spelling))
        for numbers, position in in_order:
            node, letters, num_letters = ROOT, 0, sum(number != self._gap for number in numbers)
            for number in numbers:
                depth = depths[node] + 1
                node = paths.setdefault(node * self._width + number, len(paths) + 1)
                if node == len(depths):
                    depths.append(depth)
                letters += number != self._gap
                nodes.append(node)
                phrase_of.append(position)
                shares.append(letters / num_letters)
            shares[-1] = 0.0  # the whole phrase counts by its weight, for good
            ends.append((node, position))
        self._ends, self._phrase_of_end = np.array(ends).reshape(-1, 2).T
        self._nodes, self._phrase_of = np.array(nodes), np.array(phrase_of)
        self._shares = np.array(shares)
        keys = np.fromiter(paths, np.int64)
        order = np.argsort(keys)
        self._keys = np.append(keys[order], np.iinfo(np.int64).max)
        self._behind = order + 1
        before, characters = np.divmod(keys, self._width)
        self._is_behind_gap = np.append(False, characters == self._gap)
        self._is_end = np.zeros(len(depths), bool)
        self._is_end[self._ends] = True
        # The node of the longest end of a node's characters that some phrase begins with.
        self._shorter = np.zeros(len(depths), np.int64)
        self._levels = np.split(np.argsort(depths, kind="stable"), np.cumsum(np.bincount(depths))[:-1])[1:]
        for level in self._levels[1:]:
            self._shorter[level] = self._step(self._shorter[before[level - 1]], characters[level - 1])
        self.start = 1 if spelling.has_words else ROOT

    @property
    def num_bytes(self) -> int:
        """About what they take in memory now; the tables take it as they are filled."""
        tables = self._labels, self._following, self._worth
        unused = sum((len(table) - self._num_kept) * table.itemsize for table in tables)
        return _bytes_of_arrays(self) - unused

    def use(self, weights: Sequence[float], word_bonus: float) -> None:
        """Score with these weights, one for each phrase, and this bonus for each word, from now on."""
        self._word_bonus = word_bonus
        self._gains: Scores = np.zeros(len(self._shorter))
        np.add.at(self._gains, self._ends, np.array(weights)[self._phrase_of_end])
        self.so_far: Scores = np.zeros(len(self._shorter))
        np.maximum.at(self.so_far, self._nodes, self._shares * np.array(weights)[self._phrase_of])
        for level in self._levels:
            self._gains[level] += self._gains[self._shorter[level]]
            self.so_far[level] = np.maximum(self.so_far[level], self.so_far[self._shorter[level]])
        behind, self._about = np.arange(len(self._shorter)), np.zeros(len(self._shorter), _NODE)
        moves = self._follow(behind, np.full_like(behind, self._gap))
        self._about["gap_gain"][moves] = self._gains[behind[moves]]
        self._about["so_far"] = self.so_far
        self._forget()

    def changes(self, nodes: Ids, labels: Ids, places: Places) -> tuple[Scores, Ids, Ids]:
        """Labels (B, C) follow at nodes (B, K), which are N runs of equal nodes beside one another.

        The changes hold what phrases that go on are worth (`so_far`), and are minus infinity for a second space in a
        row.

        Args:
            nodes: where the hypotheses are.
            labels: those of a frame.
            places: (B, labels + 1) of each label among them; -1 where it is not.

        Returns:
            (N, C) the changes of the score, (N, C) the entries for `follow`, and (B, K) the run of each node.
        """
        # Hypotheses beside one another mostly have the same node: a look-up for each run is a fifth of those for each.
        begins = np.ones(nodes.shape, bool)
        begins[:, 1:] = nodes[:, 1:] != nodes[:, :-1]
        firsts = np.flatnonzero(begins)
        rows, nodes = firsts // nodes.shape[1], nodes.take(firsts)
        about = self._about.take(nodes)
        if about["row"].min(initial=0) < 0:
            self._prepare(nodes)
            about = self._about.take(nodes)
        labels = labels[rows]
        entries = about["row"][:, None] + labels
        if about["length"].any():
            owners, own = _spread(about["list"], about["length"])
            place = places[rows.take(owners), self._labels.take(own)]
            hits = np.flatnonzero(place >= 0)
            entries[owners.take(hits), place.take(hits)] = own.take(hits)
        changes: Scores = self._worth.take(entries) - about["so_far"][:, None]
        if self._has_gaps:
            ends = np.flatnonzero(about["gap_gain"])
            if len(ends):
                changes[ends] += about["gap_gain"][ends, None] * (self._gaps[labels[ends]] != NOTHING)
        return changes, entries, begins.cumsum().reshape(begins.shape) - 1

    def follow(self, entries: Ids) -> Ids:
        """The nodes behind labels, by their entries as `changes` gave them last."""
        return self._following.take(entries).astype(np.int64)

    def end(self, nodes: Ids) -> Scores:
        """The text ends at nodes (N,): the change of the score, by the last word and by phrases, complete or not."""
        behind, gains = nodes.copy(), -self.so_far[nodes]
        moves = self._follow(behind, np.full(len(nodes), self._gap))
        gains[moves] += self._gains[behind[moves]] + (self._word_bonus if self._has_gaps else 0.0)
        return gains

    def _forget(self) -> None:
        """Begin again with the row of the root alone, which is the first one."""
        size = _MOST_KEPT + self._num_labels  # memory is taken as it is filled
        self._labels, self._following = np.empty(size, np.int32), np.empty(size, np.int32)
        self._worth, self._num_kept = np.empty(size), 0
        every = np.arange(self._num_labels)
        self._keep(every, *self._extend(np.zeros_like(every), every))
        self._about["row"], self._about["length"] = -1, 0
        self._about["row"][ROOT] = 0

    def _prepare(self, nodes: Ids) -> None:
        """Work out the labels of nodes (N,), where that was not done."""
        if self._num_kept > _MOST_KEPT:
            self._forget()
        # Those that follow in the order of the phrases are asked for soon, and cost less together.
        row_of = self._about["row"]
        missing = np.unique(nodes[row_of[nodes] < 0])
        ahead = missing[:, None] + np.arange(max(_AHEAD // len(missing), 1))
        ahead = np.unique(np.minimum(ahead, len(row_of) - 1))
        chain = [ahead[row_of[ahead] < 0]]
        while len(chain[-1]):
            shorter = np.unique(self._shorter[chain[-1]])
            chain.append(shorter[row_of[shorter] < 0])
        for some in reversed(chain[:-1]):
            self._add(some[row_of[some] < 0])

    def _add(self, nodes: Ids) -> None:
        """Work out the labels of nodes (N,): those that lead elsewhere than the row of the next shorter node says."""
        shorter, row_of = self._shorter[nodes], self._about["row"]
        row_of[nodes] = row_of[shorter]
        owners, labels = self._candidates(nodes)
        following, worth = self._extend(nodes[owners], labels)
        at = row_of[nodes[owners]] + labels
        differs = (following != self._following[at]) | (worth != self._worth[at])
        first = self._about["list"][shorter].astype(np.int64)
        heirs, inherited = _spread(first, self._about["length"][shorter])
        pairs = owners * self._num_labels + labels
        # A table takes a seventh of the time of the sort that numpy would choose.
        is_new = np.isin(heirs * self._num_labels + self._labels[inherited], pairs, invert=True, kind="table")
        heirs, inherited = heirs[is_new], inherited[is_new]
        owners = np.concatenate([owners[differs], heirs])
        labels = np.concatenate([labels[differs], self._labels[inherited]])
        following = np.concatenate([following[differs], self._following[inherited]])
        worth = np.concatenate([worth[differs], self._worth[inherited]])

        lengths = np.bincount(owners, minlength=len(nodes))
        is_long = lengths > (_MOST_OWN if self._num_labels > _FEW_LABELS else 0)
        self._add_rows(nodes[is_long])
        in_row = is_long[owners]
        at = row_of[nodes[owners[in_row]]] + labels[in_row]
        self._following[at], self._worth[at] = following[in_row], worth[in_row]
        lengths[is_long] = 0
        self._about["list"][nodes] = self._num_kept + np.cumsum(lengths) - lengths
        self._about["length"][nodes] = lengths
        order = np.argsort(owners, kind="stable")
        order = order[~in_row[order]]
        self._keep(labels[order], following[order], worth[order])

    def _add_rows(self, nodes: Ids) -> None:
        """Rows for nodes (N,), which begin as those that they had."""
        every = np.arange(self._num_labels)
        like = (self._about["row"][nodes][:, None] + every).reshape(-1)
        self._about["row"][nodes] = self._num_kept + np.arange(len(nodes)) * self._num_labels
        self._keep(np.tile(every, len(nodes)), self._following[like].astype(np.int64), self._worth[like])

    def _keep(self, labels: Ids, following: Ids, worth: Scores) -> None:
        """Put labels (N,) behind all that are kept: the nodes behind them, and what they are worth."""
        first, self._num_kept = self._num_kept, self._num_kept + len(labels)
        if self._num_kept > len(self._labels):
            size = 2 * self._num_kept
            self._labels, self._following = np.resize(self._labels, size), np.resize(self._following, size)
            self._worth = np.resize(self._worth, size)
        kept = slice(first, self._num_kept)
        self._labels[kept], self._following[kept], self._worth[kept] = labels, following, worth

    def _candidates(self, nodes: Ids) -> tuple[Ids, Ids]:
        """The labels that may lead elsewhere at nodes (N,) than at the next shorter ones: places in ``nodes``, labels.

        They are those whose first two characters a phrase goes on by, or whose only one. Whole phrases end at others.
        """
        owners, firsts, behind = self._paths(nodes)
        every, behind_gap = np.arange(len(nodes)), np.flatnonzero(self._is_behind_gap[nodes])
        owners = np.concatenate([owners, every, behind_gap])
        firsts = np.concatenate([firsts, np.full(len(every), NOTHING), np.full(len(behind_gap), self._gap)])
        behind = np.concatenate([behind, nodes, nodes[behind_gap]])  # a gap behind a gap, and nothing, stay there
        is_any = np.where(firsts == self._gap, behind == self.start, self._is_end[behind]) | (firsts == NOTHING)
        pairs, seconds, _ = self._paths(behind)
        pairs, seconds = pairs[~is_any[pairs]], seconds[~is_any[pairs]]
        low = np.concatenate([firsts, firsts[pairs]]) * self._width
        low[len(firsts) :] += seconds
        end = low + np.concatenate([np.where(is_any, self._width, 1), np.ones_like(pairs)])
        first = np.searchsorted(self._starts, low)
        ranges, places = _spread(first, np.searchsorted(self._starts, end) - first)
        return np.concatenate([owners, owners[pairs]])[ranges], self._in_order[places]

    def _paths(self, nodes: Ids) -> tuple[Ids, Ids, Ids]:
        """How phrases go on at nodes (N,): places in ``nodes``, characters, and the nodes behind them."""
        first, end = (np.searchsorted(self._keys, (nodes + more) * self._width) for more in (0, 1))
        owners, paths = _spread(first, end - first)
        return owners, self._keys[paths] % self._width, self._behind[paths]

    def _extend(self, nodes: Ids, labels: Ids) -> tuple[Ids, Scores]:
        """Labels (N,) follow at nodes (N,): the nodes behind them; what that is worth, but for phrases that end there.

        Those that end at the gap in front of a label are worth the same for all such labels: see `changes`.
        """
        behind, gains = nodes.copy(), np.full(len(nodes), 0.0 if self._has_gaps else self._word_bonus)
        gains[self._follow(behind, self._gaps[labels])] += self._word_bonus
        for characters in self._characters:
            moves = self._follow(behind, characters[labels])
            gains[moves] += self._gains[behind[moves]]
        gains[self._is_space[labels] & self._is_behind_gap[nodes]] = -np.inf
        return behind, gains + self.so_far[behind]

    def _follow(self, nodes: Ids, characters: Ids) -> Ids:
        """Go on by a character each, in place: which ones did. A gap behind a gap writes nothing."""
        moves = np.flatnonzero((characters != NOTHING) & ~((characters == self._gap) & self._is_behind_gap[nodes]))
        nodes[moves] = self._step(nodes[moves], characters[moves])
        return moves

    def _step(self, nodes: Ids, characters: Ids) -> Ids:
        """The nodes (N,) behind one more character; where none is, that of the longest end that goes on."""
        following, places = np.full(len(nodes), ROOT), np.arange(len(nodes))
        while len(places):
            keys = nodes * self._width + characters
            rows = np.searchsorted(self._keys, keys)
            is_path = self._keys[rows] == keys
            following[places[is_path]] = self._behind[rows[is_path]]
            is_left = ~is_path & (nodes != ROOT)
            places, characters, nodes = places[is_left], characters[is_left], self._shorter[nodes[is_left]]
        return following

    def _paths_of(self, phrase: str, spelling: Spelling) -> Iterator[list[int]]:
        """The characters of a phrase, with gaps where a word has to begin or end; a mark may stand at its end too."""
        ends = [[] if not spelling.has_words or is_without_spaces(phrase[end]) else [self._gap] for end in (0, -1)]
        inner = [[self._gap] if character == " " else spelling.numbers(character) for character in phrase]
        path = [number for part in (ends[0], *inner) for number in part]
        yield [*path, *ends[1]]
        if ends[1] and phrase[-1] not in CLOSING_MARKS:
            yield from ([*path, *spelling.numbers(mark)] for mark in CLOSING_MARKS if spelling.has_letter(mark))


def _spread(first: Ids, lengths: Ids) -> tuple[Ids, Ids]:
    """Ranges (N,), written out: of each number in them the range's place, and the number."""
    owners = np.arange(len(first)).repeat(lengths)
    return owners, np.arange(len(owners)) + (first + lengths - lengths.cumsum()).take(owners)


# WordScores: what a hypothesis gains or loses by its words: a lexicon, a language model, hot words. No search here.


_LN10 = math.log(10)
_WORD_BYTES = 64  # of a word in a list


Alpha: TypeAlias = Annotated[float, ALPHAS]
Beta: TypeAlias = Annotated[float, BETAS]
HotwordWeight: TypeAlias = Annotated[float, HOTWORD_WEIGHTS]
UnknownScore: TypeAlias = Annotated[float, Between(-1_000, 0)]


@dataclass(frozen=True)
class Weights:
    """How much words count beside the sounds. All are natural logarithms, as the log-probabilities of a model are.

    Attributes:
        alpha: factor of the language model's logarithms.
        beta: added for each word; above 0 it favours more and shorter words.
        hotword_weight: added for each hot word or phrase.
        unknown_score: added for each word that the language model does not know.

    Raises:
        UsageError: a weight is out of range.
    """

    alpha: Alpha = 0.5
    beta: Beta = 1.0
    hotword_weight: HotwordWeight = 6.0
    unknown_score: UnknownScore = -10.0

    def __post_init__(self) -> None:
        refuse_out_of_range(type(self).__init__, vars(self), type(self).__name__)


class WordScores:
    """The score of each word, while it is being spelled and when it ends.

    Where labels have no spaces, a text is cut into words in the best of all ways. The words are those of the lexicon;
    without one, those of the language model, hot phrases, and each label, as an unknown word where the model has none.

    Args:
        spelling: of the model's labels.
        lexicon: the only words that there may be; None: any.
        model: the language model; None: none.
        hotwords: words and phrases that are more probable here than elsewhere; see `weighted_phrases`.
        weights: what each of them counts.
        place: where the lexicon is, for errors.

    Attributes:
        spelling: as given.
        tree: the words that are told apart.
        phrases: the hot words and phrases; None: there are none.
        has_tree: whether words are told apart: by a lexicon or a language model. Else the phrases have the scores.
        is_segmented: whether words are told apart without spaces, so that each may end behind any label.
        is_closed: whether there are no other words than those of the tree.
        so_far: (nodes,) what a word that is not complete is worth, by its node in the tree.

    Raises:
        UsageError: the labels cannot spell a word of the lexicon or a hot word, or no word of the language model; or
            the lexicon has not all hot words.
    """

    def __init__(
        self,
        spelling: Spelling,
        lexicon: Sequence[str] | None = None,
        model: LanguageModel | None = None,
        hotwords: Sequence[str] = (),
        weights: Weights | None = None,
        place: str = "lexicon",
    ) -> None:
        self.spelling, self._model = spelling, model
        self._hot = weighted_phrases(hotwords, spelling)
        self.has_tree = lexicon is not None or model is not None or not self._hot
        self.is_segmented = self.has_tree and not spelling.has_words
        self.is_closed = lexicon is not None or self.is_segmented
        check_spellable(lexicon or [], spelling, place)
        check_spellable(self._hot, spelling, "hot words", are_phrases=True)
        hot_words = list(dict.fromkeys(word for phrase in self._hot for word in phrase.split()))
        model_words = list(model.words) if model else []
        # Hot words are told apart from unknown ones where those cost something.
        in_tree = lexicon if lexicon is not None else [*model_words, *(hot_words if model else [])]
        if lexicon is None and self.is_segmented:
            in_tree = [*in_tree, *filter(None, spelling.pieces)]
        self.tree = Lexicon(in_tree, spelling)
        if lexicon is not None:
            _check_hot_words(hot_words, self.tree, spelling)
        self.phrases = HotPhrases(self._hot, spelling) if self._hot else None
        self._hot_words = set(hot_words)
        positions = {word: position for position, word in enumerate(model_words)}
        self._in_model: Ids = np.array([positions.get(word, UNKNOWN) for word in self.tree.words] + [UNKNOWN], np.int64)
        if model and (self._in_model == UNKNOWN).all():
            _refuse(model_words, spelling, lexicon is None)
        self.use(weights or Weights())

    def use(self, weights: Weights) -> None:
        """Score with other weights from now on."""
        self._weights = weights
        # What each word is worth beside the language model; the last place is that of unknown words.
        is_hot = np.array([word in self._hot_words for word in self.tree.words] + [False])
        self._word_bonus = np.full(len(is_hot), float(weights.beta))
        if self._model:
            self._word_bonus[(self._in_model == UNKNOWN) & ~is_hot] += weights.unknown_score
        if self.is_closed:
            self._word_bonus[-1] = -np.inf
        self.so_far: Scores = np.zeros(len(self.tree.word_at))
        # As soon as no word goes on like this, what the unknown word will cost counts, so that it takes no places.
        self.so_far[LEFT] = self._word_bonus[-1] - weights.beta
        if self.phrases:
            beta = 0.0 if self.has_tree else weights.beta
            self.phrases.use([weights.hotword_weight if own is None else own for own in self._hot.values()], beta)

    @property
    def num_bytes(self) -> int:
        """About what it takes in memory now, but for the language model, which others use too."""
        of_phrases = self.phrases.num_bytes if self.phrases else 0
        return _bytes_of_arrays(self) + _bytes_of_arrays(self.tree) + _WORD_BYTES * len(self.tree.words) + of_phrases

    def start(self) -> int:
        """The state of the language model in front of a text."""
        return self._model.start() if self._model else 0

    def close(self, nodes: npt.NDArray[np.int64], states: Ids) -> tuple[Scores, Ids]:
        """A word ends: its scores and the states behind it.

        Args:
            nodes: (N,) nodes in the tree, none of them the root.
            states: (N,) of the language model in front of the word.

        Returns:
            (N,) natural logarithms, minus infinity where the lexicon has no such word; (N,) states.
        """
        words = self.tree.word_at[nodes]  # NO_WORD is the last place, that of unknown words
        scores = self._word_bonus[words]
        if self._model is None:
            return scores, states
        log10, following = self._model.score_batch(states, self._in_model[words])
        return scores + self._weights.alpha * _LN10 * log10, following

    def end(self, states: Ids) -> Scores:
        """The text ends: (N,) states to (N,) scores."""
        return self._weights.alpha * _LN10 * self._model.end_batch(states) if self._model else np.zeros(len(states))

    def complete(self, nodes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether a word may end at a node; without a lexicon it may anywhere."""
        if not self.is_closed:
            return np.ones(nodes.shape, bool)
        complete: npt.NDArray[np.bool_] = (nodes == ROOT) | (self.tree.word_at[nodes] != NO_WORD)
        return complete


def word_scores(
    labels: Sequence[str],
    lexicon: str | Path | None,
    lm: str | Path | None,
    hotwords: Sequence[str],
    weights: Weights,
) -> WordScores | None:
    """What words are worth to a search; None where only sounds count.

    Raises:
        UsageError: as of `WordScores`; or a weight is out of range.
        DataError: a file cannot be read.
    """
    if lexicon is None and lm is None and not hotwords:
        return None
    model: LanguageModel | None = None if lm is None else load_language_model(lm)
    words = None if lexicon is None else read_words(lexicon)
    return WordScores(Spelling(labels), words, model, hotwords, weights, place=str(lexicon or ""))


class SearchOfWords:
    """A search in which words may count, with weights that may change. Arguments and errors are those of `word_scores`.

    Attributes:
        weights: those that it uses now.
    """

    def __init__(
        self,
        labels: Sequence[str],
        lexicon: str | Path | None,
        lm: str | Path | None,
        hotwords: Sequence[str],
        weights: Weights,
    ) -> None:
        self.weights = weights
        self._words = word_scores(labels, lexicon, lm, hotwords, weights)

    @property
    def num_bytes(self) -> int:
        """About what its words take in memory now, but for the language model, which other searches use too."""
        return self._words.num_bytes if self._words else 0

    def use(self, weights: Weights) -> None:
        """Search with other weights from now on."""
        self.weights = weights
        if self._words:
            self._words.use(weights)


def _bytes_of_arrays(holder: object) -> int:
    return sum(value.nbytes for value in vars(holder).values() if isinstance(value, np.ndarray))


def _check_hot_words(hot_words: Sequence[str], tree: Lexicon, spelling: Spelling) -> None:
    if spelling.has_words:
        outside = set(hot_words).difference(tree.words)
    else:  # a phrase may stand across words
        held = zip(hot_words, tree.can_hold(hot_words, spelling), strict=True)
        outside = {word for word, is_held in held if not is_held}
    if outside:
        remedy = "add them to the list, or leave them out"
        raise UsageError("the lexicon lacks hot words", got=", ".join(sorted(outside)[:5]), remedy=remedy)


def _refuse(model_words: Sequence[str], spelling: Spelling, is_open: bool) -> None:
    example = next(iter(model_words), "")
    if is_open or not any(spelling.can_spell(word) for word in model_words):
        problem, wanted = "the language model is of another vocabulary", "words in the labels' letters and case"
        raise UsageError(
            problem, got=f"{len(model_words)} words such as {example!r}, which the labels cannot spell", wanted=wanted
        )
    raise UsageError(
        "the language model knows no word of the lexicon", got=f"{len(model_words)} words such as {example!r}"
    )
