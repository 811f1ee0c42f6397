"""PromptedDecoder: step by step and all at once, prompts, variations, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nemo_asr.models.attention.prompted import PromptedDecoder
from nemo_asr.run.text.labels import WORD_MARK
from nemo_lite.base.errors import UsageError

SIZE = 8
LABELS = [WORD_MARK, "a", "b", "c"]
LANGUAGES = ["en", "de"]
SPECIAL = [
    *("<|startoftranscript|>", "<|startofcontext|>", "<|pnc|>", "<|nopnc|>", "<|emo:undefined|>", "<|noitn|>"),
    *("<|notimestamp|>", "<|nodiarize|>", "<|transcribe|>", "<|translate|>", "<|en|>", "<|de|>"),
]


def decoder(**changes: Any) -> PromptedDecoder:
    torch.manual_seed(3)
    arguments = {"n_layers": 2, "n_heads": 2, "inner_size": 12, "dropout": 0.0, "max_positions": 32}
    return PromptedDecoder(SIZE, LABELS, SPECIAL, LANGUAGES, **{**arguments, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prompt": "canary", "positions": "sines_in_halves"},
        {"prompt": "cohere", "positions": "learned", "tied": False, "d_model": 12, "num_extra_outputs": 3},
    ],
)
def test_labels_step_by_step_have_the_probabilities_of_all_at_once(changes: dict[str, Any]) -> None:
    module = decoder(**changes).eval()
    encoded, labels = torch.randn(2, SIZE, 7), torch.tensor([[1, 2, 3], [3, 0, 0]])
    num_frames = torch.tensor([7, 4])
    with torch.no_grad():
        together: Any = module(encoded=encoded, labels=labels, num_frames=num_frames, num_labels=torch.tensor([3, 1]))
        state = module.begin(encoded, num_frames)
        for label in module.start:
            log_probs, state = module.step(torch.full((2, 1), label), state)
        rows = [log_probs]
        for place in range(3):
            log_probs, state = module.step(labels[:, place : place + 1], state)
            rows.append(log_probs)
    assert together.shape == (2, 4, len(LABELS) + 1 + len(SPECIAL) + changes.get("num_extra_outputs", 0))
    torch.testing.assert_close(torch.cat(rows, 1), together, rtol=0, atol=1e-5)


def test_each_form_of_prompt_has_its_labels() -> None:
    module = decoder(prompt="canary")
    assert module.prompt.labels() == ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|en|>", "<|pnc|>"]
    module.set_language("de")
    module.set_target_language("en")
    module.set_punctuation(False)
    wanted = ["<|startoftranscript|>", "<|de|>", "<|translate|>", "<|en|>", "<|nopnc|>"]
    assert module.prompt.labels() == wanted
    assert module.start == [len(LABELS) + 1 + SPECIAL.index(label) for label in wanted]
    module.set_language("de")
    assert (module.prompt.target_language, module.prompt.punctuation) == ("de", False)
    second, spaced = decoder(prompt="canary2"), decoder(prompt="cohere")
    assert (len(second.start), len(spaced.start)) == (9, 10)
    assert spaced.start == [LABELS.index(WORD_MARK), *second.start]
    # Prompt and labels have a position each, and a text ends where NVIDIA's search ends it.
    assert (spaced.most_labels, spaced.labels_beyond) == (22, 40)


def test_the_prompt_changes_what_is_said() -> None:
    module = decoder().eval()
    encoded, lengths = torch.randn(1, SIZE, 5), torch.tensor([5])
    found: list[Any] = []
    for language in LANGUAGES:
        module.set_language(language)
        with torch.no_grad():
            found.append(module(encoded, torch.tensor([[1]]), lengths, lengths, force_pt=True))
    assert not torch.allclose(*found)


def test_training_moves_all_weights_but_those_of_positions_that_no_label_has() -> None:
    module = decoder(positions="learned", d_model=12)
    log_probs: Any = module(
        torch.randn(1, SIZE, 5), torch.tensor([[1, 2]]), torch.tensor([5]), torch.tensor([2]), force_pt=True
    )
    log_probs[..., 1].sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in module.parameters())
    moved = module.state_dict(keep_vars=True)["layers.embed.position_embedding.weight"].grad.abs().sum(1) > 0
    assert moved.tolist() == [place < 9 + 2 for place in range(32)]


def test_a_tied_output_layer_is_the_embedding() -> None:
    module: Any = decoder()
    assert module.layers.output_layer.weight is module.layers.embed.token_embedding.weight
    other: Any = decoder(tied=False)
    assert other.layers.output_layer.weight is not other.layers.embed.token_embedding.weight


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_heads": 3}, "its heads do not divide its channels: got 3 of 8 channels"),
        ({"language": "fr"}, "the model does not know this language: got fr, wanted one of en, de"),
        ({"languages": ["en", "fr"]}, r"a part of the prompt is no output of the model: got no <\|fr\|>"),
        ({"languages": []}, "no language is named: got none"),
        (
            {"special_labels": ["<|en|>", "<|de|>"]},
            r"a part of the prompt is no output of the model: got no <\|startof",
        ),
        ({"inner_size": 65536, "n_layers": 256, "d_model": 8192}, "weights"),
    ],
)
def test_what_does_not_fit_is_one_line(changes: dict[str, Any], message: str) -> None:
    given = {"feat_in": SIZE, "labels": LABELS, "special_labels": SPECIAL, "languages": LANGUAGES, "n_heads": 2}
    with pytest.raises(UsageError, match=message) as caught:
        PromptedDecoder(**{"inner_size": 12, "n_layers": 1, **given, **changes})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_prompt_that_a_model_has_not_leaves_the_one_before() -> None:
    special = [label for label in SPECIAL if label != "<|nopnc|>"]
    module = PromptedDecoder(SIZE, LABELS, special, LANGUAGES, n_layers=1, n_heads=2, inner_size=12)
    with pytest.raises(UsageError, match=r"the model has no such prompt: got no output <\|nopnc\|>"):
        module.set_punctuation(False)
    assert module.prompt.punctuation


TIMED = [*SPECIAL, "<|timestamp|>", "<|0|>", "<|1|>", "<|2|>", "<|4|>"]


def test_times_are_asked_for_in_the_prompt() -> None:
    arguments: dict[str, Any] = {"n_layers": 1, "n_heads": 2, "inner_size": 12, "max_positions": 32}
    module = PromptedDecoder(SIZE, LABELS, TIMED, LANGUAGES, **arguments)
    plain = list(module.start)
    assert not module.times
    module.set_timestamps(True)
    first = len(LABELS) + 1 + TIMED.index("<|0|>")
    assert module.times == range(first, first + 3), "one after another"
    assert [TIMED[each - len(LABELS) - 1] for each in set(module.start) - set(plain)] == ["<|timestamp|>"]
    module.set_language("de")
    assert "<|timestamp|>" in module.prompt.labels()
    module.set_timestamps(False)
    assert not module.times
    assert PromptedDecoder(SIZE, LABELS, TIMED, LANGUAGES, timestamps=True, **arguments).times == range(
        first, first + 3
    )


@pytest.mark.parametrize(
    ("special", "prompt"), [(SPECIAL, "canary2"), ([*SPECIAL, "<|0|>"], "canary2"), (TIMED, "canary")]
)
def test_a_model_without_times_says_so(special: list[str], prompt: Any) -> None:
    arguments: dict[str, Any] = {"n_layers": 1, "n_heads": 2, "inner_size": 12, "max_positions": 32}
    module = PromptedDecoder(SIZE, LABELS, special, LANGUAGES, prompt, **arguments)
    with pytest.raises(UsageError, match=r"PromptedDecoder: (the model finds no times|the model has no such prompt)"):
        module.set_timestamps(True)
    assert not module.times
