"""From a decoder's ids to texts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toys.beam_search import PrefixBeamSearch
from toys.evaluated_texts import BLANK, LABELS, batch, transcripts

from nemo_asr.decoding.greedy import (
    Decoder,
    GreedyCTCDecoder,
    ctc_collapse,
    post_process_predictions,
    post_process_transcripts,
)
from nemo_lite.base.errors import UsageError


def collapse_one(ids, blank):
    """The definition, frame by frame, as the reference."""
    return [i for i, previous in zip(ids, [None, *ids], strict=False) if i not in (blank, previous)]


def test_repeats_merge_and_blanks_separate():
    paths = torch.tensor([[1, 1, BLANK, 1, 2, 2, 3, BLANK], [BLANK] * 8, [1] * 8])
    assert ctc_collapse(paths, None, BLANK) == [[1, 1, 2, 3], [], [1]]


def test_frames_beyond_the_length_are_not_read():
    paths = torch.tensor([[1, 2, 3, 3], [1, 2, 3, 3]])
    assert ctc_collapse(paths, torch.tensor([4, 2]), BLANK) == [[1, 2, 3], [1, 2]]
    assert ctc_collapse(paths, torch.tensor([0, 0]), BLANK) == [[], []]


@given(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=4), st.data())
def test_a_batch_decodes_as_its_utterances_do_alone(paths, data):
    lengths = data.draw(st.lists(st.integers(0, 6), min_size=len(paths), max_size=len(paths)))
    expected = [collapse_one(path[:length], 3) for path, length in zip(paths, lengths, strict=True)]
    assert ctc_collapse(torch.tensor(paths), torch.tensor(lengths), 3) == expected


def test_collapsing_leaves_the_predictions_alone():
    paths = torch.tensor([[1, 1, 2]])
    ctc_collapse(paths, torch.tensor([1]), BLANK)
    assert paths.tolist() == [[1, 1, 2]]


def test_predictions_and_transcripts_of_all_batches_become_text():
    first, first_lengths = batch(["ab c", "ca"])
    second, second_lengths = batch(["b"], num_frames=3)
    assert post_process_predictions([first, second], LABELS) == ["ab c", "ca", "b"]
    lengths = [torch.tensor([3, 4]), second_lengths]
    assert post_process_predictions([first, second], LABELS, lengths) == ["ab", "ca", "b"]
    ids, ends = transcripts(["abba", "c"])
    assert post_process_transcripts([ids], [ends], LABELS) == ["abba", "c"]
    assert first_lengths.tolist() == [8, 4]


def test_lengths_for_other_batches_are_refused():
    with pytest.raises(UsageError, match="1 batches of predictions, 2 of lengths"):
        post_process_predictions([batch(["a"])[0]], LABELS, [torch.tensor([1]), torch.tensor([1])])


def test_an_id_of_another_vocabulary_is_named():
    with pytest.raises(UsageError, match="got id 7, wanted 0 to 3 for labels, 4 for the blank"):
        post_process_predictions([torch.tensor([[1, 7]])], LABELS)
    with pytest.raises(UsageError, match="got id -1"):
        post_process_transcripts([torch.tensor([[1, -1]])], [torch.tensor([2])], LABELS)


@pytest.mark.parametrize("decoder", [GreedyCTCDecoder(), PrefixBeamSearch()])
def test_every_decoder_gives_ids_that_become_text(decoder: Decoder):
    best = torch.tensor([[1, 1, BLANK, 1, 2], [3, BLANK, BLANK, 2, 2]])
    log_probs = torch.nn.functional.one_hot(best, 5).float().mul(9).log_softmax(2)
    lengths = torch.tensor([5, 3])
    assert post_process_predictions([decoder(log_probs, lengths)], LABELS) == ["aab", "c"]


def test_a_beam_search_adds_up_alignments_that_greedy_decoding_does_not_see():
    frame = [0.0, 0.4, 0.0, 0.0, 0.6]
    log_probs = torch.tensor([[frame, frame]]).log()
    texts = [post_process_predictions([each(log_probs)], LABELS) for each in (GreedyCTCDecoder(), PrefixBeamSearch())]
    assert texts == [[""], ["a"]]  # 0.36 for no label; 0.16 + 0.24 + 0.24 for one


def test_pieces_of_words_are_written_with_spaces_between_words():
    labels = ["\u2581th", "e", "\u2581cat"]
    assert post_process_predictions([torch.tensor([[0, 0, 3, 1, 2, 3]])], labels) == ["the cat"]
