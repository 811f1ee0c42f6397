"""Decorators that warn and that document ports."""

from __future__ import annotations

import io
import re
import sys

from nemo_lite.compat.deprecated import add_port_docs, deprecated
from nemo_lite.utils import logging


def test_a_deprecated_function_warns_once_and_names_its_caller(capsys):
    @deprecated(version=0.12, explanation="Use new() instead.")
    def old(x):
        """Doc."""
        return x + 1

    line_number = sys._getframe().f_lineno + 1
    assert [old(1), old(2)] == [2, 3]
    text = capsys.readouterr().err
    expected = "Function ``old`` is deprecated. It is going to be removed in the 0.12 version. Use new() instead."
    assert text.count(expected) == 1
    assert f"test_deprecated.py:{line_number}: Function" in text
    assert (old.__name__, old.__doc__) == ("old", "Doc.")


def test_in_nemo_s_style_the_line_is_nemo_s():
    @deprecated(version=0.1)
    def say_whee():
        pass

    stream = io.StringIO()
    logging.set_style("nemo")
    try:
        with logging.patch_stderr_handler(stream):
            say_whee()
    finally:
        logging.set_style(None)
    head = r"\[NeMo W [0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} deprecated:[0-9]+\] "
    text = r"Function ``say_whee`` is deprecated\. It is going to be removed in the 0\.1 version\."
    assert re.fullmatch(head + text, stream.getvalue().strip())


def test_two_functions_of_one_name_both_warn(capsys):
    def make():
        @deprecated()
        def same_name():
            pass

        return same_name

    make()()
    make()()
    assert capsys.readouterr().err.count("Function ``same_name`` is deprecated.") == 2


def test_a_deprecated_class_stays_a_class(capsys):
    @deprecated(explanation="Use New.")
    class Old:
        def __init__(self, x):
            self.x = x

    assert isinstance(Old(3), Old)
    assert Old(x=4).x == 4
    assert capsys.readouterr().err.count("Class ``Old`` is deprecated. Use New.") == 1


def test_ports_are_listed_in_the_docstring_below_property():
    class Module:
        @property
        @add_port_docs("The ports:")
        def input_ports(self):
            """What goes in."""
            return {"audio_signal": "B T AudioSignal", "length": "B Lengths"}

    assert Module.input_ports.__doc__ == (
        "What goes in.\n\nThe ports:\n\n* *audio_signal* : B T AudioSignal\n* *length* : B Lengths"
    )
    assert list(Module().input_ports) == ["audio_signal", "length"]


def test_ports_that_need_the_instance_keep_their_docstring():
    class Module:
        dims = 3

        @property
        @add_port_docs()
        def output_ports(self):
            """What comes out."""
            return {"x": self.dims}

    assert Module.output_ports.__doc__ == "What comes out."
    assert Module().output_ports == {"x": 3}
