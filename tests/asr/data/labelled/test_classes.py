"""Names of classes: in lines, in lists, as numbers."""

import msgspec
import pytest

from nemo_asr.data.labelled import ClassParser, UnknownClassError, class_names
from nemo_asr.data.manifest import Line, class_of
from nemo_lite.errors import ConfigError


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b'{"command": "go", "label": "x"}', "go"),
        (b'{"target": 3}', "3"),
        (b'{"label": null, "text": "go"}', ""),
        (b'{"label": {"a": 1}}', ""),
    ],
)
def test_a_line_names_its_class_in_text_or_number(line, name):
    assert class_of(msgspec.json.decode(line, type=Line)) == name


def test_a_parser_gives_the_number_of_a_class_as_a_list():
    parser = ClassParser(["go", "stop here"])
    assert parser("stop here") == [1]
    assert parser("halt") is None
    assert "1 texts refused" in parser.report()
    assert parser.describe() == "names of classes"
    with pytest.raises(UnknownClassError, match='class "halt" is not in labels'):
        parser.encode("halt")


def test_numbers_are_names_too_and_all_problems_are_told_at_once():
    assert class_names([3, "a"]) == ("3", "a")
    with pytest.raises(ConfigError) as error:
        class_names([None, "a", "a"], lambda index: f"model.yaml:{index}")
    assert len(error.value.problems) == 2
    assert "model.yaml:2: class 'a' repeats the one at model.yaml:1" in str(error.value)
