"""CompileOptions: what ``compile=`` takes, and what it refuses, in one line each."""

import pytest
from torch._inductor import list_mode_options

from nemo_lite.base.errors import NemoLiteError
from nemo_lite.core.run_options import MODES, CompileOptions


def test_true_is_the_defaults_and_a_dict_gives_some_of_them():
    assert CompileOptions.of(True) == CompileOptions("inductor", None, None, False)
    assert CompileOptions.of({"dynamic": True, "backend": "eager"}) == CompileOptions("eager", dynamic=True)
    assert CompileOptions.of({}) == CompileOptions.of(True)


def test_false_and_none_stay_what_they_are_and_options_too():
    given = CompileOptions(fullgraph=True)
    assert (CompileOptions.of(False), CompileOptions.of(None), CompileOptions.of(given)) == (False, None, given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("yes", "compile is not understood: got 'yes', wanted True, False or a dict of options"),
        (
            {"backand": "eager"},
            'compile: key "backand" is not known; known: backend, dynamic, fullgraph, mode (did you mean backend?)',
        ),
        ({"mode": "reduce_overhead"}, "reduce-overhead (did you mean reduce-overhead?)"),
        ({"dynamic": "no"}, "compile: dynamic is out of range: got 'no', wanted True or False or None"),
        ({"fullgraph": 1}, "compile: fullgraph is out of range: got 1, wanted True or False"),
        (
            {"backend": "eager", "mode": "default"},
            "compile: backend eager has no mode: got default; leave mode out, or take backend inductor",
        ),
    ],
)
def test_what_is_not_known_is_one_line_that_says_what_would_be(given, told):
    with pytest.raises(NemoLiteError) as refused:
        CompileOptions.of(given)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


def test_the_modes_are_those_of_torch():
    assert sorted(MODES) == sorted(list_mode_options())
