"""CompileOptions: ``compile=True``, or a dict, as one checked object. What compiles is a backend's; no torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from nemo_lite.errors import UnknownNameError, UsageError

INDUCTOR = "inductor"
MODES = ("default", "lite", "max-autotune", "max-autotune-no-cudagraphs", "reduce-overhead")
"""Those of torch's inductor; a test compares them."""

Compile = Mapping[str, object] | bool | None
"""``True``, or options by name; ``False`` does not compile; ``None`` is what the factory was told."""


@dataclass(frozen=True)
class CompileOptions:
    """How the modules of a DAG are compiled.

    Attributes:
        backend: what makes code of a graph: ``inductor``, or for tests ``eager`` and ``aot_eager``.
        mode: of inductor: ``default``, ``reduce-overhead`` (CUDA graphs), ``max-autotune`` and others.
        dynamic: whether one graph serves all shapes; ``None``: all sizes of a batch and all lengths, by the ports.
        fullgraph: end the run where a module does not compile as a whole.

    Raises:
        UnknownNameError: an unknown mode.
        UsageError: a value of the wrong type, or a mode with a backend that has none.
    """

    backend: str = INDUCTOR
    mode: str | None = None
    dynamic: bool | None = None
    fullgraph: bool = False

    def __post_init__(self) -> None:
        for name, known in (("dynamic", (True, False, None)), ("fullgraph", (True, False))):
            if not any(getattr(self, name) is each for each in known):
                got, wanted = repr(getattr(self, name)), " or ".join(map(str, known))
                raise UsageError(f"{name} is out of range", place="compile", got=got, wanted=wanted)
        if self.mode is None:
            return
        if self.mode not in MODES:
            raise UnknownNameError("mode", str(self.mode), MODES, place="compile")
        if self.backend != INDUCTOR:
            remedy = f"leave mode out, or take backend {INDUCTOR}"
            raise UsageError(f"backend {self.backend} has no mode", place="compile", got=self.mode, remedy=remedy)

    @classmethod
    def of(cls, given: Compile | CompileOptions) -> CompileOptions | Literal[False] | None:
        """The options from what a script gives; ``None`` and ``False`` as they are.

        Raises:
            UnknownNameError: a key that is none of the attributes.
            UsageError: neither a truth value nor a dict.
        """
        if given is None or given is False or isinstance(given, cls):
            return given
        if given is True:
            return cls()
        if not isinstance(given, Mapping):
            raise UsageError("compile is not understood", got=repr(given), wanted="True, False or a dict of options")
        known = [field.name for field in fields(cls)]
        for key in given:
            if key not in known:
                raise UnknownNameError("key", str(key), known, place="compile")
        options: dict[str, object] = dict(given)
        return cls(**options)  # type: ignore[arg-type]  # their types are checked there
