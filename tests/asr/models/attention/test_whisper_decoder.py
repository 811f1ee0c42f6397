"""WhisperDecoder: prompts, languages that are found, the rules of times; steps give what whole texts give.

What it finds is compared with transformers in `test_whisper_models.py`.
"""

from __future__ import annotations

import pytest
import torch

from nemo_asr.models.attention.whisper_decoder import AUTO, WhisperDecoder
from nemo_lite.base.errors import UsageError

LABELS, SIZE, FRAMES, POSITIONS = 12, 8, 6, 10
END, START, EN, DE, TRANSLATE, TRANSCRIBE, NO_TIMES = range(LABELS, LABELS + 7)
OUTPUTS = NO_TIMES + 1 + 4  # times of four frames
T0, T1, T2, T3 = range(NO_TIMES + 1, OUTPUTS)
OTHERS = set(range(NO_TIMES))


def decoder_of(**changes) -> WhisperDecoder:
    torch.manual_seed(0)
    settings = {
        "languages": {"en": EN, "de": DE},
        "tasks": {"translate": TRANSLATE, "transcribe": TRANSCRIBE},
        "no_timestamps_token": NO_TIMES,
        **changes,
    }
    decoder = WhisperDecoder(LABELS, OUTPUTS, START, SIZE, 2, 2, 12, POSITIONS, **settings)
    for weights in decoder.parameters():
        torch.nn.init.normal_(weights, std=1.0)
    return decoder.eval()


def encoded_of(number: int = 3) -> torch.Tensor:
    return torch.randn(number, SIZE, FRAMES, generator=torch.Generator().manual_seed(1))


def lengths_of(number: int = 3) -> torch.Tensor:
    return torch.full((number,), FRAMES)


@pytest.mark.parametrize(
    ("settings", "start"),
    [
        ({}, [START, NO_TIMES]),
        ({"task": "translate"}, [START, TRANSLATE, NO_TIMES]),
        ({"prompt_language": "de"}, [START, DE, TRANSCRIBE, NO_TIMES]),
        ({"prompt_language": "en", "task": "translate"}, [START, EN, TRANSLATE, NO_TIMES]),
        ({"prompt_language": "de", "timestamps": True}, [START, DE, TRANSCRIBE]),
        ({"no_timestamps_token": None}, [START]),
    ],
)
def test_the_prompt_says_language_task_and_that_there_are_no_times(settings, start: list[int]) -> None:
    decoder = decoder_of(**settings)
    assert [*decoder.start] == start
    assert decoder.most_labels == POSITIONS - len(start)


def test_language_and_task_can_be_set_later() -> None:
    decoder = decoder_of(prompt_language="de")
    decoder.set_language("en")
    decoder.set_task("translate")
    assert [*decoder.start] == [START, EN, TRANSLATE, NO_TIMES]
    assert decoder.languages == [AUTO, "en", "de"]


@pytest.mark.parametrize("width", [1, 3])
def test_steps_give_the_probabilities_of_whole_texts(width: int) -> None:
    decoder = decoder_of(prompt_language="de")
    texts = torch.randint(0, LABELS, (3 * width, 5), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        encoded = encoded_of()
        several = encoded.repeat_interleave(width, 0)
        wanted = decoder(several, texts, lengths_of(3 * width), lengths_of(3 * width), force_pt=True)
        state = decoder.begin(encoded, lengths_of(), width)
        for _ in decoder.start:
            log_probs, state = decoder.step(torch.zeros(3, width, dtype=torch.int64), state)
        for place in range(5):
            torch.testing.assert_close(log_probs.flatten(0, 1), wanted[:, place], rtol=1e-4, atol=1e-5)
            log_probs, state = decoder.step(texts[:, place].view(3, width), state)
    torch.testing.assert_close(log_probs.flatten(0, 1), wanted[:, 5], rtol=1e-4, atol=1e-5)


def test_frames_behind_the_valid_ones_are_heard_too() -> None:
    decoder = decoder_of(prompt_language="de")
    texts, encoded, two = torch.zeros(1, 2, dtype=torch.int64), encoded_of(1), torch.tensor([2])
    whole = decoder(encoded, texts, lengths_of(1), two, force_pt=True)
    assert torch.equal(decoder(encoded, texts, two, two, force_pt=True), whole)
    encoded[:, :, -1] += 1
    assert not torch.allclose(decoder(encoded, texts, two, two, force_pt=True), whole)


def test_each_utterance_gets_the_language_that_is_most_probable_behind_the_start() -> None:
    decoder, encoded = decoder_of(prompt_language=AUTO, task="transcribe"), encoded_of(16)
    torch.manual_seed(0)
    for weights in decoder.parameters():
        torch.nn.init.normal_(weights)
    known = decoder_of()
    known.load_state_dict(decoder.state_dict())
    with torch.no_grad():
        scores, _ = known.step(torch.full((16, 1), START), known.begin(encoded, lengths_of(16)))
        wanted = torch.where(scores[:, 0, EN] >= scores[:, 0, DE], EN, DE)
        prompts, _ = decoder.begin(encoded, lengths_of(16), 2).extra
    assert wanted.unique().tolist() == [EN, DE]
    assert prompts.tolist() == [[START, token, TRANSCRIBE, NO_TIMES] for token in wanted.tolist() for _ in range(2)]


def after(decoder: WhisperDecoder, labels: list[int]) -> torch.Tensor:
    """(outputs,): the probabilities of what comes behind labels of a text."""
    with torch.no_grad():
        state = decoder.begin(encoded_of(1), lengths_of(1))
        for label in [*decoder.start, *labels]:
            log_probs, state = decoder.step(torch.tensor([[label]]), state)
    return log_probs[0, 0].exp()


def possible(decoder: WhisperDecoder, labels: list[int]) -> set[int]:
    return set(after(decoder, labels).nonzero().flatten().tolist())


def test_tokens_that_are_never_found_have_no_probability() -> None:
    decoder = decoder_of(suppress_tokens=[3, START], begin_suppress_tokens=[5, END])
    assert possible(decoder, []) == set(range(OUTPUTS)) - {3, START, 5, END}
    assert possible(decoder, [7]) == set(range(OUTPUTS)) - {3, START}
    torch.testing.assert_close(after(decoder, [7]).sum(), torch.tensor(1.0))


def test_behind_the_last_position_a_text_ends() -> None:
    decoder = decoder_of()
    assert len(possible(decoder, [1] * (decoder.most_labels - 1))) == OUTPUTS
    assert possible(decoder, [1] * decoder.most_labels) == {END}


@pytest.mark.parametrize(
    ("labels", "allowed"),
    [
        ([], {T0, T1, T2}),  # a time, and none beyond the latest one at the beginning
        ([T1], OTHERS),  # a part begins: no second time
        ([T1, 4], OTHERS | {T2, T3}),  # no time before its beginning, and a part lasts
        ([T0, 4, T2], {END, *range(START, NO_TIMES), T2, T3}),  # it has ended: the next one begins, or the text ends
        ([T0, 4, T2, T2], OTHERS),
        ([T0, 4, T1, T2, 5], OTHERS | {T3}),
    ],
)
def test_times_come_in_pairs_and_in_order(labels: list[int], allowed: set[int]) -> None:
    found = possible(decoder_of(timestamps=True, max_initial_timestamp_index=2), labels)
    # Where times are more probable than any other output, these alone are left.
    assert found in (allowed, allowed & {T0, T1, T2, T3})


def test_where_times_together_are_more_probable_than_any_other_output_one_comes() -> None:
    kinds = set()
    for seed in range(60):
        decoder, plain = decoder_of(timestamps=True), decoder_of()
        torch.manual_seed(seed)
        torch.nn.init.normal_(decoder.layers.embed.token_embedding.weight, std=1.0)
        plain.load_state_dict(decoder.state_dict())
        plain.start = decoder.start
        scores = after(plain, [T0, 4])
        has_times = bool(scores[T1:].sum() > scores[:NO_TIMES].max())
        kinds.add(has_times)
        assert (possible(decoder, [T0, 4]) == {T1, T2, T3}) == has_times
    assert kinds == {True, False}


def whole_text(number: int, **changes) -> object:
    texts, lengths = torch.zeros(3, number, dtype=torch.int64), lengths_of()
    return decoder_of(**changes)(encoded_of(), texts, lengths, lengths, force_pt=True)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: decoder_of(prompt_language="fr"), "not know this language: got fr, wanted one of auto, en, de"),
        (lambda: decoder_of(languages=None, prompt_language="en"), "takes no language: got en"),
        (lambda: decoder_of(task="translate", tasks={"transcribe": TRANSCRIBE}), "no such task: got translate"),
        (lambda: decoder_of(suppress_tokens=[OUTPUTS]), f"a token is no output: got {OUTPUTS}, wanted 0 to"),
        (lambda: whole_text(9), "got 9 labels, wanted at most 8"),
        (
            lambda: whole_text(2, prompt_language=AUTO),
            r"training needs the language of the texts: got auto; say it: --set WhisperDecoder\.prompt_language=CODE",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(call, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as error:
        call()
    assert "\n" not in str(error.value)
