"""A module's configuration: written, read back, and refused with its place."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest

import nemo_lite
from nemo_lite.base.errors import ConfigError, UsageError
from nemo_lite.base.ranges import Between
from nemo_lite.core.neural_module import NeuralModule

Write = Callable[[str], Path]


class Stack(NeuralModule):
    """A module with every kind of argument that YAML can hold."""

    def __init__(
        self,
        width: int,
        activation: str = "relu",
        blocks: Sequence[dict[str, Any]] = (),
        rate: float = 0.5,
        bias: bool = True,
        limit: Annotated[float, Between(0, math.inf)] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if width < 1:
            raise UsageError("width is out of range", got=str(width), wanted="1 or more")


class Narrow(Stack):
    """A special case of it."""


class Unrelated(NeuralModule):
    def __init__(self, **anything: Any) -> None:
        super().__init__()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "module.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_module_written_and_read_back_has_the_same_arguments(tmp_path: Path) -> None:
    blocks = [{"filters": 256, "kernel": [11], "dropout": 0.2, "residual": False, "name": "größe: 'ß' #1"}]
    module = Stack(64, blocks=blocks, rate=1e-3, limit=float("inf"))
    module.export_to_config(tmp_path / "stack.yaml")
    again = Stack.import_from_config(tmp_path / "stack.yaml")
    assert type(again) is Stack
    assert again.init_params == module.init_params


def test_text_that_looks_like_something_else_stays_text(tmp_path: Path) -> None:
    module = Stack(1, activation="1e-3", blocks=[{"a": "no", "b": "null", "c": "2020-01-01"}])
    module.export_to_config(tmp_path / "stack.yaml")
    assert Stack.import_from_config(tmp_path / "stack.yaml").init_params == module.init_params


def test_tuples_come_back_as_lists(tmp_path: Path) -> None:
    Stack(1, blocks=({"kernel": (3, 5)},)).export_to_config(tmp_path / "stack.yaml")
    assert Stack.import_from_config(tmp_path / "stack.yaml").init_params["blocks"] == [{"kernel": [3, 5]}]


def test_the_file_reads_in_the_order_of_the_constructor(tmp_path: Path) -> None:
    Stack(64, rate=0.25).export_to_config(tmp_path / "stack.yaml")
    lines = (tmp_path / "stack.yaml").read_text().splitlines()
    assert lines[:2] == ["header:", f"  nemo_core_version: {nemo_lite.__version__}"]
    assert lines[2:4] == [
        f"  collection_type: {__name__.partition('.')[0]}",
        f"  collection_version: {nemo_lite.__version__}",
    ]
    assert lines[4:7] == [f"  full_spec: {__name__}.Stack", "init_params:", "  width: 64"]
    assert [line.split(":")[0].strip() for line in lines[7:]] == ["activation", "blocks", "rate", "bias", "limit"]


def test_a_given_name_is_part_of_the_configuration() -> None:
    assert "name" not in Stack(1).serialize()["init_params"]
    configuration = Stack(1, name="top").serialize()
    assert NeuralModule.deserialize(configuration).name == "top"


def test_an_argument_that_yaml_cannot_hold_is_named_and_no_file_is_left(tmp_path: Path) -> None:
    module = Unrelated(good=1, bad=object(), worse=[{1: "key"}])
    with pytest.raises(ConfigError) as caught:
        module.export_to_config(tmp_path / "module.yaml")
    assert caught.value.problems == (
        "Unrelated.bad: object cannot be written to YAML",
        "Unrelated.worse: list cannot be written to YAML",
    )
    assert list(tmp_path.iterdir()) == []


def test_a_class_is_found_among_the_subclasses_of_the_one_that_is_asked() -> None:
    configuration = Narrow(3).serialize()
    assert type(NeuralModule.deserialize(configuration)) is Narrow
    assert type(Stack.deserialize(configuration)) is Narrow
    with pytest.raises(
        ConfigError, match=r"full_spec \S*\.Narrow is not a Unrelated that is loaded; import the package"
    ):
        Unrelated.deserialize(configuration)


def test_a_subclass_that_copies_the_name_of_its_class_does_not_hide_it() -> None:
    names = {"__module__": Narrow.__module__, "__qualname__": Narrow.__qualname__}
    copy = type("Narrow", (Narrow,), {**names, "__init__": lambda self, base, path: None})
    assert type(Narrow.deserialize(Narrow(3).serialize())) is Narrow
    assert issubclass(copy, Narrow)


def test_a_full_spec_of_nemo_names_our_class_of_that_name() -> None:
    header = {"full_spec": "nemo.collections.asr.stack.Narrow", "nemo_core_version": "0.11.0"}
    assert type(NeuralModule.deserialize({"header": header, "init_params": {"width": 1}})) is Narrow


def test_a_full_spec_that_could_be_several_classes_is_refused_with_their_names() -> None:
    class Stack(NeuralModule):
        pass

    with pytest.raises(ConfigError, match=r"full_spec nemo\.Stack could be \S*\.Stack or \S*\.Stack; write which"):
        NeuralModule.deserialize({"header": {"full_spec": "nemo.Stack"}})
    del Stack


def test_a_class_that_is_not_loaded_is_not_imported_but_suggested() -> None:
    with pytest.raises(
        ConfigError, match=r"full_spec os\.Narow is not .* \(did you mean Narrow\?\); import the package"
    ):
        NeuralModule.deserialize({"header": {"full_spec": "os.Narow"}})


@pytest.mark.parametrize("spec", ["os.Narow", "nemo_asr_tools.Narow", "nemo_asr..Narow", "nemo_lite.__main__.Narow"])
def test_only_modules_of_our_own_packages_are_imported_for_a_name(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemo_lite.base.aliases.import_module", lambda name: pytest.fail(name))
    with pytest.raises(ConfigError, match=rf"full_spec {spec} is not a NeuralModule that is loaded"):
        NeuralModule.deserialize({"header": {"full_spec": spec}})


def test_a_class_of_ours_that_is_not_below_the_one_that_is_asked_is_named() -> None:
    with pytest.raises(ConfigError, match=r"full_spec \S*\.TaylorNet is not a Stack; read it by TaylorNet"):
        Stack.deserialize({"header": {"full_spec": "nemo_lite.compat.tutorials.TaylorNet"}})


def test_a_class_of_nemo_that_is_not_here_is_told_with_what_takes_its_place() -> None:
    spec = "nemo.collections.nlp.nm.losses.TokenLoss"
    with pytest.raises(ConfigError, match=rf"{spec} is not .* loaded.*; instead: modules of your own; only speech"):
        NeuralModule.deserialize({"header": {"full_spec": spec}})


LOAD = """
import sys, nemo_lite
for spec in sys.argv[1:]:
    module = nemo_lite.NeuralModule.import_from_config(spec + ".yaml")
    print(type(module).__module__, type(module).__name__)
"""


@pytest.mark.slow  # in a process that has imported nothing else
def test_files_name_classes_of_our_packages_before_anybody_asked_for_them(tmp_path: Path) -> None:
    arguments = {
        "nemo_asr.JasperDecoderForCTC": "{feat_in: 64, num_classes: 28}",
        "nemo.collections.asr.jasper.MultiplyBatch": "{mult_batch: 2}",
        "nemo_asr.models.losses.CTCLossNM": "{num_classes: 28}",
        "nemo.backends.pytorch.tutorials.toys.TaylorNet": "{dim: 4}",
        "nemo_lite.backends.pytorch.common.losses.MSELoss": "{}",
    }
    for spec, params in arguments.items():
        text = f"header: {{full_spec: {spec}}}\ninit_params: {params}\n"
        (tmp_path / f"{spec}.yaml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", LOAD, *arguments]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.stderr == ""
    classes = [line.split()[1] for line in run.stdout.splitlines() if line.startswith("nemo_")]
    assert classes == [spec.rpartition(".")[2] for spec in arguments]


def test_arguments_can_be_overwritten_and_the_configuration_stays_as_it_is() -> None:
    configuration = Stack(1, blocks=[{"filters": 1}]).serialize()
    copy = Stack(1, blocks=[{"filters": 1}]).serialize()
    module = Stack.deserialize(configuration, name="other", overwrite_params={"width": 2})
    module.init_params["blocks"][0]["filters"] = 7
    assert (module.name, module.init_params["width"]) == ("other", 2)
    assert configuration == copy


def test_an_unknown_overwriting_argument_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"overwrite_params of Stack: widht is not a key \(did you mean width\?\)"):
        Stack.deserialize(Stack(1).serialize(), overwrite_params={"widht": 2})


def test_a_constructor_that_takes_anything_gets_anything() -> None:
    assert Unrelated.deserialize(Unrelated(a=1).serialize(), overwrite_params={"b": 2}).init_params == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    "configuration", [{}, {"header": {}}, {"header": "Stack"}, {"header": {"full_spec": 3}, "init_params": {}}]
)
def test_a_configuration_that_does_not_name_its_class_is_refused(configuration: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"configuration of Stack: header\.full_spec is missing; it names the class"):
        Stack.deserialize(configuration)


def test_arguments_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"configuration of Stack: init_params is \[1\], wanted a mapping"):
        Stack.deserialize({"header": {"full_spec": "Stack"}, "init_params": [1]})


def test_everything_wrong_in_a_file_is_said_at_once_with_its_place(write: Write) -> None:
    path = write("header: {full_spec: Stack}\ninit_params:\n  activaton: relu\n  rate: fast\n")
    with pytest.raises(ConfigError) as caught:
        Stack.import_from_config(path)
    assert caught.value.problems == (
        f"{path}:2:1: init_params.width is missing",
        f"{path}:3:3: init_params.activaton is not a key (did you mean activation?)",
        f'{path}:4:3: init_params.rate is "fast", wanted float',
    )


def test_a_value_that_the_constructor_refuses_is_told_with_its_place(write: Write) -> None:
    path = write("header: {full_spec: Stack}\ninit_params:\n  width: 0\n")
    with pytest.raises(
        ConfigError, match=r"module\.yaml:2:1: init_params: width is out of range: got 0, wanted 1 or more"
    ):
        Stack.import_from_config(path)


def test_one_section_of_a_file_can_be_read(write: Write) -> None:
    path = write("encoder:\n  header: {full_spec: Narrow}\n  init_params: {width: 5}\n")
    assert Stack.import_from_config(path, section_name="encoder").init_params["width"] == 5
    with pytest.raises(ConfigError, match=r"module\.yaml: section encodr is missing \(did you mean encoder\?\)"):
        Stack.import_from_config(path, section_name="encodr")
    with pytest.raises(ConfigError, match=r"module\.yaml:1:1: header\.full_spec is missing"):
        Stack.import_from_config(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file"):
        Stack.import_from_config(tmp_path / "none.yaml")


def test_nemo_s_check_of_parameters_answers_by_its_mangled_name():
    class Mockup(NeuralModule):
        def validate_params(self, params):
            return self._NeuralModule__validate_params(params)  # type: ignore[attr-defined]  # as NeMo's scripts

    inner = {"int": 123, "float": 12.4, "string": "ala ma kota", "bool": True}
    for params in (inner, {"outer": {"inner": inner}}, {"list_outer": [[1, 2, 3, 4]]}, {"list_outer": [inner]}):
        assert Mockup().validate_params(params) is True
    assert Mockup().validate_params({"function": len}) is False
