"""Lowerings: nothing is compiled unless that is asked for, and nothing twice."""

from nemo_lite.backends.pytorch.actions import Lowerings
from nemo_lite.backends.pytorch.lowering import lower
from nemo_lite.core.run_options import CompileOptions

EAGER, AOT = CompileOptions("eager"), CompileOptions("aot_eager")


def compiler_of(lowering):
    return lowering.__self__


def test_an_action_s_own_options_come_before_the_factory_s():
    off, on = Lowerings(False), Lowerings({"backend": "eager"})
    assert off(None) is off(False) is on(False) is lower
    assert compiler_of(on(None)).options == compiler_of(on(EAGER)).options == EAGER
    assert compiler_of(off(AOT)).options == AOT


def test_equal_options_have_one_compiler_which_keeps_what_it_compiled():
    lowerings = Lowerings(None)
    assert compiler_of(lowerings(EAGER)) is compiler_of(lowerings(CompileOptions("eager")))
    assert compiler_of(lowerings(EAGER)) is not compiler_of(lowerings(AOT))
