"""Which apex is installed, found without importing it."""

from __future__ import annotations

import sys

import pytest
from toys.apex_installed import apex_from, copy_without

from nemo_lite.backends.pytorch.precision import problem_with_apex


def test_what_is_missing_is_told_with_the_remedy(tmp_path):
    assert problem_with_apex("amp") == ("apex is not installed", "install tag 24.04.01 of github.com/NVIDIA/apex")
    with apex_from():
        assert problem_with_apex("amp") == problem_with_apex("optimizers") == ("", "")
    with apex_from(copy_without("amp", tmp_path / "newer")):
        assert problem_with_apex("amp")[0] == "the apex that is installed has no amp, which it lost in 2025"
        assert problem_with_apex("optimizers") == ("", "")


def test_another_package_of_that_name_is_not_imported(tmp_path):
    package = tmp_path / "apex"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemError('imported')")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        problem, remedy = problem_with_apex("optimizers")
    assert (problem, remedy.split(",")[0]) == (
        f"the package apex that is installed is not NVIDIA's ({package})",
        "pip uninstall apex",
    )
    assert "apex" not in sys.modules
