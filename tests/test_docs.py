"""What README and docs show works: python blocks run, commands run scaled down, links lead somewhere."""

import ast
import contextlib
import importlib
import io
import os
import pkgutil
import re
import shlex
import shutil
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from toys.launched import Launch, header_of, launch_of, own_address, warm_commands
from toys.nemo_conformers import write_with_labels
from toys.ranks import free_port, wait_all
from toys.rooms import picture, reduced, rooms
from toys.sources import MODULES, PACKAGES, only_re_exports, parsed
from toys.tone_corpus import CONFIG, make_corpus, record, run_script, run_subcommand

import nemo_asr
from nemo_asr.commands.cli.data import CORPORA
from nemo_asr.shipped import config_path
from nemo_lite.backends.pytorch.distributed.contract import rank_table

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
ARCHITECTURE = ROOT / "docs/en/architecture.md"
GUIDE = ROOT / "docs/en/fast_training.md"
# The pages of both languages. Tests hold that the Chinese one shows the same, so what it shows need not run again.
ENGLISH, CHINESE = ({path.name: path for path in DOCS if path.parent == ROOT / "docs" / name} for name in ("en", "zh"))
ENGLISH["README.md"], CHINESE["README.md"] = ROOT / "README.md", ROOT / "README.zh.md"
TRANSLATED = sorted(ENGLISH.keys() & CHINESE.keys())
TUTORIAL = ENGLISH["tutorial.md"]  # runs as it is written, in a test of its own
PUBLISHED = ENGLISH["published_models.md"]  # likewise
RUN = [path for path in DOCS if path not in [TUTORIAL, PUBLISHED, *(CHINESE[name] for name in TRANSLATED)]]
# Lines for several processes run with two.
SCALED_DOWN = {
    "--kills": "1",
    "--vocab_size": "8",
    "--num_epochs": "1",
    "--warmup_steps": "0",
    "--num_gpus": "2",
    "--num_workers": "0",
}
# Lines that make an environment and install into it; the folder is the clone.
INSTALLING = ("python3 -m venv .venv", ". .venv/bin/activate", "pip install .")
TRAINED_ELSEWHERE = "runs/Digits"  # by the page about training
RECORDINGS = (".wav", ".flac", ".ogg")


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def all_blocks(path: Path) -> list[tuple[str, str]]:
    """The fenced blocks with their languages, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def commands(path: Path) -> Iterator[list[str]]:
    """The command lines of all bash blocks, in order, as words."""
    for block in blocks(path, "bash"):
        yield from words_of(block)


def words_of(block: str) -> list[list[str]]:
    """The command lines of a block."""
    lines = block.replace("\\\n", " ").splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def scripts_of(path: Path) -> dict[str, str]:
    """The blocks that commands read, Python or YAML: those whose first line is a file's name."""
    named = {
        re.match(rf"# (\S+\.{ending})\n", block): block
        for language, ending in (("python", "py"), ("yaml", "yaml"))
        for block in blocks(path, language)
    }
    return {match[1]: block for match, block in named.items() if match}


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
    assert {launch.launcher for launch in map(launch_of, commands(GUIDE)) if launch} == {
        *("torchrun", "launch", "srun", "mpirun")
    }


TRAIN_OR_EXPORT = {"export.md", "fast_training.md", "fine_tuning.md", "training.md", "transcription.md"}


def slow_if_python(path: Path) -> object:
    """A page to run; python blocks take long, and some train or export for long."""
    marks = [pytest.mark.long] if path.name in TRAIN_OR_EXPORT else [pytest.mark.slow] if blocks(path, "python") else []
    return pytest.param(path, id=path.name, marks=marks)


WITH_CODE = [slow_if_python(path) for path in RUN if blocks(path, "python") or blocks(path, "bash")]


@pytest.mark.parametrize("path", WITH_CODE)
def test_a_page_works_from_top_to_bottom(path, workplace, corpus):
    """Commands and python blocks run in one folder, in their order: each finds what those before it made."""
    started = scripts_of(path)
    for name, block in started.items():
        (workplace / name).write_text(re.sub(r'"num_epochs": \d+', '"num_epochs": 1', block))
    namespace, lone = {"__name__": "docs"}, False
    for kind, block in all_blocks(path):
        if kind == "bash":
            lone |= not run_lines(path.name, block, workplace, corpus)
        elif kind == "python" and block not in started.values():
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block, f"{path.name}, a python block", "exec"), namespace)
    if lone:
        pytest.skip("the lines for several machines: this one has no address but the loopback's")


@pytest.mark.long
@pytest.mark.slow
def test_the_tutorial_works_as_it_is_written_and_shows_what_it_prints(workplace):
    """Its scripts as files, its lines in bash, with one epoch."""
    pytest.importorskip("espeakng_loader", reason="the speech synthesiser is not installed")
    for name, script in scripts_of(TUTORIAL).items():
        (workplace / name).write_text(script)
    finished = run_in_bash(blocks(TUTORIAL, "bash"), epochs=1)
    # What does not depend on the number of epochs is as shown.
    shown = "".join(blocks(TUTORIAL, "text")).splitlines()
    counted = [line for line in shown if re.match(r"\S+: \d+ utterances, ", line)]
    assert len(counted) == 4
    assert [line for line in counted if line not in finished.stdout + finished.stderr] == []
    assert "No problem found" in finished.stdout
    named = re.findall(r"`((?:results|runs)/\S+\.html)`", prose_of(TUTORIAL))
    assert [name for name in [*named, "visit.srt"] if not (workplace / name).is_file()] == []


@pytest.mark.long
@pytest.mark.slow
def test_the_page_about_published_models_works_with_a_file_in_nvidias_layout(workplace, corpus):
    write_with_labels(workplace / "model.nemo", [" ", *string.ascii_lowercase, "'"])
    shutil.copytree(corpus, workplace / "mine")
    record(workplace / "talk.wav", "abcab")
    finished = run_in_bash([block for block in blocks(PUBLISHED, "bash") if "pytest" not in block], epochs=1)
    assert "frames of NeMo 2.5 and later" in finished.stdout
    assert "published: model, step 0" in finished.stdout
    assert "ConformerEncoder: all" in finished.stdout + finished.stderr
    assert "compared with ONNX Runtime" in finished.stdout
    assert [name for name in ("talk.srt", "mine.onnx") if not (workplace / name).is_file()] == []


def run_in_bash(commands: list[str], epochs: int) -> "subprocess.CompletedProcess[str]":
    """The blocks of a page as one script, as a reader runs them, but that Python need not import torch each time."""
    lines = "set -euo pipefail\n" + "".join(commands)
    with warm_commands() as folder:
        environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "EPOCHS": str(epochs)}
        finished = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, env=environment, check=False)
    assert finished.returncode == 0, f"{finished.stdout}\n{finished.stderr}"
    return finished


def run_lines(doc: str, block: str, workplace: Path, corpus: Path) -> bool:
    """Run a bash block; False where it has lines for several machines, and this one cannot stand for them."""
    lines, all_ran = words_of(block), True
    while lines:
        launches = take_launches(lines, block)
        if launches:
            all_ran &= run_launches(launches, workplace, corpus)
        else:
            run_command(doc, lines.pop(0), workplace, corpus)
    return all_ran


def files_in_the_table() -> set[Path]:
    """The files and folders that the first column of the table in architecture.md names."""
    found = set()
    for cell in re.findall(
        r"^\| (`(?:nemo_\w+|examples|benchmarks|tests)/.*?) \|", ARCHITECTURE.read_text(), re.MULTILINE
    ):
        first, *others = (source_path(name) for name in re.findall("`([^`]+)`", cell))
        siblings = (first.parent / path.relative_to(ROOT) for path in others)
        found |= {first, *(near if near.exists() else far for near, far in zip(siblings, others, strict=True))}
    return found


def source_path(name: str) -> Path:
    """``nemo_asr/jasper.py`` is below ``collections/asr``."""
    return ROOT / ("collections/asr" if name.startswith("nemo_asr") else "") / name


@pytest.mark.xdist_group("sources")
@pytest.mark.slow
def test_the_table_of_packages_names_every_file_and_what_is_there():
    named = files_in_the_table()
    assert [str(path) for path in named if not path.exists()] == []
    code = [path for path in PACKAGES if path.name != "__init__.py" and not only_re_exports(path)]
    assert [str(path.relative_to(ROOT)) for path in code if not named & {path, path.parent}] == []


@pytest.mark.parametrize("page", [ARCHITECTURE, ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_every_path_that_the_pages_about_the_code_name_is_there(page):
    paths = set(re.findall(r"`((?:nemo_lite|nemo_asr|tests|benchmarks)/[\w/.]*)`", page.read_text(encoding="utf-8")))
    assert len(paths) > 20
    assert [name for name in sorted(paths) if not source_path(name).exists()] == []


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_that_a_page_names_is_there(path):
    tests = re.findall(r"`(tests/[\w/]+\.py)`", path.read_text(encoding="utf-8"))
    assert [name for name in tests if not (ROOT / name).exists()] == []


def test_names_with_their_place_in_docstrings_are_there():
    names = {
        (str(path.relative_to(ROOT)), name)
        for path in PACKAGES
        for name in re.findall(r"(?<!`)`(nemo_(?:lite|asr)(?:\.\w+)+)`(?!`)", path.read_text(encoding="utf-8"))
    }
    assert len(names) > 50
    assert [(file, name) for file, name in sorted(names) if not is_there(name)] == []


def is_there(name: str) -> bool:
    """Whether a dotted name leads to a module, or to what is in one."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


WHAT_IS_THERE = {
    "the beam search": "beam",
    "the Conformer": "class ConformerEncoder",
    "the word error rate": "class WordErrorRate",
    "resampling": "soxr",
    "where a checkpoint is written": "def write_",
    "how ranks find each other": "TCPStore",
    "an option of the server": "max_minutes",
    "what runs ONNX files": "class OnnxModel",
    "making a corpus": "class Synthesizer",
    "import paths of NeMo": "PATHS = {",
}


def test_what_newcomers_look_for_is_in_the_folder_that_the_page_names():
    (table,) = re.findall(r"^### Where is it\?\n(.*?)^###", ARCHITECTURE.read_text(encoding="utf-8"), re.M | re.S)
    places = {row[0]: re.findall("`([^`]+)`", row[1]) for row in re.findall(r"^\| ([^|`]+) \| (`.*) \|$", table, re.M)}
    assert places.keys() == WHAT_IS_THERE.keys()
    for thing, folders in places.items():
        for folder in folders:
            texts = (path.read_text(encoding="utf-8") for path in source_path(folder).glob("*.py"))
            assert any(WHAT_IS_THERE[thing] in text for text in texts), f"{thing}: not in {folder}"


@pytest.mark.xdist_group("sources")
@pytest.mark.slow
def test_the_picture_of_the_packages_is_drawn_from_the_code():
    (shown,) = blocks(ARCHITECTURE, "mermaid")
    assert shown == picture(), "docs/*/architecture.md: PYTHONPATH=tests python -m toys.rooms draws the picture anew"


@pytest.mark.slow
def test_the_picture_shows_every_room_and_leaves_out_arrows_that_follow_from_others(monkeypatch):
    drawn = picture()
    for package, inside in rooms().items():
        assert f'["{package}: ' in drawn
        assert [room for room in inside if f'{room.replace(".", "_")}["{room.rpartition(".")[2]}"]' not in drawn] == []
    assert reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": ["b"], "b": ["c"], "c": []}
    assert reduced({"a": {"b"}, "b": {"a"}}) == {"a": ["b"], "b": ["a"]}
    monkeypatch.setitem(MODULES, "nemo_asr.run.new.thing", MODULES["nemo_asr.run.arguments"])
    assert '        nemo_asr_run_new["new"]' in picture()


@pytest.mark.slow
def test_the_walk_through_a_step_names_functions_that_are_there():
    walked = re.findall(r"^(\S+\.py) +(\S+)  ", blocks(ARCHITECTURE, "text")[0], re.MULTILINE)
    assert len(walked) > 10
    for file, function in walked:
        defined = [node for node in ast.walk(parsed(ROOT / file)) if hasattr(node, "name")]
        names = {
            f"{node.name}.{part.name}"
            for node in defined
            for part in getattr(node, "body", ())
            if hasattr(part, "name")
        }
        assert function in names | {node.name for node in defined}, f"{file}: {function}"


def shown_on(path: Path) -> list[tuple[str, object]]:
    """The fenced blocks of a page in order, without what a translation changes."""
    return [(kind, without_prose(kind, block)) for kind, block in all_blocks(path)]


def without_prose(kind: str, block: str) -> object:
    """A fenced block without comments, labels and remarks."""
    if kind == "bash":
        return header_of(block), words_of(block)
    if kind == "python":
        return re.match(r"(?:# \S+\.py\n)?", block)[0], ast.unparse(ast.parse(block))
    if kind == "mermaid":
        return re.sub(r'(?:<br/>|: )[^"]*"', '"', block)
    # Of the walk through a step: what a function does.
    return re.sub(r"^(\S+\.py +\S+)  .*$", r"\1", block, flags=re.MULTILINE)


def prose_of(path: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def outline_of(path: Path) -> list[str]:
    """Levels of the headings, items of lists, and rows of tables with the code in their first column."""
    lines = re.findall(r"^(?:#+ |- |\d+\. |\| .*? \|)", prose_of(path), re.MULTILINE)
    return ["| " + " ".join(re.findall("`[^`]+`", line)) if line[0] == "|" else line for line in lines]


def paragraphs(path: Path) -> Iterator[tuple[int, str]]:
    """Paragraphs, items of lists and cells of tables outside of fenced blocks, each with its first line's number."""
    fenced = re.sub(
        r"^```.*?^```$", lambda block: "\n" * block[0].count("\n"), path.read_text(encoding="utf-8"), flags=re.S | re.M
    )
    first, lines = 0, list[str]()
    for number, line in enumerate([*fenced.splitlines(), ""], 1):
        begins = not line.strip() or re.match(r"#|\||\s*(?:-|\d+\.) ", line)
        if begins and lines:
            yield first, " ".join(lines)
            lines = []
        if line.startswith("|"):
            yield from ((number, cell.strip()) for cell in re.split(r"(?<!\\)\|", line))
        elif line.strip():
            first, lines = first if lines else number, [*lines, line.strip()]


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_paragraphs_items_and_cells_are_short(path):
    """A reader takes in a short one at a glance. Chinese says the same in half as many characters."""
    most = 320 if path in CHINESE.values() else 700
    long = [
        f"{path.relative_to(ROOT)}:{number}: {len(text)} characters, at most {most}; split it: {text[:40]}..."
        for number, text in paragraphs(path)
        if len(text) > most
    ]
    assert long == [], "\n".join(long)


def test_a_long_paragraph_is_named_by_its_line_and_code_is_none(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A\n\n```bash\ncode\n```\n\none\ntwo\n- three\n  four\n- five\n\n| a | b |\n|---|---|\n\nsix\n")
    found = [(number, text) for number, text in paragraphs(page) if text.strip("-")]
    assert found == [(1, "# A"), (7, "one two"), (9, "- three four"), (11, "- five"), (13, "a"), (13, "b"), (16, "six")]


def test_packages_to_install_are_named_and_not_extras_of_a_name_that_is_on_no_index():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras_text = re.search(r"^\[project.optional-dependencies\]\n(.*?)^\[", project, re.DOTALL | re.MULTILINE)[1]
    extras = dict(re.findall(r"^(\w+) = \[(.*?)\](?=\s*(?:#.*)?\n)", extras_text, re.DOTALL | re.MULTILINE))
    known = {"torch", "wandb", "mlflow", *re.findall(r'"([\w-]+)[>"]', extras_text)}
    texts = {path: path.read_text(encoding="utf-8") for path in [*PACKAGES, *ENGLISH.values(), *CHINESE.values()]}
    assert [str(path) for path, text in texts.items() if "nemo-lite[" in text] == []
    lines = [line for text in texts.values() for line in re.findall(r"pip install ((?:[a-z][\w-]+ ?)+)", text)]
    named = {package for line in lines for package in line.split()} - {"nemo_asr"}  # of which the FAQ warns
    assert {"onnx", "onnxruntime", "sentencepiece", "argcomplete", "matplotlib"} <= named
    assert named <= known, named - known
    assert set(re.findall(r"\w+", extras["all"].partition("[")[2])) == extras.keys() - {"dev", "docs", "all"}


def test_every_page_is_there_in_both_languages():
    assert sorted(CHINESE) == sorted(ENGLISH), "docs/zh and docs/en: translate the page that only one of them has"


@pytest.mark.parametrize("name", TRANSLATED)
def test_both_languages_of_a_page_show_the_same_commands_scripts_and_outputs(name):
    assert shown_on(CHINESE[name]) == shown_on(ENGLISH[name]), f"{CHINESE[name]}: copy the block from {ENGLISH[name]}"


@pytest.mark.parametrize("name", TRANSLATED)
def test_both_languages_of_a_page_have_the_same_headings_lists_tables_and_names_of_code(name):
    assert outline_of(CHINESE[name]) == outline_of(ENGLISH[name]), f"{CHINESE[name]}: translate what differs"
    english, chinese = (
        set(re.findall("`([^`\n]+)`", prose_of(pages[name]).replace("``", "`"))) for pages in (ENGLISH, CHINESE)
    )
    assert chinese ^ english == set(), f"{CHINESE[name]}: translate what is new, take out what is gone"


@pytest.mark.parametrize("name", TRANSLATED)
def test_links_of_a_page_lead_to_pages_in_the_same_language_where_there_are_some(name):
    other = re.findall(r"\]\((?:\.\.|docs)/en/([^)#]+)", prose_of(CHINESE[name]))
    assert [page for page in other if page in CHINESE] == [], f"{CHINESE[name]}: link the Chinese page and its heading"


def test_the_ranks_of_the_guide_are_those_that_a_start_tells():
    class Seat:
        def __init__(self, rank):
            machine = rank // 4 + 1
            self.rank, self.host, self.interface, self.address = rank, f"node{machine}", "ens1f0", f"10.0.0.{machine}"

    table = rank_table("nccl", [Seat(rank) for rank in range(8)], [f"cuda:{rank % 4} NVIDIA V100" for rank in range(8)])
    assert f"{table}\n" in blocks(GUIDE, "text")


def run_command(doc: str, words: list[str], workplace: Path, corpus: Path) -> None:
    """A command for one process."""
    if words[0] == "make":
        check_targets(words[1:])
    elif words[1:3] == ["-m", "pytest"]:
        assert [word for word in words if word.startswith("tests/") and not (ROOT / word).exists()] == []
    elif words[:2] == ["python", "-m"]:
        check_module(*words[2:])
    elif words[0] == "python" and words[1].startswith("examples/asr/"):
        finished = run_script(Path(words[1]).name, *scaled_down(words[2:], workplace, corpus))
        assert finished.code == 0, f"{shlex.join(words)}\n{finished.err}"
    elif words[:3] == ["nemo-lite", "data", "make"] and words[3] not in CORPORA:
        check_options(words[4:], (ROOT / "collections/asr/nemo_asr/commands/cli/data.py").read_text(encoding="utf-8"))
    elif words[:3] == ["nemo-lite", "data", "make"]:
        check_module(f"nemo_asr.corpora.{words[3]}", *words[4:])
    elif words[0] == "nemo-lite":
        run_nemo_lite(words[1:], workplace, corpus)
    elif words[0] == "python" and words[1].startswith("benchmarks/"):
        check_options(words[2:], (ROOT / words[1]).read_text(encoding="utf-8"))
    else:
        # What these lines do is what test_wheel.py does: an environment, and the package in it.
        line = shlex.join(words)
        assert line in INSTALLING, f"{doc} shows a command that no test knows how to check: {line}"


def run_nemo_lite(words: list[str], workplace: Path, corpus: Path) -> None:
    """``nemo-lite`` in this process. The model that another page trains is one that knows nothing."""
    if words[0] in ("transcribe", "export") and words[1] == TRAINED_ELSEWHERE and not (workplace / words[1]).exists():
        recipe = nemo_asr.load_recipe(corpus / "tones.yaml")
        nemo_asr.TrainedModel("new", recipe, recipe.model(), nemo_asr.describe(recipe)).save(workplace / words[1])
    small = scaled_down(words, workplace, corpus)
    piped = Path(small[small.index("<") + 1]).read_bytes() if "<" in small else b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped)))
        finished = run_subcommand(*(small[: small.index("<")] if piped else small))
    # All sets have the same recordings here: check finds that.
    expected = 1 if words[:2] == ["data", "check"] else 0
    assert finished.code == expected, f"nemo-lite {shlex.join(words)}\n{finished.out}\n{finished.err}"


def take_launches(lines: list[list[str]], block: str) -> list[Launch]:
    """Take the next line off if it starts several processes, with those that other machines run at the same time."""
    first = launch_of(lines[0], header_of(block))
    if first is None:
        return []
    lines.pop(0)
    if not first.is_for_one_machine_of_several:
        return [first] * first.num_machines
    others = [launch_of(lines.pop(0)) for _ in range(first.num_machines - 1)]
    launches = [first, *others]
    found = [launch for launch in launches if launch is not None]
    assert [launch.option("node_rank") for launch in found] == ["0", "1"], block
    return found


def run_launches(launches: list[Launch], workplace: Path, corpus: Path) -> bool:
    """Run the lines of all machines at once, on this one; False where it has no address that several could use."""
    address = "127.0.0.1" if len(launches) == 1 else own_address()
    if address is None:
        return False
    started, port = [], free_port()
    for machine, launch in enumerate(launches):
        script = workplace / launch.script if (workplace / launch.script).exists() else ROOT / launch.script
        args = scaled_down(launch.args, workplace, corpus)
        started += launch.start(machine, address, port, str(script), args)
    ends = wait_all(started)
    told = "\n".join(end.out + end.err for end in ends)
    assert [end.code for end in ends] == [0] * len(ends), f"{launches[0]}\n{told}"
    assert told.count("2 ranks on 1 machine, gloo") == 1, f"{launches[0]}\n{told}"
    return True


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


def scaled_down(args: list[str], workplace: Path, corpus: Path) -> list[str]:
    """The options shown, for a small model and small data, which now lie under the names shown."""
    for name in (name for arg in args for name in re.sub("^--[a-z_0-9]+=", "", arg).split(",")):
        if name.endswith(".yaml") and (workplace / name).is_file():  # a block of the page
            continue
        if name.endswith(".yaml"):
            assert (ROOT / name).is_file(), name
        (workplace / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".yaml"):
            (workplace / name).write_text(CONFIG)
        elif name.endswith(".json"):
            (workplace / name).write_text((corpus / "train.json").read_text())
        elif name.endswith(RECORDINGS):
            record(workplace / name, "cab")
        elif name.endswith("/"):
            (workplace / name).mkdir(exist_ok=True)
            record(workplace / name / "cab.wav", "cab")
    return [scaled(before, arg) for before, arg in zip(["", *args], args, strict=False)]


def scaled(before: str, arg: str) -> str:
    """A word of a command line, behind another one."""
    option, _, value = arg.partition("=")
    if before == "--model_config" and not arg.endswith(".yaml"):
        assert config_path(arg).is_file()
        Path("tones.yaml").write_text(CONFIG)
        return "tones.yaml"
    return f"{option}={SCALED_DOWN[option]}" if value and option in SCALED_DOWN else SCALED_DOWN.get(before, arg)


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_are_there(path):
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r'(?:\]\(|<img src=")(?!https?:)([^)\s"]+)[)"]', text):
        file, _, heading = target.partition("#")
        found = path.parent / file if file else path
        assert found.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)", found.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
            assert heading in anchors, target
