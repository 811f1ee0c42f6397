"""Folders of transformers with a Whisper: the texts that its `generate` finds; what is not read is one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file, save_file
from toys import hugging_face
from toys.byte_pairs import pieces_and_merges
from toys.nemo_conformers import RATE, signal_of
from toys.whisper_models import (
    CASES,
    LANGUAGES,
    NO_TIMES,
    PIECES,
    SECONDS,
    SPECIAL,
    START,
    TASKS,
    TOKENS,
    WINDOW_SECONDS,
    config_of,
    found_by_transformers,
    generation_of,
    loaded,
    shapes_of,
    state_of,
    stored_cases,
    transformers_cases,
    transformers_model,
    write_folder,
)

from nemo_asr.commands.cli.data import main as data
from nemo_asr.commands.cli.models import main as models
from nemo_asr.commands.cli.train import main as train
from nemo_asr.run.audio.segments import Cutting
from nemo_asr.run.cli.transcribe import main as transcribe
from nemo_asr.run.options import SearchOptions
from nemo_asr.run.text.labels import text_of
from nemo_asr.run.transcribe import driver
from nemo_asr.run.transcribe.doubts import TEMPERATURES
from nemo_asr.run.transcribe.transcript import as_json
from nemo_asr.tasks.fitting import leave_out_long, refuse_long
from nemo_asr.trained.foreign import renamed
from nemo_asr.trained.hugging_face import read_hugging_face
from nemo_asr.trained.model import TrainedModel, import_model, load_model
from nemo_asr.trained.whisper_models import NAMES
from nemo_lite.base.errors import CheckpointError, ConfigError, DataError, NemoLiteError, UsageError

DECODER = "WhisperDecoder"
FIRST_TIME = NO_TIMES + 1


def model_of(folder: Path, name: str = "multilingual") -> TrainedModel:
    return loaded(write_folder(folder / "small", name, state=state_of(seed=CASES[name][2])), name)


def texts_of(model: TrainedModel, *seconds: float) -> list[str]:
    recordings = [signal_of(each).numpy() for each in seconds]
    return [each.text for each in model.transcribe(recordings, sample_rate=RATE, cutting=None)]


@pytest.mark.parametrize("name", CASES)
def test_a_folder_gives_the_text_that_transformers_finds(tmp_path: Path, name: str) -> None:
    stored = stored_cases()[name]
    assert texts_of(model_of(tmp_path, name), SECONDS) == [stored["text"]]
    labels = [token for token in stored["tokens"] if token < PIECES]
    assert len(labels) >= 8


def test_the_last_piece_of_published_folders_is_empty_and_writes_nothing(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "small", state=state_of(seed=CASES["multilingual"][2]))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    pieces, stored = tokenizer["model"]["vocab"], stored_cases()["multilingual"]
    (last,) = (piece for piece, number in pieces.items() if number == PIECES - 1)
    assert last not in stored["text"]
    del pieces[last], tokenizer["model"]["merges"][-1]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(CheckpointError, match=f"lacks a piece: got no piece {PIECES - 1}"):
        load_model(folder)
    pieces[""] = PIECES - 1
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert texts_of(import_model(folder, tmp_path / "ours"), SECONDS) == [stored["text"]]
    assert texts_of(load_model(tmp_path / "ours"), SECONDS) == [stored["text"]]


@pytest.mark.parametrize("name", CASES)
def test_the_prompt_is_that_of_transformers(tmp_path: Path, name: str) -> None:
    prompt = [token for token in stored_cases()[name]["tokens"] if START <= token < FIRST_TIME]
    attention: Any = model_of(tmp_path, name).modules.others["attention"]
    found = [*attention.start]
    if name in ("multilingual", "with times"):  # the language is found for each recording
        prompt[1] = found[1] = 0
    assert found == prompt


def test_the_stored_numbers_are_those_of_transformers() -> None:
    pytest.importorskip("transformers")
    assert transformers_cases() == stored_cases()


def test_log_probabilities_are_those_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    theirs, state = transformers_model(), state_of(seed=3)
    theirs.load_state_dict(state, strict=False)
    modules: Any = load_model(write_folder(tmp_path / "small", "tuned", state=state)).modules
    attention, features = modules.others["attention"], torch.randn(2, 80, 200)
    texts = torch.randint(0, PIECES, (2, 7))
    lengths = torch.tensor([200, 200])
    with torch.no_grad():
        encoded, frames = modules.encoder(features, lengths, force_pt=True)
        found = attention(encoded, texts, frames, torch.tensor([7, 7]), force_pt=True)
        inputs = torch.cat([torch.tensor([attention.start, attention.start]), texts], 1)
        wanted = theirs(input_features=features, decoder_input_ids=inputs).logits[:, len(attention.start) - 1 :]
        wanted = wanted.log_softmax(-1)
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_the_text_of_a_recording_does_not_depend_on_its_batch(tmp_path: Path) -> None:
    model = model_of(tmp_path)
    lengths = (0.8, 2.0, 0.3, SECONDS)
    assert texts_of(model, *lengths) == [texts_of(model, each)[0] for each in lengths]
    assert len({*texts_of(model, *lengths)}) > 2


def test_words_lie_between_the_times_that_are_found(tmp_path: Path) -> None:
    tokens = stored_cases()["with times"]["tokens"]
    times = [0.02 * (token - FIRST_TIME) for token in tokens if token >= FIRST_TIME]
    (found,) = model_of(tmp_path, "with times").transcribe([signal_of(SECONDS).numpy()], RATE, cutting=None)
    assert found.words[0].start == pytest.approx(times[0])
    (plain,) = model_of(tmp_path / "plain").transcribe([signal_of(SECONDS).numpy()], RATE, cutting=None)
    assert (plain.words[0].start, plain.words[-1].end) == (0.0, SECONDS)  # spread over the recording, not the window


def long_recording(folder: Path) -> Path:
    """Three words of 1.2 s with pauses that are no ends of segments, longer than a window."""
    voice, pause = signal_of(1.2).numpy(), np.zeros(int(0.25 * RATE), np.float32)
    soundfile.write(folder / "long.wav", np.concatenate([voice, pause, voice, pause, voice]), RATE)
    return folder / "long.wav"


def test_a_recording_that_is_longer_than_the_window_is_cut_into_segments_that_fit(tmp_path: Path) -> None:
    model, path = model_of(tmp_path), str(long_recording(tmp_path))
    (found,) = model.transcribe([path])
    assert len(found.segments) >= 3
    assert max(end - start for start, end in found.segments) <= WINDOW_SECONDS
    assert found.text
    stream = model.stream(RATE, by="segments", cutting=Cutting(max_segment=10.0), partial_seconds=None)
    events = [*stream.accept(soundfile.read(path, dtype="float32")[0]), *stream.finish()]
    assert any(event.text for event in events)


def test_a_long_recording_that_is_not_cut_is_one_line(tmp_path: Path) -> None:
    model, path = model_of(tmp_path), str(long_recording(tmp_path))
    told = r"long\.wav: it is longer than what the model hears at once: got 4\.1 s, wanted at most 2 s; let it be cut"
    with pytest.raises(DataError, match=told):
        model.transcribe([path], cutting=None)


def test_a_text_that_nobody_has_said_or_that_repeats_itself_is_marked(tmp_path: Path, caplog) -> None:
    model, silence = model_of(tmp_path), np.zeros(RATE, np.float32)
    heard, unsaid = model.transcribe([signal_of(SECONDS).numpy(), silence], RATE, cutting=None)
    assert not heard.doubtful
    assert unsaid.doubtful == ((unsaid.words[0].start, unsaid.words[-1].end),)
    assert json.loads(as_json(unsaid))["doubtful"] == [span._asdict() for span in unsaid.doubtful]
    assert "audio[1]: the text repeats itself, or nobody speaks, so it is doubtful: 0.0 to" in caplog.text
    (cut,) = model.transcribe([silence], RATE)
    assert (cut.text, cut.doubtful) == ("", ())
    again = loaded(write_folder(tmp_path / "again", "tuned", state=state_of(seed=2)), "tuned")
    labels = again.recipe.tokenizer
    assert labels is not None
    attention: Any = again.modules.others["attention"]
    (word,) = {i for i in range(PIECES) if labels[i] == "\u2581not"}
    attention._never.fill_(-torch.inf)[word] = 0.0
    (found,) = again.transcribe([signal_of(SECONDS).numpy()], RATE)
    assert found.text.startswith("not not not")
    assert len(found.doubtful) == 1


def run(folder: Path, *options: str, capsys: pytest.CaptureFixture[str]) -> str:
    soundfile.write(folder / "a.wav", signal_of(SECONDS).numpy(), RATE, subtype="FLOAT")
    transcribe([str(folder / "small"), str(folder / "a.wav"), "--segments", "off", *options])
    return capsys.readouterr().out.removesuffix("\n")


def test_the_command_sets_language_task_and_times(tmp_path: Path, capsys) -> None:
    write_folder(tmp_path / "small", state=state_of(seed=CASES["translating"][2]))
    text = run(tmp_path, "--language", "de", "--task", "translate", capsys=capsys)
    assert text == stored_cases()["translating"]["text"]
    generation = {"suppress_tokens": generation_of("with times")["suppress_tokens"]}
    write_folder(tmp_path / "small", state=state_of(seed=CASES["with times"][2]), generation=generation)
    assert run(tmp_path, "--timestamps", capsys=capsys) == stored_cases()["with times"]["text"]


def test_times_that_a_folder_suppresses_are_not_asked_for(tmp_path: Path) -> None:
    model = load_model(write_folder(tmp_path / "small"))  # it suppresses all tokens of times
    with pytest.raises(UsageError, match=r"WhisperDecoder: the model finds no times: got timestamps"):
        model.set_timestamps(True)
    with pytest.raises(ConfigError, match=r"timestamps=true: WhisperDecoder: the model finds no times: got timestamps"):
        load_model(tmp_path / "small", overrides=["WhisperDecoder.timestamps=true"])


def test_models_show_tells_languages_and_tasks(tmp_path: Path, capsys) -> None:
    models(["show", str(write_folder(tmp_path / "small"))])
    lines = capsys.readouterr().out.splitlines()
    assert "languages    auto, en, de, zh" in lines
    assert "tasks        translate, transcribe" in lines


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--language", "xx"], "does not know this language: got xx, wanted one of auto, en, de, zh"),
        (["--language", "de", "--nbest", "2", "--lm", "a.arpa"], "no such option: got lm, wanted one of beam_size"),
        (["--stream", "frames"], "does not stream by frames"),
    ],
)
def test_what_the_command_cannot_do_is_one_line(tmp_path: Path, options: list[str], problem: str, capsys) -> None:
    write_folder(tmp_path / "small")
    (tmp_path / "a.arpa").write_text("")
    soundfile.write(tmp_path / "a.wav", signal_of(SECONDS).numpy(), RATE)
    with pytest.raises(UsageError) as error:
        transcribe([str(tmp_path / "small"), str(tmp_path / "a.wav"), *options])
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda model: model.set_language("de"), "the model takes no language: got de; leave it out"),
        (lambda model: model.set_task("translate"), "no such task: got translate, wanted none: it has no tasks"),
    ],
)
def test_an_english_model_has_no_languages_and_no_tasks(tmp_path: Path, call, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        call(model_of(tmp_path, "English"))


@pytest.mark.slow
def test_a_folder_is_tuned_from_its_weights_with_texts_as_they_are_written(tmp_path: Path, capsys) -> None:
    write_folder(tmp_path / "small", state=state_of(seed=4))
    text, lines = "The cat's мир!", []
    for number in range(4):
        path = tmp_path / f"{number}.wav"
        soundfile.write(path, signal_of(0.6 + 0.3 * (number % 2)).numpy(), RATE)
        lines.append(json.dumps({"audio_filepath": str(path), "duration": 0.6 + 0.3 * (number % 2), "text": text}))
    (tmp_path / "dev.json").write_text("\n".join(lines))
    soundfile.write(tmp_path / "long.wav", signal_of(WINDOW_SECONDS + 0.1).numpy(), RATE)
    too_long = {"audio_filepath": "long.wav", "duration": WINDOW_SECONDS + 0.1, "text": text}
    beyond = {**json.loads(lines[0]), "text": "cat " * 40}
    (tmp_path / "train.json").write_text("\n".join([*lines, json.dumps(too_long), json.dumps(beyond)]))
    told = ["--init_from", tmp_path / "small", "--train_dataset", tmp_path / "train.json", "--work_dir", tmp_path]
    told += ["--eval_datasets", tmp_path / "dev.json", "--num_epochs", 40, "--batch_size", 4, "--lr", 0.03]
    train([*map(str, told), "--optimizer", "adam_w", "--exp_name", "run", "--set", f"{DECODER}.prompt_language=de"])
    log = "".join(capsys.readouterr())
    assert "longer than max_duration 2 s" in log
    assert "train.json:6: the text has " in log
    assert " labels, the decoder has positions for 36" in log
    tuned = load_model(tmp_path / "run")
    heard = [signal_of(0.6).numpy(), signal_of(0.9).numpy()]
    found = [each.text for each in tuned.transcribe(heard, RATE, cutting=None)]
    assert found == [text, text]
    attention: Any = tuned.modules.others["attention"]
    assert attention.start[1] == LANGUAGES["de"]


def test_a_text_that_is_longer_than_the_positions_is_left_out_of_training_and_refused_in_evaluation(
    tmp_path: Path, capsys
) -> None:
    model, manifest = model_of(tmp_path), tmp_path / "train.json"
    soundfile.write(tmp_path / "a.wav", signal_of(0.6).numpy(), RATE)
    line = {"audio_filepath": "a.wav", "duration": 0.6}
    texts = ["cat", "'" * 34 + "cat", "'" * 35 + "cat"]  # 40 positions, 4 of the prompt; "cat" is two labels
    manifest.write_text("\n".join(json.dumps({**line, "text": text}) for text in texts))
    data_layer, parts = model.recipe.data_layer(str(manifest), training=True, batch_size=1), model.recipe.model()
    assert leave_out_long(data_layer, parts) == 1
    assert [data_layer.utterance_of(row).text for row in range(len(data_layer))] == texts[:2]
    told = f"{manifest}:3: the text has 37 labels, the decoder has positions for 36"
    log = "".join(capsys.readouterr())
    assert told in log
    assert f"{manifest}: 1 of 3 texts are longer than the decoder's positions: they are left out of training" in log
    with pytest.raises(DataError, match=f"^{re.escape(told)}; cut the utterance, or leave it out$"):
        refuse_long(model.recipe.data_layer(str(manifest), training=False, batch_size=1), parts)


def test_an_improbable_text_is_drawn_anew_until_one_will_do_and_the_same_in_each_run_and_batch(
    tmp_path: Path, monkeypatch
) -> None:
    model = model_of(tmp_path)
    model.set_language("de")
    heard = [signal_of(0.6).numpy(), signal_of(0.9).numpy()]

    def texts(*heard: Any, temperatures: Any = TEMPERATURES) -> list[str]:
        found = model.transcribe([*heard], RATE, cutting=None, temperatures=temperatures)
        return [each.text for each in found]

    found, first, greedy = texts(*heard), texts(*heard, temperatures=[0.2]), texts(*heard, temperatures=[])
    assert not {*found} & {*greedy}
    assert not {*found} & {*first}
    assert found == [*texts(heard[0]), *texts(heard[1])]
    monkeypatch.setattr(driver, "is_to_be_drawn_anew", lambda words, text: text == greedy[1])
    assert texts(*heard) == [greedy[0], first[1]]


def test_of_a_model_without_an_attention_decoder_no_text_is_drawn_anew(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", signal_of(0.6).numpy(), RATE)
    folder = hugging_face.write_folder(tmp_path / "small")
    with pytest.raises(UsageError, match=r"small: only texts of an attention decoder are drawn anew: got --temperatur"):
        transcribe([str(folder), str(tmp_path / "a.wav"), "--temperature_fallback"])


def test_data_check_lists_the_texts_that_are_longer_than_the_positions_of_a_trained_model(
    tmp_path: Path, capsys
) -> None:
    folder, manifest = write_folder(tmp_path / "small"), tmp_path / "dev.json"
    for name, seconds in (("a.wav", 0.6), ("b.wav", 0.8)):
        soundfile.write(tmp_path / name, signal_of(seconds).numpy(), RATE)
    lines = [("a.wav", 0.6, "cat"), ("b.wav", 0.8, "'" * 35 + "cat")]
    keys = "audio_filepath", "duration", "text"
    manifest.write_text("\n".join(json.dumps(dict(zip(keys, line, strict=True))) for line in lines))
    for sets in ([str(manifest)], ["--eval", str(manifest)]):
        assert data(["check", *sets, "--model_config", str(folder)]) == 1
        log = capsys.readouterr().out
        assert f"{manifest}: 1 of 2 utterances whose text is longer than the decoder's positions" in log
        assert f"{manifest}:2: the text has 37 labels, the decoder has positions for 36" in log


def test_loss_and_gradients_are_those_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    theirs, state = transformers_model(), state_of(seed=3)
    theirs.load_state_dict(state, strict=False)
    modules: Any = load_model(write_folder(tmp_path / "small", "tuned", state=state)).modules
    attention, encoder = modules.others["attention"], modules.encoder
    for module in (attention, encoder):
        module.unfreeze()
    features, texts, lengths = torch.randn(2, 80, 200), torch.randint(0, PIECES, (2, 7)), torch.tensor([7, 4])
    encoded, frames = encoder(features, torch.tensor([200, 200]), force_pt=True)
    log_probs = attention(encoded, texts, frames, lengths, force_pt=True)
    found = modules.loss._loss_function(texts, log_probs, lengths)
    prompts = torch.tensor([attention.start, attention.start])
    inputs = torch.cat([prompts, texts], 1)
    targets = torch.full((2, inputs.shape[1]), -100)
    for row, length in enumerate(lengths.tolist()):
        targets[row, prompts.shape[1] - 1 :][: length + 1] = torch.tensor([*texts[row, :length].tolist(), PIECES])
    wanted = theirs(input_features=features, decoder_input_ids=inputs, labels=targets).loss
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    found.backward()
    wanted.backward()
    ours = {
        f"{part}.{name}": each.grad
        for part, module in (("encoder", encoder), ("decoder", attention))
        for name, each in module.named_parameters()
    }
    compared = 0
    for name, each in theirs.named_parameters():
        part, _, inner = name.removeprefix("model.").partition(".")
        if each.grad is not None and part in ("encoder", "decoder"):
            own = ours[f"{part}.{renamed(inner, NAMES[part])}"]
            assert own is not None
            assert (own - each.grad).abs().max() <= 1e-4 * each.grad.abs().max() + 1e-7, name
            compared += 1
    assert compared == len(ours)


def test_a_beam_finds_a_text_that_is_at_least_as_probable(tmp_path: Path) -> None:
    model = model_of(tmp_path, "tuned")
    search: Any = model.modules.search
    states = states_of(model)
    ((greedy,),) = search.found([states])
    (several,) = search.with_options(SearchOptions(beam_size=4)).found([states], 4)
    assert len({tuple(one.labels.ids) for one in several}) == 4
    assert several[0].score > greedy.score


def states_of(model: TrainedModel) -> dict[str, Any]:
    """What the search gets of a recording: the whole window, and how much of it is the recording."""
    modules: Any = model.modules
    signal = signal_of(SECONDS)[None]
    features, length = modules.preprocessor(signal, torch.tensor([signal.shape[1]]), force_pt=True)
    with torch.no_grad():
        encoded, frames = modules.encoder(features, length, force_pt=True)
    return {"encoded": encoded[0].T.numpy(), "num_frames": frames.numpy()}


def test_an_imported_model_gives_the_same_text(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "small", "tuned", state=state_of(seed=CASES["tuned"][2]))
    import_model(folder, tmp_path / "model", licence="apache-2.0")
    model = load_model(tmp_path / "model")
    assert texts_of(model, SECONDS) == [stored_cases()["tuned"]["text"]]
    assert model.card.licence == "apache-2.0"
    assert {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors"} <= {*model.card.sources}


def test_a_tokenizer_in_older_files_gives_the_same_labels(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "small")
    wanted = read_hugging_face(folder).tokenizer
    (folder / "tokenizer.json").unlink()
    pieces, merges = pieces_and_merges()
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, merges), ""]), encoding="utf-8")
    (folder / "added_tokens.json").write_text(json.dumps(SPECIAL))
    found = read_hugging_face(folder).tokenizer
    assert wanted is not None
    assert found is not None
    assert [*found] == [*wanted]
    assert found.ids_of("the cat, 你好") == wanted.ids_of("the cat, 你好")
    assert text_of(found.ids_of(" the cat")[0], found) == "the cat"


OF_TOKENS = {"lang_to_id": None, "task_to_id": None}
TRANSCRIBE, TRANSLATE = TASKS["transcribe"], TASKS["translate"]


@pytest.mark.parametrize(
    ("generation", "language", "prompt"),
    [
        ({}, "auto", [TRANSCRIBE, NO_TIMES]),
        ({"forced_decoder_ids": None}, "auto", [NO_TIMES]),
        ({"forced_decoder_ids": None, "task": "translate"}, "auto", [TRANSLATE, NO_TIMES]),
        ({"language": "<|de|>"}, "de", [TRANSCRIBE, NO_TIMES]),
        ({"language": "Chinese", "task": "translate"}, "zh", [TRANSLATE, NO_TIMES]),
        # Older folders do not say their languages; the tokenizer does.
        (OF_TOKENS, "auto", [TRANSCRIBE, NO_TIMES]),
        ({**OF_TOKENS, "forced_decoder_ids": [[1, LANGUAGES["en"]], [2, TRANSLATE]]}, "en", [TRANSLATE, NO_TIMES]),
        ({**OF_TOKENS, "forced_decoder_ids": [[1, NO_TIMES]], "is_multilingual": None}, None, [NO_TIMES]),
    ],
)
def test_the_folder_says_what_prompts_are(tmp_path: Path, generation, language: str | None, prompt: list[int]) -> None:
    folder = write_folder(tmp_path / "small", generation=generation)
    attention: Any = load_model(folder).modules.others["attention"]
    assert read_hugging_face(folder).config[DECODER].get("prompt_language") == language
    of_language = [] if language is None else [LANGUAGES.get(language, START)]
    assert [*attention.start] == [START, *of_language, *prompt]


def without_decoder(folder: Path) -> None:
    save_file({key: value for key, value in state_of().items() if "encoder." in key}, folder / "model.safetensors")


def with_a_classifier(folder: Path) -> None:
    save_file({**state_of(), "classifier.weight": torch.zeros(2, 16)}, folder / "model.safetensors")


def with_other_outputs(folder: Path) -> None:
    save_file({**state_of(), "proj_out.weight": torch.zeros(TOKENS, 16)}, folder / "model.safetensors")


def with_fewer_positions(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    name = "model.decoder.embed_positions.weight"
    save_file({**state, name: state[name][:30].clone()}, folder / "model.safetensors")


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def changed(name: str, **changes: Any) -> Any:
    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, **changes}))

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            without_tokenizer,
            "the folder has no tokenizer: got no tokenizer.json, wanted tokenizer.json, or vocab.json",
        ),
        (pickled, "its weights are pickled, and pickles are not read here"),
        (
            without_decoder,
            "the model has no decoder, so it writes no texts: got WhisperForConditionalGeneration without ",
        ),
        (with_a_classifier, "its weights are of another kind of model: got classifier.weight"),
        (with_other_outputs, "its outputs are not tied to the vectors of its tokens"),
        (with_fewer_positions, "layers.embed.position_embedding.weight"),
        (changed("config.json", max_target_positions=48), "layers.embed.position_embedding.weight"),
        (changed("config.json", d_model=24), "conv1"),
        (changed("config.json", d_model="wide"), "config.json.d_model"),
        (changed("config.json", scale_embedding=True), "config.json.scale_embedding"),
        (changed("preprocessor_config.json", feature_size=128), "got 128 bands, wanted 80"),
        (changed("preprocessor_config.json", chunk_length=30), "got 3000 frames in a window, wanted 200"),
        (changed("preprocessor_config.json", dither=0.1), "dither"),
        (
            changed("generation_config.json", language="klingon"),
            "this language: got klingon, wanted one of en",
        ),
        (changed("generation_config.json", lang_to_id={"en": "x"}), "lang_to_id"),
        (changed("generation_config.json", forced_decoder_ids=[3]), "forced_decoder_ids"),
        (changed("generation_config.json", decoder_start_token_id=TOKENS), f"got {TOKENS}, wanted 0 to {TOKENS - 1}"),
        (changed("generation_config.json", eos_token_id=PIECES + 200), "the tokenizer lacks a piece"),
        (changed("tokenizer.json", model={"type": "Unigram", "vocab": []}), "the tokenizer is of another kind"),
        (changed("tokenizer.json", model={"vocab": {"a": 0}, "merges": ["a b c"]}), "tokenizer.json"),
    ],
)
def test_what_is_not_read_is_refused_in_one_line(tmp_path: Path, change, problem: str) -> None:
    folder = write_folder(tmp_path / "small")
    change(folder)
    with pytest.raises(NemoLiteError) as error:
        load_model(folder)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, CheckpointError) or problem.startswith("got")


def test_texts_of_transformers_come_from_other_weights_too(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = transformers_model()
    for seed in (1, 8, 11):
        state = state_of(shapes_of(model), seed)
        model.load_state_dict(state, strict=False)
        wanted = found_by_transformers(model, "with times", signal_of(1.0))["text"]
        own = loaded(write_folder(tmp_path / str(seed), "with times", state=state), "with times")
        assert texts_of(own, 1.0) == [wanted]
    assert config_of()["vocab_size"] == generation_of("with times")["no_timestamps_token_id"] + 102
