"""What README and docs show works: python blocks run, commands run scaled down, links lead somewhere."""

import contextlib
import importlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "examples"))
from tone_corpus import CONFIG, make_corpus, record, run_script  # noqa: E402 - it lies beside the scripts' tests

DOCS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SCALED_DOWN = {"--num_epochs": "1", "--warmup_steps": "0"}
RECORDINGS = (".wav", ".flac", ".ogg")


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def commands(path: Path) -> Iterator[list[str]]:
    """The command lines of all bash blocks, in order, as words."""
    for block in blocks(path, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield words


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("tones"))


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """Where a reader stands: in the repository's root, but what is written goes elsewhere."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_is_something_to_test():
    assert {"README.md", "README.zh.md", "training.md", "modules.md"} <= {path.name for path in DOCS}
    assert len([command for path in DOCS for command in commands(path)]) > 10


@pytest.mark.parametrize("path", [path for path in DOCS if blocks(path, "python")], ids=lambda path: path.name)
def test_the_python_blocks_run_one_after_the_other(path, workplace):
    namespace = {"__name__": "docs"}
    for number, block in enumerate(blocks(path, "python"), 1):
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block, f"{path.name}, python block {number}", "exec"), namespace)


@pytest.mark.parametrize("path", [path for path in DOCS if blocks(path, "bash")], ids=lambda path: path.name)
def test_the_commands_run_in_their_order(path, workplace, corpus):
    for words in commands(path):
        if words[0] == "make":
            check_targets(words[1:])
        elif words[:2] == ["python", "-m"]:
            check_module(*words[2:])
        elif words[0] == "python" and words[1].startswith("examples/asr/"):
            run_scaled_down(words[1], words[2:], workplace, corpus)
        elif words[0] == "python" and words[1].startswith("benchmarks/"):
            check_options(words[2:], (ROOT / words[1]).read_text(encoding="utf-8"))
        else:
            pytest.fail(f"{path.name} shows a command that no test knows how to check: {' '.join(words)}")


def check_targets(targets: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [target for target in targets if f"\n{target}:" not in makefile] == []


def check_module(module: str, *args: str) -> None:
    """It can be run, and its help knows the options."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [module, "--help"])
        with pytest.raises(SystemExit) as stopped:
            importlib.import_module(module).main()
    assert not stopped.value.code
    check_options(list(args), told.getvalue())


def check_options(args: list[str], known: str) -> None:
    assert [arg for arg in args if arg.startswith("--") and arg.partition("=")[0] not in known] == []


def run_scaled_down(script: str, args: list[str], workplace: Path, corpus: Path) -> None:
    """With all the options shown, on a small model and small data under the names shown."""
    config = args[args.index("--model_config") + 1]
    assert (ROOT / config).is_file(), config
    (workplace / config).parent.mkdir(parents=True, exist_ok=True)
    (workplace / config).write_text(CONFIG)
    for name in (name for arg in args for name in arg.split(",")):
        (workplace / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".json"):
            (workplace / name).write_text((corpus / "train.json").read_text())
        elif name.endswith(RECORDINGS):
            record(workplace / name, "cab")
    scaled = [SCALED_DOWN.get(before, arg) for before, arg in zip(["", *args], args, strict=False)]
    finished = run_script(Path(script).name, *scaled)
    assert finished.code == 0, f"{script} {' '.join(args)}\n{finished.err}"


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_are_there(path):
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", path.read_text(encoding="utf-8")):
        file, _, heading = target.partition("#")
        found = path.parent / file if file else path
        assert found.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)", found.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
            assert heading in anchors, target
