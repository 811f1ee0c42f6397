"""The configuration reference: written from the constructors, complete, and the page in the docs is the newest."""

from __future__ import annotations

import inspect
import re

import pytest
from toys.sources import ROOT

from nemo_asr.augmentation import perturbation_types
from nemo_asr.commands.cli.reference import argument_texts, is_own, keys_of, reference
from nemo_asr.models.jasper import JasperBlockSpec
from nemo_asr.models.transducer.joint import JointnetSpec
from nemo_asr.models.transducer.prediction import PrednetSpec, StatelessSpec
from nemo_asr.tasks.connection_check import references_in
from nemo_asr.tasks.registry import KNOWN

SPECS = [PrednetSpec, StatelessSpec, JointnetSpec, JasperBlockSpec]
MODULES = sorted({known.module_class for known in KNOWN.values() if is_own(known)}, key=lambda cls: cls.__name__)
CLASSES = [*MODULES, *SPECS, *perturbation_types.values()]
ENGLISH, CHINESE = (
    (ROOT / "docs" / language / "configuration.md").read_text(encoding="utf-8") for language in ("en", "zh")
)
# Titles and defaults that are words. All else but the texts is the same on both pages.
IN_CHINESE = {
    "Configuration reference": "配置参考",
    "Blocks of JasperEncoder": "JasperEncoder 的块",
    "prednet of RNNTDecoder": "RNNTDecoder 的 prednet",
    "prednet of StatelessTransducerDecoder": "StatelessTransducerDecoder 的 prednet",
    "jointnet of RNNTJoint": "RNNTJoint 的 jointnet",
    "Perturbations": "扰动",
    "needed": "必填",
    "the file's name": "文件名",
}


def test_the_page_in_the_docs_is_what_the_constructors_say():
    assert reference() == ENGLISH, "run: nemo-lite reference > docs/en/configuration.md"


@pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=["en", "zh"])
def test_keys_below_a_section_are_linked_and_not_named_by_their_class(page):
    assert [spec.__name__ for spec in SPECS if spec.__name__ in page] == []
    anchors = {title.lower().replace(" ", "-") for title in sections_of(page)}
    linked = re.findall(r"\]\(#([^)]*)\)", page)
    assert len(set(linked)) == len(SPECS)
    assert set(linked) <= anchors


def test_every_module_of_any_family_has_a_section():
    assert [cls.__name__ for cls in MODULES if cls.__name__ not in sections_of(ENGLISH)] == []


def sections_of(page: str) -> dict[str, dict[str, list[str]]]:
    """The type, default and text of each key, by section."""
    _, *parts = re.split(r"^#+ (.*)\n", page, flags=re.MULTILINE)
    rows = [[row.split(" | ") for row in re.findall(r"^\| (`.*) \|$", part, re.MULTILINE)] for part in parts[1::2]]
    return {title: {key: rest for key, *rest in keys} for title, keys in zip(parts[::2], rows, strict=True)}


def stale_in(chinese: str, english: str) -> list[str]:
    """What the Chinese page lacks, has too much, or says differently."""
    found, wanted = sections_of(chinese), sections_of(english)
    wanted = {IN_CHINESE.get(title, title): keys for title, keys in wanted.items()}
    stale = [f"{title}: a section that is gone" for title in found.keys() - wanted.keys()]
    for title, keys in wanted.items():
        there = found.get(title, {})
        stale += [f"{title}: {key} is gone" for key in there.keys() - keys.keys()]
        for key, (kind, default, text) in keys.items():
            *has, says = there.get(key, [""])
            if has != [kind, IN_CHINESE.get(default, default)]:
                stale.append(f"{title}: {key}: got {has}, wanted {[kind, IN_CHINESE.get(default, default)]}")
            elif says in ("", text):
                stale.append(f"{title}: {key}: its text is not translated")
    return stale


def test_the_chinese_page_has_the_sections_keys_types_and_defaults_of_the_english_one():
    assert stale_in(CHINESE, ENGLISH) == [], (
        "docs/zh/configuration.md: copy these rows from docs/en/configuration.md, and translate the last cell"
    )
    titles = [IN_CHINESE.get(title, title) for title in sections_of(ENGLISH)]
    assert list(sections_of(CHINESE)) == titles, "docs/zh/configuration.md: order the sections as docs/en does"


def test_a_chinese_page_that_lacks_a_row_or_has_an_older_one_is_stale():
    row = "| `pad_id` | int or null | `null` | fills. |"
    english = f"## Layer\n\n{row}\n"
    assert stale_in("## Layer\n", english) == ["Layer: `pad_id`: got [], wanted ['int or null', '`null`']"]
    assert stale_in(english, english) == ["Layer: `pad_id`: its text is not translated"]
    assert stale_in(english.replace("fills.", "填充"), english) == []
    assert stale_in(english.replace("`null`", "`0`"), english) == [
        "Layer: `pad_id`: got ['int or null', '`0`'], wanted ['int or null', '`null`']"
    ]
    assert stale_in(english, "## Layer\n") == ["Layer: `pad_id` is gone"]


@pytest.mark.parametrize("target", CLASSES, ids=lambda target: target.__name__)
def test_every_key_has_a_type_a_default_and_a_text(target):
    keys = keys_of(target)
    _, *parameters = inspect.signature(target.__init__).parameters.values()
    names = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD}
    assert {key.name for key in keys} == names - {"name", "rng", "batch_size", *references_in(target)}
    assert [key.name for key in keys if not key.text] == []
    assert [key.name for key in keys if re.search(r"typing|None|Reference|\[", key.type) or not key.type] == []


def test_a_text_of_several_lines_is_one():
    texts = argument_texts(JasperBlockSpec)
    assert texts["filters"] == "output channels."
    assert texts["kernel"].endswith("the window is then symmetric and the number of frames stays.")


def test_defaults_are_written_as_yaml_has_them():
    defaults = {key.name: key.default for key in keys_of(JasperBlockSpec)}
    assert (defaults["filters"], defaults["separable"], defaults["residual_mode"]) == ("needed", "`false`", "`null`")
    assert defaults["se_interpolation_mode"] == "`nearest`"
