"""nemo-lite data: exit codes, JSON, roles, and what it refuses."""

import json
import re

import pytest
import torch
from toys.checked_sets import add, sound, write_set

from nemo_asr.audio import read_audio
from nemo_asr.commands.cli.data import CORPORA, main
from nemo_asr.run.search.ngram import load_language_model
from nemo_asr.run.text.subwords import load_subwords
from nemo_asr.tasks.recipe import load_recipe
from nemo_lite.base.errors import ConfigError, DataError, FileInTheWayError, UnknownNameError, UsageError

MEL = "AudioToMelSpectrogramPreprocessor"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [add(tmp_path, f"{number}.wav", sound(number), text=f"word {number}") for number in range(6)]
    for name, some in (("train.json", lines[:3]), ("dev.json", lines[3:5]), ("test.json", lines[5:])):
        write_set(tmp_path, name, *some)
    write_set(tmp_path, "leaky.json", lines[0], lines[4])
    return tmp_path


def test_clean_sets_give_0_and_a_leak_1(folder, capsys):
    assert main(["check", "train.json", "dev.json", "test.json"]) == 0
    assert capsys.readouterr().out.endswith("No problem found\n")
    assert main(["check", "train.json", "leaky.json"]) == 1
    told = capsys.readouterr().out
    assert "1 of 2 utterances of leaky.json are recordings of the training set train.json" in told
    assert "    leaky.json:1 = train.json:1 (0.wav)" in told


def test_roles_are_given_by_order_or_by_name(folder, capsys):
    assert main(["check", "--train", "train.json,dev.json", "--eval", "leaky.json", "test.json"]) == 1
    assert "2 of 2 utterances of leaky.json" in capsys.readouterr().out
    assert main(["check", "--eval", "leaky.json", "dev.json"]) == 0
    assert "1 utterances of dev.json are recordings of leaky.json as well" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"by their order and by --train or --eval: got test\.json"):
        main(["check", "test.json", "--train", "train.json"])
    with pytest.raises(UsageError, match="no manifest is given"):
        main(["check"])


def test_json_holds_figures_and_all_findings(folder, capsys):
    assert main(["check", "train.json", "leaky.json", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [each["utterances"] for each in found["sets"]] == [3, 2]
    (leak,) = [finding for finding in found["findings"] if finding["is_problem"]]
    assert (leak["kind"], leak["details"]) == ("leak", ["leaky.json:1 = train.json:1 (0.wav)"])


def test_strict_data_makes_a_difference_a_problem(folder, capsys):
    write_set(folder, "wrong.json", {"audio_filepath": "0.wav", "duration": 2.00275, "text": "a b"})
    assert main(["check", "wrong.json"]) == 0
    assert "wrong.json: 1 utterance of another duration than written" in capsys.readouterr().out
    assert main(["check", "wrong.json", "--strict_data"]) == 1
    assert "wrong.json:1: duration 2.00275 s disagrees with 0.wav" in capsys.readouterr().out


def test_texts_that_do_not_fit_a_models_frames_are_counted(folder, capsys):
    lines = [{"audio_filepath": "0.wav", "duration": 2.0, "text": text} for text in ("a b", "ab " * 50)]
    write_set(folder, "long.json", *lines)
    assert main(["check", "train.json", "long.json", "--model_config", "demo"]) == 1
    told = capsys.readouterr().out
    assert "long.json: 1 of 2 utterances whose text does not fit the model's frames" in told
    assert "long.json:2: " in told
    (folder / "demo").mkdir()  # data of this name do not hide the configuration
    assert main(["check", "train.json", "--model_config", "demo", "--json"]) == 0
    assert [finding["kind"] for finding in json.loads(capsys.readouterr().out)["findings"]] == ["little"]
    with pytest.raises(ConfigError, match="demi: is neither a file nor the name of a configuration"):
        main(["check", "train.json", "--model_config", "demi"])


def test_what_a_models_labels_cannot_write_is_counted_and_with_strict_data_a_problem(folder, capsys):
    lines = [{"audio_filepath": "0.wav", "duration": 2.0, "text": text} for text in ("a b 5", "да b", "a <unk> b", "a")]
    write_set(folder, "odd.json", *lines)
    assert main(["check", "odd.json", "--model_config", "demo"]) == 1  # one recording has four texts
    told = capsys.readouterr().out
    assert (
        "  odd.json: 2 of 4 utterances with what the labels cannot write; training leaves that out of the texts" in told
    )
    assert '    odd.json:2: "д" x1 "а" x1 of "да b"' in told
    assert '    odd.json:3: "<unk>" x1 of "a <unk> b"' in told
    assert main(["check", "odd.json", "--model_config", "demo", "--strict_data", "--json"]) == 1
    findings = {finding["kind"]: finding["is_problem"] for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["labels"] is True


def test_a_text_of_which_a_models_labels_can_write_nothing_is_counted_too(folder, capsys):
    lines = [{"audio_filepath": f"{i}.wav", "duration": 0.5, "text": text} for i, text in enumerate(("a b", "да нет"))]
    write_set(folder, "odd.json", *lines)
    assert main(["check", "odd.json", "--model_config", "demo", "--strict_data"]) == 1
    told = capsys.readouterr().out
    assert "  odd.json: 1 of 2 utterances with what the labels cannot write" in told
    assert '    odd.json:2: "д" x1 "а" x1 "н" x1 "е" x1 "т" x1 of "да нет"' in told


def test_stats_read_no_audio_and_a_picture_is_written(folder, capsys):
    write_set(folder, "text.json", {"audio_filepath": "none.wav", "duration": 2.0, "text": "a b"})
    assert main(["stats", "text.json", "train.json", "--picture", "sets.svg", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["utterances"] for each in found["sets"]] == [1, 3]
    assert "findings" not in found
    assert (folder / "sets.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("command", [["stats", "train.json", "--picture"], ["lm", "train.json", "--out"]])
def test_neither_an_input_nor_a_file_of_the_users_is_overwritten(command, folder):
    for name in ("train.json", "./train.json"):
        with pytest.raises(FileInTheWayError, match=r"train\.json: this is an input of the command"):
            main([*command, name, "--overwrite"])
    (folder / "mine").write_text("mine")
    with pytest.raises(FileInTheWayError, match=r"mine: the file was not written by nemo-lite data .* or --overwrite"):
        main([*command, "mine"])
    assert (folder / "mine").read_text() == "mine"
    assert main([*command, "mine", "--overwrite"]) == main([*command, "mine"]) == 0


def test_what_cannot_be_read_is_one_error(folder, capsys):
    with pytest.raises(DataError, match=r"^trian\.json: the manifest does not exist \(did you mean train\.json\?\)"):
        main(["check", "trian.json"])
    with pytest.raises(DataError, match=r"the manifest is a folder; .*, or make one: nemo-lite data make "):
        main(["stats", str(folder)])
    with pytest.raises(SystemExit) as stopped:
        main(["chek"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.endswith("(did you mean check?)\n")


def test_make_runs_the_maker_of_the_name(folder, capsys):
    for corpus in CORPORA:
        with pytest.raises(SystemExit) as stopped:
            main(["make", corpus, "--help"])
        assert stopped.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: nemo-lite data make {corpus} "), "as it was typed"
    told = r"^aishel: is neither a file or folder nor the name of a corpus; .*\(did you mean aishell\?\)$"
    with pytest.raises(UsageError, match=told):
        main(["make", "aishel"])


def test_a_language_model_is_trained_from_texts_without_audio(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = [{"audio_filepath": "none.wav", "duration": 1.0, "text": text} for text in ("one two", "two 3")]
    write_set(tmp_path, "train.json", *lines)
    assert (
        main(["lm", "train.json", "--order", "2", "--out", "a.arpa", "--model", "digits", "--dev", "train.json"]) == 0
    )
    told = capsys.readouterr().out
    assert "a.arpa: 2 texts, 4 words; read as English" in told
    assert "  2-grams: 6, Witten-Bell" in told
    assert "train.json: perplexity" in told
    assert "0 of 4 words unknown" in told
    assert list(load_language_model("a.arpa").words) == ["one", "two", "three"]
    with pytest.raises(UsageError, match="order of a language model is out of range: got 9, wanted 1 to 6"):
        main(["lm", "none.json", "--order", "9", "--out", "b.arpa"])
    with pytest.raises(DataError, match="the manifest does not exist"):
        main(["lm", "none.json", "--out", "b.arpa"])


def test_a_tokenizer_is_trained_on_texts_as_the_parser_rewrites_them(tmp_path, capsys):
    texts = ["Three FOUR 5", "one two nine zero", "The cat sat on the <noise> mat"] * 30
    lines = [{"audio_filepath": "none.wav", "duration": 1.0, "text": text} for text in texts]
    write_set(tmp_path, "train.json", *lines)
    out = tmp_path / "made" / "en.model"
    words = ["tokenizer", str(tmp_path / "train.json"), "--vocab_size", "24", "--out", str(out)]
    assert main([*words, "--symbols", "<noise>"]) == 0
    told = capsys.readouterr().out
    assert f"{out}: 24 pieces (unigram), SHA-256 " in told
    assert "90 texts (English: numbers, abbreviations and symbols as words, lower case), 420 words, " in told
    assert load_subwords(out).written[1:-1] == tuple("acefhimnorstuvwz")
    assert load_subwords(out).written[-1] == "<noise>"
    with pytest.raises(FileInTheWayError, match=r"en\.model: the file exists already"):
        main(words)
    assert main([*words[:-1], str(tmp_path / "asis.model"), "--parser", "none", "--algorithm", "bpe"]) == 0
    assert {"T", "5", "<"} <= {*load_subwords(tmp_path / "asis.model").written}
    with pytest.raises(UsageError, match="vocab_size: the texts cannot give a vocabulary of this size: got 900 pieces"):
        main(["tokenizer", words[1], "--vocab_size", "900", "--out", str(tmp_path / "no.model")])
    assert not (tmp_path / "no.model").exists()


def test_a_tokenizer_keeps_the_punctuation_of_its_texts_and_one_apostrophe(tmp_path):
    texts = ["L’été, peut-être à Nice.", "C'est l'ami d’Anne", "deux mots de plus"] * 30
    write_set(tmp_path, "train.json", *({"audio_filepath": "a.wav", "duration": 1.0, "text": text} for text in texts))
    out = str(tmp_path / "fr.model")
    assert main(["tokenizer", str(tmp_path / "train.json"), "--vocab_size", "28", "--out", out]) == 0
    assert {"'", ",", "-", ".", "ê"} <= {*load_subwords(out).written}
    assert "’" not in load_subwords(out).written


def test_a_tokenizer_reads_numbers_out_in_its_language(tmp_path, capsys):
    """Also where no text has a letter of the words, as here the \u00fc of f\u00fcnf."""
    texts = ["Es sind 25 Grad", "zehn Uhr dreißig", "ein kalter Morgen am Wasser"] * 30
    write_set(
        tmp_path, "train.json", *({"audio_filepath": "none.wav", "duration": 1.0, "text": text} for text in texts)
    )
    words = ["tokenizer", str(tmp_path / "train.json"), "--vocab_size", "28"]
    assert main([*words, "--out", str(tmp_path / "de.model"), "--language", "de-AT"]) == 0
    assert "90 texts (Unicode NFC, numbers in words (de), lower case)" in capsys.readouterr().out
    assert {"ü", "ß"} <= {*load_subwords(tmp_path / "de.model").written}
    assert "2" not in load_subwords(tmp_path / "de.model").written
    with pytest.raises(UsageError, match="parser base does not read texts of this language: got de"):
        main([*words, "--out", str(tmp_path / "b.model"), "--language", "de", "--parser", "base"])
    with pytest.raises(UnknownNameError, match='language "deutsch" is not known'):
        main([*words, "--out", str(tmp_path / "b.model"), "--language", "deutsch"])


def test_statistics_go_into_a_configuration_that_hears_features_of_mean_0_and_deviation_1(folder, capsys):
    assert main(["statistics", "train.json", "--model_config", "conformer_aishell", "--out", "new.yaml"]) == 0
    assert "new.yaml: AudioToKaldiFbankPreprocessor.normalize of " in capsys.readouterr().out
    assert (folder / "new.yaml").read_text().startswith("# conformer_aishell with the statistics of train.json.\n")
    recipe = load_recipe(folder / "new.yaml", ["labels=[a]"])
    signals = [read_audio(str(folder / f"{number}.wav"), sample_rate=16000).samples for number in range(3)]
    features = [
        recipe.preprocessor().eval()(input_signal=torch.from_numpy(samples)[None], length=torch.tensor([len(samples)]))[
            0
        ][0]
        for samples in signals
    ]
    joined = torch.cat(features, dim=1)
    torch.testing.assert_close(joined.mean(1), torch.zeros(80), rtol=0, atol=1e-4)
    torch.testing.assert_close(joined.std(1, correction=0), torch.ones(80), rtol=0, atol=1e-4)
    with pytest.raises(FileInTheWayError, match=r"new\.yaml: the file exists already"):
        main(["statistics", "train.json", "--model_config", "conformer_aishell", "--out", "new.yaml"])


def test_statistics_read_no_more_than_the_hours_asked_for(folder, capsys):
    both = ["train.json", "dev.json"]
    assert main(["statistics", *both, "--model_config", "quartznet5x5", "--out", "few.yaml", "--hours", "1e-5"]) == 0
    assert "AudioToMelSpectrogramPreprocessor.normalize of " in (told := capsys.readouterr().out)
    assert "frames, 1 recording\n" in told


def test_what_is_set_decides_the_features_that_are_measured_and_is_written(folder):
    command = ["statistics", "train.json", "--model_config", "quartznet5x5", "--out", "set.yaml"]
    main([*command, "--set", "labels=auto", "--set", "loss.skip_start=3", "--set", f"{MEL}.window_size=0.025"])
    assert "labels: auto" in (folder / "set.yaml").read_text()
    recipe = load_recipe(folder / "set.yaml", ["labels=[a]"])
    assert (recipe.preprocessor().win_length, recipe.loss().init_params["skip_start"]) == (400, 3)
    main([*command[:-1], "narrow.yaml"])
    narrow = load_recipe(folder / "narrow.yaml").preprocessor().fixed_mean
    assert not torch.allclose(recipe.preprocessor().fixed_mean, narrow)


def test_a_normalisation_that_the_statistics_replace_is_refused(folder):
    setting = f"{MEL}.normalize=per_feature"
    message = f"--set {setting}: the statistics take the place of this; leave it out"
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        main(["statistics", "train.json", "--model_config", "quartznet5x5", "--out", "new.yaml", "--set", setting])
    assert not (folder / "new.yaml").exists()


def test_the_deviation_of_a_band_without_signal_is_no_less_than_the_floor(folder):
    write_set(folder, "silent.json", add(folder, "silent.wav", 0 * sound(0), text="silence"))
    assert main(["statistics", "silent.json", "--model_config", "quartznet5x5", "--out", "floor.yaml"]) == 0
    measured = load_recipe(folder / "floor.yaml").preprocessor().fixed_std
    torch.testing.assert_close(measured.flatten(), torch.full((64,), 0.1))  # std_floor


@pytest.mark.parametrize("command", ["make synth", "check"])
def test_an_option_that_is_not_there_is_answered_with_the_help_of_the_subcommand(command, capsys):
    with pytest.raises(SystemExit):
        main([*command.split(), "a", "--unheard_of"])
    assert capsys.readouterr().err.endswith(f"; nemo-lite data {command} --help shows what there is\n")
