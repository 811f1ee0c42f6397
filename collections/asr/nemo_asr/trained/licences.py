"""Licences of weights: which allow commercial use, and what a model says that starts from another one."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from nemo_asr.published.catalogue import stated_licence
from nemo_asr.trained.folder import CARD, find_model, read_card
from nemo_lite.base.errors import CheckpointError, UsageError

COMMERCIAL = (
    *("Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC-BY-4.0", "CC-BY-SA-4.0", "CC0-1.0", "MIT"),
    *("NVIDIA Open Model License", "OpenMDW-1.1"),
)
"""Licences that allow commercial use, under conditions of their own. Of any other it is not known here."""


def require_commercial(licence: str, place: str) -> None:
    """See that a licence is one of those that are known to allow commercial use.

    Args:
        licence: as a card says it.
        place: of the model.

    Raises:
        UsageError: it is not.
    """
    if licence.strip().lower() not in (each.lower() for each in COMMERCIAL):
        problem, wanted = "the licence is not known to allow commercial use", f"one of {', '.join(COMMERCIAL)}"
        raise UsageError(problem, place=place, got=licence or "not said", wanted=wanted)


def licence_of(path: str | Path) -> str:
    """The licence in a model folder's card, or of a published model by name; "" where none is said or nothing is."""
    with suppress(CheckpointError):  # whoever reads the weights says what is wrong
        folder = find_model(path)
        if (folder / CARD).is_file():
            return read_card(folder / CARD).licence
        return stated_licence(path)
    return ""
