"""YAML files into checked values: positions, bounds, and every problem said at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_lite.base.config import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_VALUES,
    Config,
    build,
    check_call,
    load_config,
    raise_if,
    unknown_key,
)
from nemo_lite.base.errors import ConfigError, UsageError

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a.yaml into the current folder, so that messages begin with ``a.yaml``."""
    monkeypatch.chdir(tmp_path)

    def to_file(text: str) -> Path:
        Path("a.yaml").write_text(text, encoding="utf-8")
        return Path("a.yaml")

    return to_file


def problems_of(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return str(caught.value).splitlines()


# ---- reading ----


def test_numbers_and_words_are_those_of_yaml_1_2(write: Write) -> None:
    config = load_config(write("lr: 1e-3\nlang: no\nday: 2020-01-01\ntime: 1:30\nold: 010\nnone: ~\nyes: true\n"))
    values = {"lr": 0.001, "lang": "no", "day": "2020-01-01", "time": "1:30", "old": 10, "none": None, "yes": True}
    assert config.plain() == values


def test_every_value_knows_its_place(write: Write) -> None:
    config = load_config(
        write("model: x\nenc:\n  blocks:\n    - {filters: 1}\n    - filters: 2\n      kernel: [3, 5]\n")
    )
    assert config.place() == "a.yaml:1:1"
    assert config.place("enc", "blocks") == "a.yaml:3:3"
    block = config["enc"]["blocks"][1]
    assert block.path == "enc.blocks[1]"
    assert block.place("kernel") == "a.yaml:6:7"
    assert block.place("kernel", 1) == "a.yaml:6:19"
    assert block.spot("kernel") == "line 6"
    assert block.place("not there") == block.place()


def test_a_merged_key_stands_where_it_was_written(write: Write) -> None:
    config = load_config(write("base: &b {filters: 1, kernel: 3}\nblock:\n  <<: *b\n  filters: 2\n"))
    assert config["block"].plain() == {"filters": 2, "kernel": 3}
    assert config["block"].place("kernel") == "a.yaml:1:23"
    assert config["block"].path_of("kernel") == "block.kernel"


def test_of_two_merged_mappings_the_first_wins(write: Write) -> None:
    config = load_config(write("a: &a {x: 1}\nb: &b {x: 2, y: 3}\nc: {<<: [*a, *b]}\n"))
    assert config["c"].plain() == {"x": 1, "y": 3}


def test_an_alias_gets_its_own_path_and_the_anchor_is_known(write: Write) -> None:
    config = load_config(write("labels: &labels [a]\nlayer: {labels: *labels}\ncopy: *labels\n"))
    assert config["layer"]["labels"] == ["a"]
    assert config.anchored("labels")
    assert not config.anchored("copy")


def test_plain_values_are_a_deep_copy(write: Write) -> None:
    config = load_config(write("a: {b: [{c: 1}]}\n"))
    config.plain()["a"]["b"][0]["c"] = 2
    assert config["a"]["b"][0]["c"] == 1
    assert type(config.plain()["a"]) is dict


def test_a_config_is_read_only_and_equal_by_value(write: Write) -> None:
    config = load_config(write("a: {x: 1}\nb: {x: 1}\n"))
    assert config["a"] == config["b"] == {"x": 1}
    with pytest.raises(TypeError):
        config["a"] = 1  # type: ignore[index]


def test_keys_keep_their_places_when_one_mapping_is_laid_over_another(write: Write) -> None:
    layer = load_config(write("layer:\n  a: 1\n  b: {c: 2}\n  train: {a: 3, d: [4]}\n"))["layer"]
    both = layer.without("train").overlaid(layer["train"])
    assert both.plain() == {"a": 3, "b": {"c": 2}, "d": [4]}
    assert (both.path_of("a"), both.place("a")) == ("layer.train.a", "a.yaml:4:11")
    assert (both.path_of("d", 0), both.place("d", 0)) == ("layer.train.d[0]", "a.yaml:4:21")
    assert (both.path_of("b", "c"), both.place("b", "c")) == ("layer.b.c", "a.yaml:3:7")
    assert both.without("b").path_of("a") == "layer.train.a"
    assert both.path_of("new") == "layer.new"
    assert both.path_of("k" * 10**6, "l") == f"layer.{'k' * 57}....l"


# ---- refusals, each with its place ----


def test_all_duplicate_keys_are_told_at_once(write: Write) -> None:
    assert problems_of(write("a: 1\nb:\n  c: 1\n  c: 2\na: 2\n")) == [
        "a.yaml:4:3: b.c is given twice (first on line 3)",
        "a.yaml:5:1: a is given twice (first on line 1)",
    ]


def test_a_mistake_in_a_merged_mapping_is_told_once(write: Write) -> None:
    text = "a: &a {x: 1, x: 2}\nb: {<<: *a}\nc: {<<: *a}\n"
    assert problems_of(write(text)) == ["a.yaml:1:14: a.x is given twice (first on line 1)"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.yaml: the file is empty"),
        ("- 1\n", "a.yaml:1:1: [1] where a mapping of sections was expected"),
        ("a: [1, 2\nb: 3\n", "a.yaml:2:2: cannot be parsed: while parsing a flow sequence (line 1)"),
        ("a:\n\t- 1\n", "a.yaml:2:1: cannot be parsed: found character '\\t'"),
        ("a: *x\n", "a.yaml:1:4: cannot be parsed: found undefined alias 'x'"),
        ("a: 1\n---\nb: 2\n", "a.yaml:2:1: cannot be parsed: expected a single document"),
        ("a: 1\nb: \x07\n", "a.yaml:2: character 0x07 has no place in YAML"),
        ("1: x\n", "a.yaml:1:1: key 1 is not text; write it in quotes"),
        ("? [a]\n: 1\n", "a.yaml:1:3: a list or a mapping as a key is not text"),
        ("a: {<<: 3}\n", "a.yaml:1:9: << can merge a mapping or a list of mappings only"),
        ("a: !!python/object/apply:os.system [x]\n", "a.yaml:1:4: a has the tag !!python/object/apply:os.system"),
        ("a: !!binary aGk=\n", "a.yaml:1:4: a has the tag !!binary, which is not read here"),
        ("a: !!bool maybe\n", 'a.yaml:1:4: a is "maybe", which does not fit its tag !!bool'),
        (f"a: {'9' * 5000}\n", "which does not fit its tag !!int"),
        ("%YAML 1.3\n---\na: 1\n", "a.yaml: its %YAML line asks for a version that is not read here"),
    ],
)
def test_what_is_no_mapping_of_plain_values_is_refused_with_its_place(write: Write, text: str, message: str) -> None:
    assert message in problems_of(write(text))[0]


def test_a_file_that_is_not_utf8_is_refused_with_its_line(write: Write) -> None:
    path = write("")
    path.write_bytes(b"a: 1\nb: caf\xe9\n")
    assert problems_of(path) == ["a.yaml:2: the configuration is not UTF-8: got the byte 0xe9"]


def test_a_byte_order_mark_is_no_mistake(write: Write) -> None:
    config = load_config(write("\ufeffa: 1\n"))
    assert (config.plain(), config.place("a")) == ({"a": 1}, "a.yaml:1:1")


def test_a_missing_file_lists_near_names_of_its_folder(write: Write) -> None:
    write("a: 1\n").rename("jasper15x5SEP.yaml")
    assert problems_of(Path("jasper15x5sep.yaml")) == [
        "jasper15x5sep.yaml: no such file (did you mean jasper15x5SEP.yaml?)"
    ]
    assert problems_of(Path("x.yml")) == ["x.yml: no such file; . has jasper15x5SEP.yaml"]
    assert problems_of(Path("no/x.yml")) == ["no/x.yml: no such file, there is no folder no"]
    assert "the configuration is a folder" in problems_of(Path())[0]


# ---- bounds ----


def test_a_file_over_the_size_bound_is_refused(write: Write) -> None:
    assert f"wanted at most {MAX_BYTES} bytes" in problems_of(write("a: 1 " + "#" * MAX_BYTES))[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: " + "{" * 2000, id="braces"),
        pytest.param("a: " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), id="brackets"),
        pytest.param("a:\n" + "".join(f"{' ' * i}- # ]\n" for i in range(1, 100)) + f"{' ' * 100}- 1\n", id="block"),
        pytest.param("- " * 900 + "1\n", id="block in one line"),
        pytest.param("a: &a [*a]\n", id="itself"),
        pytest.param("a: &a {<<: *a}\n", id="merged into itself"),
    ],
)
def test_deep_nesting_is_refused_fast(write: Write, text: str) -> None:
    path = write(text)
    start = time.process_time()
    (problem,) = problems_of(path)
    assert time.process_time() - start < 2
    assert "nested deeper than 64" in problem or "merges more than 64" in problem
    assert problem.startswith("a.yaml:")


@pytest.mark.slow
@pytest.mark.parametrize("merged", [False, True])
def test_aliases_cannot_blow_up(write: Write, merged: bool) -> None:
    each = "{{<<: [{0}]}}" if merged else "[{0}]"
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i + 1}: &a{i + 1} " + each.format(", ".join([f"*a{i}"] * 10)) for i in range(20)]
    assert f"more than {MAX_VALUES} values once aliases are filled in" in problems_of(write("\n".join(lines)))[0]


TAGS = ("!!int ", "!!float ", "!!bool ", "!!merge ", "!y ")
SIGNS = ("a", ": ", "- ", "{", "}", "[", "]", "&x ", "*x", "<<", "'", '"', "|", ">", "1e", "?", ",", "#")
BREAKS = ("\n", "  ", "\t", "\x00", "---\n", "%YAML 2.0\n")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.sampled_from(TAGS + SIGNS + BREAKS), max_size=30))
def test_any_text_is_read_or_refused_with_a_config_error(write: Write, pieces: list[str]) -> None:
    path = write("".join(pieces))
    try:
        outcome = repr(load_config(path))
    except ConfigError as error:
        outcome = str(error)
    assert "a.yaml" in outcome


# ---- against a signature ----


class Encoder:
    """A stand-in with one parameter of each kind."""

    def __init__(
        self,
        feat_in: int,
        *,
        lr: float = 0.1,
        mask: bool = True,
        name: str | None = None,
        kernel: list[int] | None = None,
        width: int | float = 10,
        betas: tuple[float, float] = (0.9, 0.99),
        normalize: Literal["per_feature", "all_features"] | dict[str, float] | None = None,
        opaque: NotDefinedAnywhere = None,  # type: ignore[name-defined]  # noqa: F821
    ) -> None:
        if feat_in < 1:
            raise UsageError("feat_in must be positive")
        self.values = {"feat_in": feat_in, "lr": lr, "mask": mask, "kernel": kernel, "normalize": normalize}


def encoder_section(write: Write, text: str) -> Config:
    section = load_config(write(f"Enc: {{{text}}}\n"))["Enc"]
    assert isinstance(section, Config)
    return section


def test_a_section_that_fits_has_no_problem(write: Write) -> None:
    text = "feat_in: 64, lr: 1, mask: false, width: 3, name: null, kernel: [11], betas: [1e-1, 0]"
    text += ", normalize: {mean: 0}, opaque: 1"
    assert check_call(encoder_section(write, text), Encoder) == []


def test_unknown_missing_and_wrong_are_told_at_once(write: Write) -> None:
    section = load_config(write("Enc:\n  lrr: 1\n  mask: 1\n  xyz: 2\n"))["Enc"]
    assert check_call(section, Encoder) == [
        "a.yaml:2:3: Enc.lrr is not a key (did you mean lr?)",
        "a.yaml:3:3: Enc.mask is 1, wanted bool",
        "a.yaml:4:3: Enc.xyz is not a key; known: betas, feat_in, kernel, lr, mask, name, normalize, opaque, width",
        "a.yaml:1:1: Enc.feat_in is missing",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('feat_in: "64"', 'a.yaml:1:7: Enc.feat_in is "64", wanted int'),
        ("feat_in: 64.0", "Enc.feat_in is 64.0, wanted int"),
        ("feat_in: true", "Enc.feat_in is true, wanted int"),
        ("feat_in: null", "Enc.feat_in is null, wanted int"),
        ("feat_in: 1, lr: fast", 'Enc.lr is "fast", wanted float'),
        ("feat_in: 1, lr: true", "Enc.lr is true, wanted float"),
        ("feat_in: 1, mask: [true]", "Enc.mask is [true], wanted bool"),
        ("feat_in: 1, name: 3", "Enc.name is 3, wanted str or null"),
        ("feat_in: 1, kernel: 11", "Enc.kernel is 11, wanted a list of int or null"),
        ("feat_in: 1, kernel: [11, x]", 'a.yaml:1:32: Enc.kernel[1] is "x", wanted int'),
        ("feat_in: 1, kernel: abc", 'Enc.kernel is "abc", wanted a list of int or null'),
        ("feat_in: 1, betas: [1]", "Enc.betas is [1], wanted a list of 2: float, float"),
        ("feat_in: 1, betas: {a: 1}", 'Enc.betas is {"a": 1}, wanted a list of 2'),
        (
            "feat_in: 1, normalize: per_featur",
            'wanted "per_feature" or "all_features" or a mapping or null (did you mean per_f',
        ),
        ("feat_in: 1, normalize: {mean: x}", 'Enc.normalize.mean is "x", wanted float'),
    ],
)
def test_a_wrong_type_is_told_with_place_value_and_wish(write: Write, text: str, message: str) -> None:
    (problem,) = check_call(encoder_section(write, text), Encoder)
    assert message in problem


def test_what_the_program_gives_is_neither_missing_nor_allowed_in_the_file(write: Write) -> None:
    section = encoder_section(write, "lr: 1")
    assert check_call(section, Encoder, given={"feat_in"}) == []
    (problem,) = check_call(section, Encoder, given={"feat_in", "lr"})
    assert problem == "a.yaml:1:7: Enc.lr is set by the program; take it out"


def test_a_target_with_kwargs_takes_any_key(write: Write) -> None:
    def target(a: int = 0, **kwargs: Any) -> None: ...

    assert check_call(encoder_section(write, "b: 1, c: x"), target) == []
    assert "Enc.a is" in check_call(encoder_section(write, "a: x"), target)[0]


def test_a_class_behind_a_metaclass_is_asked_for_its_own_parameters(write: Write) -> None:
    class Meta(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    class Module(metaclass=Meta):
        def __init__(self, width: int) -> None: ...

    assert "Enc.widht is not a key (did you mean width?)" in check_call(encoder_section(write, "widht: 1"), Module)[0]


def test_build_passes_plain_values_and_what_is_given(write: Write) -> None:
    encoder = build(Encoder, encoder_section(write, "kernel: [11], normalize: {mean: 0}"), feat_in=64)
    assert encoder.values == {"feat_in": 64, "lr": 0.1, "mask": True, "kernel": [11], "normalize": {"mean": 0}}
    assert type(encoder.values["normalize"]) is dict


def test_build_names_the_place_of_a_value_that_the_target_refuses(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"a\.yaml:1:1: Enc: feat_in must be positive"):
        build(Encoder, encoder_section(write, "feat_in: 0"))


def test_raise_if_tells_every_problem_once_in_the_order_of_the_file() -> None:
    raise_if([])
    with pytest.raises(ConfigError) as caught:
        raise_if(["a.yaml:10:1: x", "a.yaml:9:12: y", "a.yaml:9:2: z", "a.yaml:10:1: x", "no place"])
    assert caught.value.problems == ("no place", "a.yaml:9:2: z", "a.yaml:9:12: y", "a.yaml:10:1: x")


def test_unknown_key_without_a_near_one_lists_the_known(write: Write) -> None:
    section = encoder_section(write, "foo: 1")
    assert unknown_key(section, "foo", {"b", "a"}) == "a.yaml:1:7: Enc.foo is not a key; known: a, b"


def test_a_misspelt_required_key_is_one_problem_and_a_missing_one_beside_it_another(write: Write) -> None:
    def target(filters: int, stride: int) -> None: ...

    section = load_config(write("block:\n  filtres: 3\n"))["block"]
    assert check_call(section, target) == [
        "a.yaml:2:3: block.filtres is not a key (did you mean filters?)",
        "a.yaml:1:1: block.stride is missing",
    ]
