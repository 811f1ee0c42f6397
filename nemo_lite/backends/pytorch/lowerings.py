"""Which way slices become modules: as they are, or with compiled regions. ``torch._dynamo`` is imported only then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from nemo_lite.backends.pytorch.lowering import Lowering, lower
from nemo_lite.core.run_options import Compile, CompileOptions

if TYPE_CHECKING:
    from nemo_lite.backends.pytorch.compiling import Compiler


class Lowerings:
    """The lowerings of a factory's actions. What was compiled for one action serves the later ones.

    Args:
        default: for actions that do not say it themselves.
    """

    def __init__(self, default: Compile | CompileOptions) -> None:
        self._default = CompileOptions.of(default)
        self._compilers: dict[CompileOptions, Compiler] = {}

    def __call__(self, options: CompileOptions | Literal[False] | None) -> Lowering:
        """The lowering by these options.

        Raises:
            UnknownNameError: a backend that torch does not have.
        """
        chosen = self._default if options is None else options
        if not chosen:
            return lower
        if chosen not in self._compilers:
            from nemo_lite.backends.pytorch.compiling import Compiler

            self._compilers[chosen] = Compiler(chosen)
        return self._compilers[chosen].lower

    def report(self) -> None:
        """Say what was compiled since the last report, in one line."""
        for compiler in self._compilers.values():
            compiler.report()
