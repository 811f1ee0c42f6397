"""Values set from outside win over the file's, know their place, and are refused where they lead nowhere."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_lite.base.config import MAX_BYTES, check_call, override, parse_config
from nemo_lite.base.errors import ConfigError

FILE = parse_config("rate: 16000\nenc:\n  blocks: [{size: 1}, {size: 2}]\n  act: relu\nempty:\n", "a.yaml")


def plain(*settings_given: str) -> dict[str, object]:
    return override(FILE, settings_given).plain()


@pytest.mark.parametrize("key", ["enc.blocks.1.size", "enc.blocks[1].size"])
def test_a_key_leads_through_mappings_and_lists(key: str) -> None:
    assert plain(f"{key}=5")["enc"] == {"blocks": [{"size": 1}, {"size": 5}], "act": "relu"}
    assert FILE.plain()["enc"]["blocks"][1] == {"size": 2}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1e-3", 0.001), ("0", 0), ("true", True), ("null", None), ("swish", "swish"), ("'1'", "1")),
        *(("[1, 2]", [1, 2]), ("{a: [b]}", {"a": ["b"]}), ('""', ""), ("a=b", "a=b"), ("no", "no")),
    ],
)
def test_a_value_is_yaml(text: str, value: object) -> None:
    assert plain(f"rate={text}")["rate"] == value


def test_keys_and_sections_that_the_file_does_not_have_are_added() -> None:
    added = plain("enc.drop=0.5", "empty.x=1", "empty.y=2", "new.part.z=3")
    assert (added["enc"]["drop"], added["empty"], added["new"]) == (0.5, {"x": 1, "y": 2}, {"part": {"z": 3}})


def test_what_is_set_has_its_own_place_and_the_rest_that_of_the_file() -> None:
    config = override(FILE, ["enc.blocks.0.size=9", "enc.list=[{a: 1}]", "new.x=1"])
    blocks = config["enc"]["blocks"]
    assert blocks[0].place("size") == blocks[0].spot("size") == "--set enc.blocks.0.size=9"
    assert config.place("enc", "list", 0, "a") == "--set enc.list=[{a: 1}]"
    assert config.place("new") == "--set new.x=1"
    assert (blocks[1].place("size"), blocks[1].spot("size")) == ("a.yaml:3:24", "line 3")
    assert [config.overridden(key) for key in ("enc", "new", "rate")] == [True, True, False]
    assert config.tells_place("a.yaml:3:1: x")
    assert config.tells_place("--set new.x=1: x")
    assert not config.tells_place("x: a.yaml")


def test_a_check_names_the_setting_and_the_nearest_key() -> None:
    def encoder(blocks: list[object], act: str, drop: float = 0.0) -> None: ...

    section = override(FILE, ["enc.dorp=0.5", "enc.act=1"])["enc"]
    assert check_call(section, encoder) == [
        "--set enc.act=1: enc.act is 1, wanted str",
        "--set enc.dorp=0.5: enc.dorp is not a key (did you mean drop?)",
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["rate"], "--set rate: is not KEY=VALUE, such as JasperEncoder.jasper.0.dropout=0.1"),
        (["enc..act=1"], "--set enc..act=1: is not KEY=VALUE, such as JasperEncoder.jasper.0.dropout=0.1"),
        (["rate="], "--set rate=: has no value; write null for none, '\"\"' for empty text"),
        (["rate=[1"], "--set rate=[1: cannot be parsed: while parsing a flow sequence (line 1): expected ',' or ']'"),
        (["rate=!!python/name:os.system x"], "--set rate=!!python/name:os.system x: rate has the tag"),
        (["rate={a: 1, a: 2}"], "--set rate={a: 1, a: 2}: rate.a is given twice"),
        (["rate.x=1"], "--set rate.x=1: rate is 16000, which has no x"),
        (["enc.blocks.2.size=1"], "--set enc.blocks.2.size=1: 2 is not an item of enc.blocks, which has 2 items, 0 to"),
        (["enc.blocks.size=1"], "--set enc.blocks.size=1: size is not an item of enc.blocks"),
        (["rate=1", "rate=2"], "--set rate=2: rate is set already: --set rate=1; leave one out"),
        (["enc.act=1", "enc={}"], "--set enc={}: enc is set already: --set enc.act=1; leave one out"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_with_one_line(given: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override(FILE, given)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_all_wrong_settings_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        override(FILE, ["rate", "enc.act=swish", "rate.x=1"])
    assert len(caught.value.problems) == 2


def test_a_value_may_be_set_inside_one_that_was_set_before() -> None:
    assert plain("enc={act: selu}", "enc.drop=0.5")["enc"] == {"act": "selu", "drop": 0.5}


# ---- as text ----

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
INT64 = st.integers(1 - 2**63, 2**63 - 1)
SCALARS = st.none() | st.booleans() | INT64 | st.floats(allow_nan=False) | TEXT | st.sampled_from(["no", "1e3"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=10
)


@pytest.mark.slow
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(TEXT, VALUES, min_size=1, max_size=4))
def test_a_configuration_as_yaml_is_read_as_the_same_values_in_the_same_order(values: dict[str, object]) -> None:
    config = type(FILE)(values, FILE.source)
    again = parse_config(config.as_yaml(), "again.yaml")
    assert again.plain() == values
    assert list(again) == list(values)


def test_lists_of_scalars_are_written_in_one_line() -> None:
    text = override(FILE, ["rate=1e-3"]).as_yaml()
    assert text == "rate: 0.001\nenc:\n  blocks:\n  - {size: 1}\n  - {size: 2}\n  act: relu\nempty: null\n"


def test_a_text_over_the_size_bound_is_refused() -> None:
    with pytest.raises(ConfigError, match=rf"^a\.yaml: larger than {MAX_BYTES} bytes"):
        parse_config("a: " + "x" * MAX_BYTES, "a.yaml")
