"""Counting n-grams: every order, also behind each other's suffixes."""

from collections import Counter

from toys.ngrams import random_texts

from nemo_asr.run.search.ngram import MARKS, NgramCounter


def counted(counter):
    """The counts of each order in dictionaries, and the words of each row's suffix."""
    names = [*counter.words, *MARKS]
    orders, before = [], [()] * 1
    for table in counter.tables():
        ngrams = [(*before[p], names[w]) for p, w in zip(table.prefixes.tolist(), table.words.tolist(), strict=True)]
        if len(ngrams[0]) > 1:
            assert [before[row] for row in table.suffixes.tolist()] == [ngram[1:] for ngram in ngrams]
        assert table.starts.tolist() == [ngram[0] == "<s>" for ngram in ngrams]
        orders.append(dict(zip(ngrams, table.counts.tolist(), strict=True)))
        before = ngrams
    return orders


def test_counts_are_those_of_a_loop_over_each_text():
    texts, counter = random_texts(50), NgramCounter(4)
    for text in texts:
        counter.add(text)
    for order, found in enumerate(counted(counter), 1):
        marked = [["<s>", *text, "</s>"] for text in texts]
        wanted = Counter(tuple(m[i : i + order]) for m in marked for i in range(len(m) - order + 1))
        assert {ngram: count for ngram, count in found.items() if count} == wanted
    assert (counter.num_sentences, counter.num_words) == (50, sum(map(len, texts)))


def test_texts_that_are_shorter_than_the_order_give_no_long_n_grams():
    counter = NgramCounter(5)
    counter.add(["a"])
    assert [len(table.words) for table in counter.tables()] == [4, 2, 1, 0, 0]
