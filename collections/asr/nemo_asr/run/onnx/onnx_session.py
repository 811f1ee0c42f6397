"""A session of ONNX Runtime for a file that was looked at first. What its inputs mean is known elsewhere."""

from __future__ import annotations

import mmap
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_lite.base.errors import CheckpointError, UsageError
from nemo_lite.base.files import FileKind, open_file

# Any: onnxruntime has no types.

ONNX_FILE = FileKind("the ONNX file", (1 << 31) - 1, CheckpointError, "write it with nemo-lite export")
_FIRST_BYTE = b"\x08"  # ir_version comes first
_INSTALL = "pip install onnxruntime"
_ENDING = "ExecutionProvider"  # of the name of each provider


def _check_file(path: Path) -> None:
    """See that the file can be a model, and holds all of it: other files that it names are not opened.

    Raises:
        CheckpointError: it is no regular file, is too large, or keeps tensors elsewhere.
    """
    with open_file(path, ONNX_FILE) as file:
        if file.read(1) != _FIRST_BYTE:
            raise CheckpointError("this is no ONNX file", place=str(path), wanted="a file of nemo-lite export")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            # Where a text begins so, it is the key under which a tensor names its file; it may be within another.
            places = (match.start() for match in re.finditer(b"location", content))
            if any(at > 0 and not 0x20 <= content[at - 1] < 0x80 for at in places):
                problem, remedy = "the ONNX file keeps tensors in another file", "export it again, as one file"
                raise CheckpointError(problem, place=str(path), remedy=remedy)


def open_session(path: Path, providers: Sequence[str] = (), threads: int | None = None) -> Any:
    """The model of an ONNX file.

    Args:
        path: the file.
        providers: of ONNX Runtime, the first one first, as ``CUDA`` or ``CUDAExecutionProvider``; what they lack is
            computed on the CPU; (): all is.
        threads: that share an operation on the CPU; None: one for each core.

    Raises:
        CheckpointError: there is no such file, it keeps tensors elsewhere, or it cannot be run.
        UsageError: onnxruntime is not installed, or has no such provider here.
    """
    _check_file(path)
    try:
        import onnxruntime
    except ImportError:
        raise UsageError("the package onnxruntime is not installed", place=str(path), remedy=_INSTALL) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # its errors are raised as well
    options.intra_op_num_threads = threads or 0
    known = onnxruntime.get_available_providers()
    by_short_name = {_short(name): name for name in known}
    chosen = [by_short_name.get(_short(name), name) for name in providers or ("CPU",)]
    _check_providers(chosen, known, "is not in the installed onnxruntime", path)
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=chosen)
    except Exception as error:  # onnxruntime has a class for each of its error codes, below RuntimeError or not
        got = str(error).strip().partition("\n")[0]
        raise CheckpointError("this is no ONNX file that can be run", place=str(path), got=got) from None
    # A provider whose libraries are missing is left out in silence.
    _check_providers(chosen, session.get_providers(), "cannot be started here", path)
    return session


def _short(provider: str) -> str:
    """``cuda`` of ``CUDAExecutionProvider``."""
    return provider.removesuffix(_ENDING).lower()


def _check_providers(chosen: Sequence[str], known: Sequence[str], problem: str, path: Path) -> None:
    if missing := [name for name in chosen if name not in known]:
        got, wanted = (", ".join(name.removesuffix(_ENDING) for name in names) for names in (missing, known))
        raise UsageError(f"the provider {problem}", place=str(path), got=got, wanted=wanted)
