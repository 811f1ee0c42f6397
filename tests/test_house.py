"""Where tests stand: at the path of what they test, under names of their own; what they share is in toys."""

from __future__ import annotations

import ast
import faulthandler
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest
from toys.sources import MODULES, ROOT, files, is_inside, parsed

TESTS = files("tests")
TEST_FILES = [path for path in TESTS if path.name.startswith("test_")]
# Below tests/, nemo_asr is asr, and the one backend stands for all. A longer name wins.
FOLDERS = {"nemo_lite": "", "nemo_lite.backends.pytorch": "backends", "nemo_asr": "asr"}
# A file has its test at the mirrored path: a/b/c.py in a/b/test_c.py, or several in the folder a/b/c. Where else tests
# are, a line says: of a package, the files without tests of their own, and where their tests are.
ELSEWHERE = [
    ("nemo_asr", "rng", "asr/augmentation/test_own_generators.py"),
    ("nemo_asr.augmentation", "channel pauses perturbation recordings speed", "asr/augmentation/test_augmentor.py"),
    ("nemo_asr.commands", "class_evaluation", "examples/test_classify.py"),
    ("nemo_asr.commands", "recognised_sets", "asr/commands/test_evaluation.py"),
    ("nemo_asr.commands", "training", "asr/commands/test_asr_tracking.py"),
    ("nemo_asr", "options", "asr/test_argparse.py"),
    ("nemo_asr.corpora", "kaldi", "asr/corpora/test_kaldi_folders.py"),
    ("nemo_asr.corpora", "listed", "asr/corpora/test_conversion.py"),
    ("nemo_asr.corpora", "tables", "asr/corpora/test_corpus_tables.py"),
    ("nemo_asr.corpora", "archives", "asr/corpora/test_writing.py"),
    ("nemo_asr.data", "audio_files copied", "asr/data/test_dataset.py"),
    ("nemo_asr.data", "examined", "asr/data/test_check.py"),
    ("nemo_asr.data", "made_shards tar_shards", "asr/data/test_tarred.py"),
    ("nemo_asr.data", "file_durations scored_texts", "asr/data/test_speech_data_layer.py"),
    ("nemo_asr.decoding", "attention hypotheses", "asr/tasks/test_attention.py"),
    ("nemo_asr.published", "transfer", "asr/published/test_hub.py"),
    ("nemo_asr.export", "onnx_asr_export sherpa_export torch_export", "asr/export/test_runner_export.py"),
    ("nemo_asr.features", "audio_preprocessor", "asr/features/test_preprocessors.py"),
    ("nemo_asr.models.attention", "decoder layers loss", "asr/models/test_attention_decoder.py"),
    ("nemo_asr.models.attention", "prompt", "asr/models/attention/test_prompted.py"),
    (
        "nemo_asr.models.conformer",
        "convolution encoder layer self_attention subsampling",
        "asr/models/test_conformer.py",
    ),
    ("nemo_asr.models", "masks", "asr/models/test_wav2vec.py"),
    ("nemo_asr.models", "granite lasr wav2vec_bert", "asr/models/test_hugging_face_conformers.py"),
    ("nemo_asr.models.conformer", "other_attention", "asr/models/test_hugging_face_conformers.py"),
    ("nemo_asr.models.jasper", "decoders encoder", "asr/models/jasper/test_jasper.py"),
    ("nemo_asr.run", "manifest_kinds", "asr/run/test_manifest.py"),
    ("nemo_asr.run.audio", "kinds mp3", "asr/run/audio/test_reading.py"),
    ("nemo_asr.run.onnx", "onnx_stream", "asr/export/test_stream_export.py"),
    ("nemo_asr.run.onnx", "onnx_session runtime", "asr/run/onnx/test_onnx_model.py"),
    ("nemo_asr.run.search", "word_beams", "asr/run/search/test_prefix_beam_search.py"),
    ("nemo_asr.run.search", "known_searches search", "asr/run/search/test_text_search.py"),
    ("nemo_asr.run.search", "parts", "asr/run/search/test_exported_transducer.py"),
    ("nemo_asr.run.search", "ctc", "asr/run/transcribe/test_viterbi.py"),
    ("nemo_asr.run.serve", "ending metrics protocol stream uploads", "asr/run/serve/test_app.py"),
    ("nemo_asr.run.text", "inflected", "asr/run/text/test_readings.py"),
    ("nemo_asr.tasks", "known_modules", "asr/tasks/test_registry.py"),
    ("nemo_asr.trained", "statistics", "asr/commands/cli/test_data.py"),
    ("nemo_asr.trained", "streamed_model", "asr/run/transcribe/stream/test_frame_stream.py"),
    ("nemo_asr.trained", "foreign", "asr/trained/test_nemo_files.py"),
    ("nemo_asr.trained", "folder", "asr/trained/test_trained_folder.py"),
    ("nemo_asr.trained", "ctc_folders", "asr/trained/test_waveform_models.py"),
    ("nemo_asr.trained", "hugging_face_files", "asr/trained/test_hugging_face.py"),
    ("nemo_asr.trained", "nemo_config", "asr/trained/test_nemo_files.py"),
    ("nemo_asr.trained", "nemo_prompted", "asr/trained/test_prompted_models.py"),
    ("nemo_lite", "__main__", "base/test_dispatch.py"),
    ("nemo_lite", "factory", "core/test_factory.py"),
    ("nemo_lite", "package_info", "core/test_module_config.py"),
    ("nemo_lite.backends.pytorch", "foreach_optimizers", "backends/test_optimizers.py"),
    ("nemo_lite.backends.pytorch", "half_modules", "backends/test_precision.py"),
    ("nemo_lite.backends.pytorch", "iterations", "backends/engine/test_step_memory.py"),
    ("nemo_lite.base", "nemo_archive", "compat/test_nemo_model.py"),
    ("nemo_lite.base", "aliases", "test_public_names.py"),
    ("nemo_lite.compat", "paths", "test_public_names.py"),
    ("nemo_lite.core", "picture", "core/test_show.py"),
    ("nemo_lite.utils", "optimizers", "backends/test_optimizers.py"),
    ("nemo_lite.utils", "argparse", "utils/test_nemo_argparse.py"),
]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported_tests(path: Path) -> Iterator[str]:
    """What a file imports from files of tests, which hold nothing to share: toys do."""
    for node in ast.walk(parsed(path)):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names += [alias.name for alias in node.names]
        for name in names:
            if any(part.startswith("test_") or part == "conftest" for part in name.split(".")):
                yield name


def test_no_two_files_of_tests_have_one_name() -> None:
    names = Counter(path.name for path in TEST_FILES)
    assert len(names) > 50
    assert [name for name, number in names.items() if number > 1] == []


@pytest.mark.xdist_group("sources")
@pytest.mark.slow
def test_no_file_imports_from_a_file_of_tests() -> None:
    found = {relative(path): list(imported_tests(path)) for path in TESTS}
    assert {name: imported for name, imported in found.items() if imported} == {}


def mirrored(module: str) -> tuple[str, str]:
    """Where the tests of a module belong, below tests/: the file, and the folder where there are several."""
    package = max((name for name in FOLDERS if is_inside(module, name)), key=len)
    folders, _, name = module.removeprefix(package).strip(".").rpartition(".")
    place = "/".join(filter(None, [FOLDERS[package], *folders.split(".")]))
    return f"{place}/test_{name}.py".lstrip("/"), f"{place}/{name}/".lstrip("/")


def without_tests(
    modules: Collection[str], tests: Collection[str], elsewhere: Sequence[tuple[str, str, str]]
) -> list[str]:
    """Modules that have no test at the mirrored path and no line, and names in lines that are of no use.

    Args:
        modules: names of files with code.
        tests: files of tests, below tests/.
        elsewhere: package, names of its files, file of tests.
    """
    lines = {f"{package}.{name}": test for package, names, test in elsewhere for name in names.split()}
    missing = {}
    for module in modules:
        file, folder = mirrored(module)
        if file not in tests and not any(test.startswith(folder) for test in tests):
            missing[module] = file
    return [
        *(f"{name}: no tests/{file}, and no line in ELSEWHERE" for name, file in missing.items() if name not in lines),
        *(f"{name}: no file needs this line" for name in lines if name not in missing),
        *(f"{name}: there is no tests/{test}" for name, test in lines.items() if test not in tests),
    ]


def test_each_source_file_has_its_test_at_the_mirrored_path_or_a_line_that_says_where() -> None:
    modules = [name for name, path in MODULES.items() if path.name != "__init__.py"]
    tests = [str(path.relative_to(ROOT / "tests")) for path in TEST_FILES]
    problems = without_tests(modules, tests, ELSEWHERE)
    assert problems == [], "\n".join(problems)


def test_the_file_of_a_package_itself_holds_names_that_other_tests_read() -> None:
    """Imports and tables of names: tests/test_public_names.py holds them. So they need no test at the mirrored path."""
    inits = [path for path in MODULES.values() if path.name == "__init__.py"]
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    assert [relative(path) for path in inits for node in parsed(path).body if isinstance(node, kinds)] == []


# The guards themselves


@pytest.mark.parametrize(
    ("module", "file", "folder"),
    [
        ("nemo_lite.factory", "test_factory.py", "factory/"),
        ("nemo_lite.core.dag", "core/test_dag.py", "core/dag/"),
        ("nemo_lite.backends.pytorch.nm", "backends/test_nm.py", "backends/nm/"),
        ("nemo_asr.rng", "asr/test_rng.py", "asr/rng/"),
        ("nemo_asr.run.search.ngram", "asr/run/search/test_ngram.py", "asr/run/search/ngram/"),
    ],
)
def test_where_the_tests_of_a_file_belong(module: str, file: str, folder: str) -> None:
    assert mirrored(module) == (file, folder)


def test_a_file_without_tests_and_a_line_without_use_are_told() -> None:
    tests = ["core/test_dag.py", "core/ports/test_names.py", "core/test_shapes.py"]
    modules = ["nemo_lite.core.dag", "nemo_lite.core.ports", "nemo_lite.core.new"]
    problem = "nemo_lite.core.new: no tests/core/test_new.py, and no line in ELSEWHERE"
    assert without_tests(modules, tests, []) == [problem]
    assert without_tests(modules, tests, [("nemo_lite.core", "new", "core/test_shapes.py")]) == []
    assert without_tests(modules, tests, [("nemo_lite.core", "new dag", "core/test_gone.py")]) == [
        "nemo_lite.core.dag: no file needs this line",
        "nemo_lite.core.new: there is no tests/core/test_gone.py",
        "nemo_lite.core.dag: there is no tests/core/test_gone.py",
    ]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from toys.nets import Net", []),
        ("from test_dag import make", ["test_dag"]),
        ("from core.test_dag import make", ["core.test_dag"]),
        ("import examples.conftest", ["examples.conftest"]),
        ("from core import test_dag", ["test_dag"]),
        ("from nemo_lite.testing import x", []),
    ],
)
def test_the_guard_of_imports_between_tests_sees_what_it_is_for(source: str, found: list[str], tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(source)
    assert list(imported_tests(tmp_path / "test_a.py")) == found


def test_a_test_that_takes_too_long_fails(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "tests/conftest.py"))
    dumps: list[int] = []
    monkeypatch.setattr(conftest, "TEST_SECONDS", 0.05)
    monkeypatch.setattr(faulthandler, "dump_traceback", dumps.append)
    with pytest.raises(pytest.fail.Exception, match=r"the test took more than 0\.05 s"), conftest.limited(request.node):
        time.sleep(60)
    assert len(dumps) == 1  # stacks of all threads
