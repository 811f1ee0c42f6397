"""LanguagePrompt is two linear layers over frames and a vector with a 1 for the language."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nemo_asr.models.transducer.prompt import LanguagePrompt
from nemo_lite.base.errors import UsageError

LANGUAGES = {"en-US": 0, "de-DE": 3, "de": 3, "auto": 5}


def by_definition(module: LanguagePrompt, encoded: torch.Tensor, place: int) -> torch.Tensor:
    batch, _, num_frames = encoded.shape
    vector = torch.nn.functional.one_hot(torch.full((batch, num_frames), place), 8).float()
    frames: torch.Tensor = module.prompt_kernel(torch.cat([encoded.transpose(1, 2), vector], dim=2))
    return frames.transpose(1, 2)


@pytest.mark.parametrize(("language", "place"), [("en-US", 0), ("de-DE", 3), ("de", 3), ("auto", 5)])
def test_frames_are_those_of_the_vector_with_the_language(language: str, place: int) -> None:
    torch.manual_seed(0)
    module, encoded = LanguagePrompt(6, LANGUAGES, 8), torch.randn(2, 6, 5)
    module.set_language(language)
    with torch.no_grad():
        found = module.forward(encoded)
        torch.testing.assert_close(found, by_definition(module, encoded, place))


def test_the_language_in_the_beginning_is_auto_else_the_first_or_the_one_that_is_given() -> None:
    assert LanguagePrompt(6, LANGUAGES).language == "auto"
    assert LanguagePrompt(6, {"fr": 2, "it": 1}).language == "fr"
    assert LanguagePrompt(6, LANGUAGES, language="de").language == "de"
    assert LanguagePrompt(6, LANGUAGES).languages == ["en-US", "de-DE", "de", "auto"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"language": "xx"}, "does not know this language: got xx, wanted one of en-US, de-DE, de, auto"),
        (
            {"num_prompts": 5},
            "prompt_dictionary: a language has no place in the vector: got 5, wanted places from 0 to 4",
        ),
        ({"prompt_dictionary": {}}, "a language has no place in the vector: got none, wanted places from 0 to 127"),
    ],
)
def test_a_language_without_a_place_is_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        LanguagePrompt(**{"feat_in": 6, "prompt_dictionary": LANGUAGES, **arguments})
    assert str(caught.value).endswith(message)
