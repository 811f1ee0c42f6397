"""The configurations that come with the package, each a case of a test."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from toys.tone_corpus import ASR

SAME_MODULES = {  # as quartznet15x5, and the small Conformers and large FastConformers of each head
    *("quartznet15x5_zh", "conformer_ctc_medium", "conformer_ctc_large"),
    *("conformer_rnnt_medium", "conformer_rnnt_large"),
    *(f"fastconformer_{head}_{size}" for head in ("ctc", "rnnt", "tdt") for size in ("xlarge", "xxlarge")),
}
# `make test` takes one small model of each kind, `make long` the others.
LARGE = SAME_MODULES | {
    *("conformer_aishell", "contextnet", "fastconformer_ctc_large", "jasper10x5dr", "jasper15x5SEP"),
    *("quartznet15x5", "u2pp_aishell", "conformer_rnnt_small", "fastconformer_rnnt_large", "fastconformer_tdt_large"),
    *("fastconformer_hybrid_large", "fastconformer_rnnt_streaming"),
}


def config_cases(left_out: Collection[str] = ()) -> list:
    """Parameters of a test: the paths of all configurations but those of these names."""
    return [
        pytest.param(path, id=path.stem, marks=[pytest.mark.long] if path.stem in LARGE else [])
        for path in sorted((ASR / "configs").glob("*.yaml"))
        if path.stem not in left_out
    ]
