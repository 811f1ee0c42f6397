"""SearchOptions: what commands, programs and requests ask of a search, of whatever family. No torch and no numpy."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from nemo_lite.base.errors import UsageError


@dataclass(frozen=True)
class SearchOptions:
    """What is asked of a search. None, and no words: what the search has by itself.

    Attributes:
        beam_size: hypotheses that go on after each frame.
        lexicon: a file of the only words that there may be.
        lm: a file of a language model.
        hotwords: words and phrases that are more probable here.
        alpha: factor of the language model's logarithms.
        beta: added for each word.
        hotword_weight: added for each hot word or phrase without a weight of its own.
    """

    beam_size: int | None = None
    lexicon: str | None = None
    lm: str | None = None
    hotwords: tuple[str, ...] = ()
    alpha: float | None = None
    beta: float | None = None
    hotword_weight: float | None = None

    def arguments(self) -> dict[str, Any]:
        """What is asked for, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value not in (None, ())}

    def with_hotwords(self, words: Iterable[str]) -> SearchOptions:
        """With more hot words."""
        return replace(self, hotwords=(*self.hotwords, *words))

    def without_hotwords(self) -> SearchOptions:
        """The same search without hot words."""
        return replace(self, hotwords=(), hotword_weight=None)

    def refuse_others(self, names: Collection[str], place: str) -> None:
        """UsageError where something is asked for that a search cannot do.

        Args:
            names: what it can do.
            place: whose search it is.
        """
        others = [name for name in self.arguments() if name not in names]
        if others:
            wanted = f"one of {', '.join(names)}" if names else "no option of a search"
            raise UsageError("this search has no such option", place=place, got=", ".join(others), wanted=wanted)
