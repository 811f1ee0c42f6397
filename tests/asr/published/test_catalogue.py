"""Names of published models: the table, and what stands where a model's path does, from a stand-in of Hugging Face."""

from __future__ import annotations

import json
import re
import sys
import wave
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import pytest
from toys.hub_server import Hub, asked_here
from toys.hugging_face import write_folder
from toys.nemo_conformers import write_case

import nemo_asr
from nemo_asr.argparse import AsrArgParser
from nemo_asr.commands.cli.eval import main as evaluate
from nemo_asr.commands.cli.models import export, main
from nemo_asr.commands.cli.train import main as train
from nemo_asr.published.catalogue import DOOR, Repository, parse_repository, published_models, repository_of
from nemo_asr.run.cli.align import main as align
from nemo_asr.run.cli.serve import main as serve
from nemo_asr.run.cli.transcribe import main as transcribe
from nemo_asr.run.options import FOREIGN_MODELS
from nemo_asr.run.serve.models import names_of_models
from nemo_asr.trained.folder import FORMATS, find_model, read_card
from nemo_asr.trained.hugging_face import check_kind
from nemo_asr.trained.licences import licence_of
from nemo_lite.base.errors import CheckpointError, ModelNotFoundError, NemoLiteError, UsageError
from nemo_lite.base.files import digest_of_file

NAME = "parakeet-ctc-0.6b"


@pytest.fixture(name="hub")
def _hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A small Parakeet as ``owner/name``, and an empty working directory."""
    files = {path.name: path.read_bytes() for path in write_folder(tmp_path / "server").iterdir()}
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with asked_here(Hub(files), tmp_path / "cache", monkeypatch) as hub:
        yield hub


def test_the_table_has_facts_and_no_error_rates(capsys: pytest.CaptureFixture[str]) -> None:
    models = published_models()
    assert len(models) > 20
    assert all(all(each._replace(licence="looked up")) and name == each.name for name, each in models.items())
    assert all(str(repository_of(each.repository)) == each.repository for each in models.values())
    main(["list"])
    told = capsys.readouterr()
    head, *lines = told.out.splitlines()
    assert head.split() == ["name", "heads", "languages", "weights", "licence", "sample", "rate", "repository"]
    assert [line.split()[0] for line in lines] == list(models)
    assert told.err.endswith("hf:OWNER/NAME (Hugging Face), ngc:ORG/TEAM/NAME@VERSION (NVIDIA's NGC)\n")


@pytest.mark.parametrize(
    ("columns", "last", "left_out"),
    [
        (80, "weights", "licence, sample rate, repository"),
        (100, "licence", "sample rate, repository"),
        (200, "repository", ""),
    ],
)
def test_the_table_has_the_columns_that_fit_a_terminal(columns: int, last: str, left_out: str, monkeypatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    out, err = Terminal(), StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("COLUMNS", str(columns))
    main(["list"])
    head, *lines = out.getvalue().splitlines()
    assert head.split()[-1] == last
    assert max(map(len, [head, *lines, *err.getvalue().splitlines()])) <= columns
    assert [line.split()[0] for line in lines if line[0] != " "] == list(published_models())
    assert err.getvalue().partition("\nAlso ")[2].removesuffix(": nemo-lite models list | less -S\n") == left_out


def test_a_name_stands_for_its_repository_unless_there_is_such_a_path(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert repository_of(NAME) == Repository(f"nvidia/{NAME}")
    (tmp_path / NAME).mkdir()
    assert repository_of(NAME) is None
    assert repository_of("runs/demo") is None


def test_a_model_is_fetched_shown_and_written_as_a_model_folder(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    main(["get", "hf:owner/name", "--to", "mine"])
    told = capsys.readouterr().out
    cached = find_model("hf:owner/name")
    assert f"model.safetensors  0.1 MiB  SHA-256 {digest_of_file(cached / 'model.safetensors')}" in told
    sources = read_card(Path("mine", "model.json")).sources
    assert sources == {name: digest_of_file(cached / name) for name in sources}
    assert "model.safetensors" in sources
    main(["show", "hf:owner/name"])
    assert capsys.readouterr().out.splitlines()[0].endswith(str(cached))
    with pytest.raises(UsageError, match="there is a model already"):
        main(["get", "hf:owner/name", "--to", "mine"])


@pytest.mark.parametrize("words", [["get", "m", "--to", ""], ["import", "m", "--to", ""], ["convert", "m", ""]])
def test_an_empty_name_is_no_folder(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert "names no folder; give one, or . for the working directory" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["get", "import"])
@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("file", "^file: there is a file where a folder is wanted; choose another"),
        ("file/below", "file: there is a file where a folder is wanted; choose another"),
        ("/proc/none/mine", '^/proc: the folder is not writable: got "'),
    ],
)
def test_a_folder_that_cannot_be_written_is_refused_before_the_download(
    command: str, folder: str, message: str, hub: Hub
) -> None:
    Path("file").write_text("of the user")
    with pytest.raises(UsageError, match=message):
        main([command, "hf:owner/name", "--to", folder])
    assert hub.asked == []


def test_a_published_model_is_not_fetched_to_be_calibrated(hub: Hub) -> None:
    with pytest.raises(UsageError, match=r"^hf:owner/name: only a model folder has a card to write to: got"):
        main(["calibrate", "hf:owner/name", "list.json"])
    assert hub.asked == []


def test_what_comes_from_a_name_has_the_licence_of_the_table(hub: Hub, monkeypatch, capsys) -> None:
    stated = published_models()[NAME]._replace(repository="hf:owner/name", licence="CC-BY-4.0")
    monkeypatch.setattr("nemo_asr.published.catalogue.published_models", lambda: {NAME: stated})
    main(["import", NAME, "--to", "made"])
    main(["get", NAME, "--to", "fetched"])
    main(["import", NAME, "--to", "said", "--licence", "MIT"])
    said = [read_card(Path(folder, "model.json")).licence for folder in ("made", "fetched", "said")]
    assert said == ["CC-BY-4.0", "CC-BY-4.0", "MIT"]
    main(["show", NAME, "--require", "commercial"])
    assert "licence      CC-BY-4.0" in capsys.readouterr().out
    assert (licence_of(NAME), licence_of("hf:owner/name"), licence_of("made")) == ("CC-BY-4.0",) * 3
    assert licence_of(find_model(NAME)) == ""


def test_import_without_a_folder_writes_one_of_its_name_here(hub: Hub, tmp_path: Path) -> None:
    main(["import", "hf:owner/name"])
    assert read_card(tmp_path / "here" / "name" / "model.json").labels
    assert not (tmp_path / "cache" / "hf" / "owner" / "name" / "model").exists()


def test_a_name_transcribes_and_is_fetched_once(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    with wave.open("talk.wav", "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(bytes(range(256)) * 250)
    assert transcribe(["hf:owner/name", "talk.wav"]) == 0
    text = capsys.readouterr().out
    hub.asked.clear()
    assert len(nemo_asr.load_model("hf:owner/name").card.labels) > 1
    capsys.readouterr()
    assert transcribe(["hf:owner/name", "talk.wav"]) == 0
    assert capsys.readouterr().out == text
    assert hub.asked == []


def test_training_starts_from_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    needed = ["--train_dataset", "train.json", "--max_steps", "2"]
    assert AsrArgParser(prog="tool").parse_args([*needed, "--init_from", NAME]).init_from == NAME
    assert AsrArgParser(prog="tool").parse_args([*needed, "--init_from", "hf:a/b"]).init_from == "hf:a/b"
    with pytest.raises(SystemExit):
        AsrArgParser(prog="tool").parse_args([*needed, "--init_from", "hfa/b"])
    assert "'hfa/b' does not exist; give" in capsys.readouterr().err


def test_a_server_calls_a_model_by_the_last_part_of_its_name() -> None:
    assert names_of_models(["hf:owner/small-0.6b-v3", NAME]) == ["small-0.6b-v3", NAME]


def test_another_name_is_answered_with_the_nearest_and_with_the_door(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        CheckpointError, match=rf"models list names .* \(did you mean {NAME}\?\); hf:OWNER/NAME or ngc:ORG"
    ):
        find_model("parakeet-ctc-0.6")
    with pytest.raises(
        UsageError, match=rf"no published model of this name; {DOOR} \(did you mean {NAME}\?\); hf:OWNER"
    ):
        main(["get", "parakeet-ctc-0.6"])


def test_a_published_model_whose_name_a_folder_here_has_is_got_and_told(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(NAME).mkdir()
    with pytest.raises(CheckpointError, match=rf"; write hf:nvidia/{NAME} for the published model; {DOOR}$"):
        find_model(NAME)
    with pytest.raises(ModelNotFoundError, match=rf"^hf:nvidia/{NAME}: it is not in the cache"):
        main(["get", NAME, "--offline"])


@pytest.mark.parametrize("page", ["", "/tree/main"])
def test_an_address_of_hugging_face_is_answered_with_what_to_write(page: str) -> None:
    with pytest.raises(CheckpointError, match=rf"; write hf:owner/name to download it; {DOOR}$"):
        find_model(f"https://huggingface.co/owner/name{page}")


COMMANDS: dict[str, Callable[[str], object]] = {
    "transcribe": lambda model: transcribe([model, "talk.wav"]),
    "eval": lambda model: evaluate([model, "--eval_datasets", "list.json"]),
    "align": lambda model: align([model, "list.json"]),
    "export": lambda model: export([model, "file.onnx"]),
    "serve": lambda model: serve([model]),
    "models show": lambda model: main(["show", model]),
    "models import": lambda model: main(["import", model, "--to", "made"]),
    "train --init_from": lambda model: train(
        ["--train_dataset", "list.json", "--max_steps", "2", "--init_from", model]
    ),
    "load_model": nemo_asr.load_model,
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("kind", ["no name", "empty folder", "another file", "unread archive", "unread folder"])
def test_each_refusal_of_a_model_ends_with_the_door(
    command: Callable[[str], object], kind: str, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.json").write_text(json.dumps({"audio_filepath": "talk.wav", "duration": 1.0, "text": "a"}))
    with wave.open("talk.wav", "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(bytes(32000))
    model = Path("model")
    if kind == "another file":
        model.write_text("")
    elif kind == "unread archive":
        model = write_case(Path("model.nemo"), "fast conformer of 3.0", target="nemo.collections.speechlm2.models.SALM")
    elif kind != "no name":
        model.mkdir()
    if kind == "unread folder":
        (model / "config.json").write_text('{"model_type": "moonshine"}')
        (model / "model.safetensors").write_text("")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((NemoLiteError, SystemExit)) as caught:
        command(str(model))
    told = str(caught.value) if isinstance(caught.value, NemoLiteError) else capsys.readouterr().err.strip()
    assert DOOR in getattr(caught.value, "remedy", DOOR)
    assert re.search(rf"; {DOOR}(; hf:OWNER/NAME or ngc:ORG/TEAM/NAME@VERSION is any other)?$", told), told
    assert "\n" not in told
    assert sorted(tmp_path.rglob("*")) == before


def test_help_and_errors_name_the_formats_that_are_read() -> None:
    assert tuple(each.name for each in FORMATS) == FOREIGN_MODELS


def test_a_type_that_is_not_read_is_told_before_its_weights_are_fetched(hub: Hub) -> None:
    hub.files["config.json"] = b'{"model_type": "moonshine"}'
    with pytest.raises(CheckpointError, match="the model is of type moonshine: its decoder"):
        find_model("hf:owner/name")
    assert not any("model.safetensors" in path for path, *_ in hub.asked)


@pytest.mark.parametrize("model_type", ["whisper", "cohere_asr", "parakeet_tdt", "wav2vec2", "lasr_ctc"])
def test_types_that_are_read_may_be_fetched(model_type: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(f'{{"model_type": "{model_type}"}}')
    check_kind(tmp_path / "config.json")


def test_get_offline_takes_what_is_in_the_cache(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelNotFoundError, match="it is not in the cache"):
        main(["get", "hf:owner/name", "--offline"])
    main(["get", "hf:owner/name"])
    capsys.readouterr()
    hub.asked.clear()
    main(["get", "hf:owner/name", "--offline"])
    assert capsys.readouterr().out.splitlines()[-1] == str(find_model("hf:owner/name"))
    assert hub.asked == []


@pytest.mark.parametrize("text", ["hf:", "hf:name", "hf:a/b/c", "hf:../b", "hf:a/..", "hf:a/b@", "hf://a/b"])
def test_other_spellings_name_no_repository(text: str) -> None:
    with pytest.raises(UsageError, match=rf"this names no repository: wanted hf:OWNER/NAME.*; {DOOR}$"):
        parse_repository(text)
