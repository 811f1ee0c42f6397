"""Prompts of attention decoders: what stands before the first label of a text, and says what the text is to be."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Literal, TypeAlias

from nemo_asr.run.text.labels import WORD_MARK
from nemo_lite.base.errors import UsageError

PromptName: TypeAlias = Literal["canary", "canary2", "cohere"]
_CANARY_2 = (
    "<|startofcontext|>",
    "<|startoftranscript|>",
    "<|emo:undefined|>",
    "<|{language}|>",
    "<|{target_language}|>",
    "<|{punctuation}|>",
    "<|noitn|>",
    "<|{timestamps}|>",
    "<|nodiarize|>",
)
# Those of NVIDIA's models by their names there. A single SentencePiece model cuts a prompt with a space in front: so it
# is in Cohere Transcribe, and in .nemo files of such Canary models.
PROMPTS: Mapping[PromptName, Sequence[str]] = {
    "canary": (
        "<|startoftranscript|>",
        "<|{language}|>",
        "<|{task}|>",
        "<|{target_language}|>",
        "<|{punctuation}|>",
    ),
    "canary2": _CANARY_2,
    "cohere": (WORD_MARK, *_CANARY_2),
}


class TextPrompt:
    """The prompt of a model, with what it says now.

    Args:
        name: of its form.
        outputs: what the model can say: labels and special ones.
        languages: that the model knows, by the names that they have in the prompt: ``<|en|>`` stands for ``en``.
        place: the module, for messages.

    Attributes:
        name: of its form.
        language: that is spoken.
        target_language: of the text; another one than ``language``: the text is a translation.
        punctuation: texts have punctuation marks and capital letters.
        timestamps: times stand between the words of texts.

    Raises:
        UsageError: there are no languages, or one of them, or a part of the prompt, is no output.
    """

    def __init__(self, name: PromptName, outputs: Container[str], languages: Sequence[str], place: str) -> None:
        self.name, self._form, self._outputs, self._place = name, PROMPTS[name], outputs, place
        if not languages:
            raise UsageError("no language is named", place=f"{place}.languages", got="none")
        self.languages = list(languages)
        self.language = self.target_language = "en" if "en" in languages else languages[0]
        self.punctuation, self.timestamps = True, False
        missing = [f"<|{each}|>" for each in languages if f"<|{each}|>" not in outputs]
        missing += [label for label in self.labels() if label not in outputs]
        if missing:
            problem, wanted = "a part of the prompt is no output of the model", f"one for each part of {name} prompts"
            raise UsageError(problem, place=place, got=f"no {missing[0]}", wanted=wanted)

    def set(
        self,
        language: str | None = None,
        target_language: str | None = None,
        punctuation: bool | None = None,
        timestamps: bool | None = None,
    ) -> None:
        """What all recordings get from now on; what is None stays. A language alone is that of the text as well.

        Raises:
            UsageError: the model does not know a language, texts without punctuation, or times.
        """
        if language is not None:
            target_language = target_language or language
        for got in (language, target_language):
            if got is not None and got not in self.languages:
                problem, wanted = "the model does not know this language", f"one of {', '.join(self.languages)}"
                raise UsageError(problem, place=self._place, got=got, wanted=wanted)
        before = self.language, self.target_language, self.punctuation, self.timestamps
        self.language, self.target_language = language or self.language, target_language or self.target_language
        self.punctuation = self.punctuation if punctuation is None else punctuation
        self.timestamps = self.timestamps if timestamps is None else timestamps
        missing = [label for label in self.labels() if label not in self._outputs]
        if missing:
            self.language, self.target_language, self.punctuation, self.timestamps = before
            raise UsageError("the model has no such prompt", place=self._place, got=f"no output {missing[0]}")

    def labels(self) -> list[str]:
        """The prompt, label by label."""
        values = {
            "language": self.language,
            "target_language": self.target_language,
            "punctuation": "pnc" if self.punctuation else "nopnc",
            "timestamps": "timestamp" if self.timestamps else "notimestamp",
            "task": "transcribe" if self.language == self.target_language else "translate",
        }
        return [label.format(**values) for label in self._form]
