"""From audio to a model that understands it, and what the other scripts do with that model."""

import json
import re
from pathlib import Path

import pytest
from toys.tone_corpus import TEXTS, read_manifest, record, run_script, write_manifest

pytestmark = pytest.mark.slow  # the model is trained in a fixture


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """The run of a model that learns the tones: its options, its folder and what it said."""
    folder = tmp_path_factory.mktemp("trained")
    finished = run_script(
        *("jasper.py", "--model_config", corpus / "tones.yaml", "--train_dataset", corpus / "train.json"),
        *(
            "--eval_datasets",
            corpus / "dev.json",
            corpus / "other.json",
            "--eval_freq",
            1000,
            "--num_epochs",
            40,
            "--batch_size",
            4,
        ),
        *("--optimizer", "adam_w", "--lr", 0.02, "--checkpoint_dir", folder, "--log_freq", 1),
    )
    assert finished.code == 0, finished.err
    return ["--model_config", corpus / "tones.yaml", "--load_dir", folder], finished


def test_the_loss_falls_and_the_transcripts_become_right(trained):
    _, finished = trained
    first, last = float(finished.losses[0]), max(map(float, finished.losses[-3:]))
    assert last < 0.01 * first
    predictions, references = (re.findall(rf"\] {what}: (.*)", finished.out) for what in ("Prediction", "Reference"))
    assert predictions[0] != references[0]
    assert predictions[-3:] == references[-3:]
    rates = {name: re.findall(rf"Evaluation WER {name}: +(\S+)%", finished.out) for name in ("dev", "other")}
    assert min(float(before) for before, _ in rates.values()) > 50
    assert {name: after for name, (_, after) in rates.items()} == {"dev": "0.00", "other": "0.00"}


def test_evaluation_prints_the_rates_and_writes_hypotheses_beside_references(trained, corpus, tmp_path):
    options, _ = trained
    lines = read_manifest(corpus / "dev.json")
    write_manifest(tmp_path / "dev.json", [{**line, "text": "cc", "speaker": n % 2} for n, line in enumerate(lines)])
    sets = (corpus / "dev.json", corpus / "other.json", "dev.json")
    finished = run_script(
        *("jasper_eval.py", *options, "--eval_datasets", *sets, "--out", "out/folder", "--batch_size", 3, "--details")
    )
    assert finished.code == 0, finished.err
    tag = f"{corpus.name}_dev"
    assert f"{tag}: WER 0.00% (0 insertions, 0 deletions, 0 substitutions in 4 words), CER 0.00%\n" in finished.out
    assert "other: WER 0.00%" in finished.out
    assert "\ndev: WER 100.00% (0 insertions, 0 deletions, 4 substitutions in 4 words), CER" in finished.out
    assert f"transcripts in out/folder/{tag}.transcripts.jsonl\n" in finished.out
    assert f"{tag}: 4 utterances, ids " in finished.out
    rows = [json.loads(line) for line in (tmp_path / f"out/folder/{tag}.transcripts.jsonl").read_text().splitlines()]
    assert rows == [
        {
            **{"place": f"{corpus / 'dev.json'}:{number}", "audio_filepath": str(corpus / f"dev{number - 1}.wav")},
            **{"offset": None, "duration": pytest.approx(0.17 * len(text)), "reference": text, "hypothesis": text},
        }
        for number, text in enumerate(TEXTS[:4], 1)
    ]
    wrong = [json.loads(line) for line in (tmp_path / "out/folder/dev.transcripts.jsonl").read_text().splitlines()]
    assert [(row["reference"], row["hypothesis"]) for row in wrong] == [("cc", text) for text in TEXTS[:4]]
    assert [row["speaker"] for row in wrong] == ["0", "1", "0", "1"]
    assert "dev: 95 % intervals: WER 100.00 to 100.00 %, CER " in finished.out
    assert ", by resampling 2 speakers; by speaker, length and word in out/folder/dev.scores.json\n" in finished.out
    assert re.search(r"\n  0 +2 +2 +2 +100\.00% +100\.00 to 100\.00 %\n  1 ", finished.out)
    assert f"confused (said > heard): cc > {min(TEXTS[:4])} 1, " in finished.out
    scores = json.loads((tmp_path / "out/folder/dev.scores.json").read_text())
    assert (scores["wer"]["rate"], [each["name"] for each in scores["by_speaker"]]) == (1.0, ["0", "1"])


def test_evaluation_scores_texts_as_a_normaliser_leaves_them(trained, corpus, tmp_path):
    options, _ = trained
    lines = read_manifest(corpus / "dev.json")
    lines = [{**line, "audio_filepath": str(corpus / str(line["audio_filepath"]))} for line in lines]
    write_manifest(tmp_path / "dev.json", [{**line, "text": f"{line['text']}!".upper()} for line in lines])
    command = ("jasper_eval.py", *options, "--eval_datasets", "dev.json", "--score_normalizer")
    finished = run_script(*command, "none", "--out", "none")
    assert finished.code == 0, finished.err
    assert "dev: WER 100.00%" in finished.out
    assert (
        "dev: WER without case 100.00%, without punctuation 100.00%, without case and punctuation 0.00%" in finished.out
    )
    assert "without case and punctuation 0.00%" in (tmp_path / "none/report.html").read_text(encoding="utf-8")
    finished = run_script(*command, "basic", "--out", "basic")
    assert "dev: WER 0.00%" in finished.out
    assert "without case" not in finished.out
    rows = [json.loads(line) for line in (tmp_path / "basic/dev.transcripts.jsonl").read_text().splitlines()]
    assert [(row["text"], row["reference"]) for row in rows] == [(f"{text.upper()}!", text) for text in TEXTS[:4]]
    folder = tmp_path / "basic/sclite"
    files = ["dev.hyp.ctm", "dev.hyp.trn", "dev.ref.stm", "dev.ref.trn"]
    assert sorted(path.name for path in folder.glob("dev.*")) == files
    assert (folder / "dev.ref.trn").read_text() == (folder / "dev.hyp.trn").read_text()
    words = [line.split() for line in (folder / "dev.hyp.ctm").read_text().splitlines()]
    assert [(file, word) for file, _, _, _, word in words] == [(f"dev{n}", text) for n, text in enumerate(TEXTS[:4])]
    ends = [float(start) + float(seconds) for _, _, start, seconds, _ in words]
    assert all(0 < end <= 0.17 * len(text) + 0.05 for end, text in zip(ends, TEXTS, strict=False))
    search = ("--decoder", "beam", "--out", "beam")
    assert run_script(*command, "basic", *search).code == 0
    assert len((tmp_path / "beam/sclite/dev.hyp.ctm").read_text().splitlines()) == 4


def test_evaluation_with_a_language_model_finds_its_weights_on_another_set(trained, corpus, tmp_path):
    options, _ = trained
    (tmp_path / "words.txt").write_text("\n".join(TEXTS))
    unigrams = "".join(f"-1.2\t{text}\n" for text in ("<s>", "</s>", "<unk>", *TEXTS))
    (tmp_path / "lm.arpa").write_text(f"\\data\\\nngram 1={len(TEXTS) + 3}\n\n\\1-grams:\n{unigrams}\n\\end\\\n")
    search = ("--lm", tmp_path / "lm.arpa", "--lexicon", tmp_path / "words.txt", "--no-report")
    sets = ("--eval_datasets", corpus / "dev.json")
    finished = run_script(
        *("jasper_eval.py", *options, *sets, *search, "--search_weights", corpus / "other.json", "--out", "found")
    )
    assert finished.code == 0, finished.err
    assert re.search(r"other\.json: alpha \S+ and beta \S+ make 0 errors, the fewest of 48 trials", finished.out)
    assert "dev: WER 0.00% (" in finished.out
    again = run_script("jasper_eval.py", *options, *sets, *search, "--weights", "found/weights.json", "--out", "again")
    assert again.code == 0, again.err
    files = [tmp_path / folder / "dev.transcripts.jsonl" for folder in ("found", "again")]
    assert files[0].read_bytes() == files[1].read_bytes()
    (tmp_path / "words.txt").write_text("xyz\n")
    refused = run_script("jasper_eval.py", *options, *sets, *search)
    assert refused.code == 2
    assert "words.txt: the model's labels cannot spell words of the list: got 'xyz'" in refused.err


def test_two_models_are_compared_on_the_same_utterances_each_with_its_report(trained, corpus, tmp_path):
    (_, config, _, folder), _ = trained
    untrained = run_script(
        *("jasper.py", "--model_config", config, "--train_dataset", corpus / "train.json", "--max_steps", 1),
        *("--eval_datasets", corpus / "dev.json", "--batch_size", 4, "--work_dir", "runs", "--exp_name", "Short"),
    )
    assert untrained.code == 0, untrained.err
    assert "Report: runs/Short/report.html" in untrained.out + untrained.err
    options = ("--eval_datasets", corpus / "dev.json", "--out", "out")
    finished = run_script("jasper_eval.py", "--load_dir", "runs/Short", "--compare", folder, *options)
    assert finished.code == 0, finished.err
    assert f"\nA: runs/Short\nB: {folder}\n" in finished.out
    assert re.findall(r"^(\w), dev: WER", finished.out, re.MULTILINE) == ["A", "B"]
    assert "dev: B is better on 4 and worse on 0 of 4 utterances; B has the lower WER" in finished.out
    for page, name in (("runs/Short", "curves"), ("out", "worst"), ("out/compared", "worst")):
        assert f'id="{name}"' in (tmp_path / page / "report.html").read_text()
    assert "data:audio/flac" in (tmp_path / "out/report.html").read_text()
    assert 'alt="DAG training"' in (tmp_path / "runs/Short/report.html").read_text()


@pytest.mark.parametrize("changed", [("--set", "sample_rate=16000"), ("--model_config", "tones.yaml")])
def test_models_that_are_compared_are_not_changed(changed, corpus):
    options = ("--load_dir", "a", "--compare", "b", "--eval_datasets", corpus / "dev.json")
    finished = run_script("jasper_eval.py", *options, *changed)
    assert (finished.code, "error: --compare takes models as they are; evaluate" in finished.err) == (2, True)


def test_no_report_is_written_where_none_is_wanted(trained, corpus, tmp_path):
    options, _ = trained
    finished = run_script("jasper_eval.py", *options, "--eval_datasets", corpus / "dev.json", "--no-report")
    assert finished.code == 0, finished.err
    written = tmp_path / "results" / options[-1].name
    assert [path.name for path in tmp_path.iterdir()] == ["results"], "a folder of its own"
    assert sorted(path.name for path in written.iterdir()) == [
        ".nemo_lite_outputs",
        "dev.scores.json",
        "dev.transcripts.jsonl",
        "sclite",
    ]


def test_an_evaluation_replaces_its_own_files_and_no_others(trained, corpus, tmp_path):
    options, _ = trained
    line = ("jasper_eval.py", *options, "--eval_datasets", corpus / "dev.json", "--out", "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/report.html").write_text("mine")
    refused = run_script(*line)
    told = "error: out/report.html: the file was not written by nemo-lite report; give another name, or --overwrite\n"
    assert (refused.code, told in refused.err) == (2, True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]
    assert (tmp_path / "out/report.html").read_text() == "mine"
    for more in (("--overwrite",), ()):
        done = run_script(*line, *more)
        assert done.code == 0, done.err
    with (tmp_path / "out/dev.transcripts.jsonl").open("a") as file:
        file.write("mine")
    refused = run_script(*line)
    assert "out/dev.transcripts.jsonl: the file was changed since nemo-lite eval wrote it; give another" in refused.err


def test_evaluation_leaves_out_damaged_files_where_the_configuration_allows_them(trained, corpus, tmp_path):
    (_, config, *others), _ = trained
    text = config.read_text()
    (tmp_path / "lenient.yaml").write_text(text.replace("eval: {", "eval: {max_corrupt: 1, "))
    (tmp_path / "corrupt.wav").write_bytes(b"corrupt" * 100)
    lines = read_manifest(corpus / "dev.json")
    write_manifest(tmp_path / "dev.json", [lines[0], {**lines[1], "audio_filepath": "corrupt.wav"}, *lines[2:]])
    finished = run_script(
        *("jasper_eval.py", "--model_config", "lenient.yaml", *others, "--eval_datasets", "dev.json"),
        *("--batch_size", 1),
    )
    assert finished.code == 0, finished.err
    assert "dev: WER 0.00% (0 insertions, 0 deletions, 0 substitutions in 3 words)" in finished.out
    assert re.search(r"dev\.json:2: \S*corrupt\.wav is not a WAV", finished.err)
    path = Path("results") / others[-1].name
    rows = [json.loads(line) for line in (tmp_path / path / "dev.transcripts.jsonl").read_text().splitlines()]
    assert [row["place"] for row in rows] == ["dev.json:1", "dev.json:3", "dev.json:4"]


def test_recordings_of_any_rate_and_number_of_channels_become_text(trained, tmp_path):
    options, _ = trained
    record(tmp_path / "one.wav", "cab")
    record(tmp_path / "fast.flac", "abba", rate=48000)
    record(tmp_path / "stereo.ogg", "bc", rate=44100, channels=2)
    finished = run_script("jasper_infer.py", *options, "one.wav", "fast.flac", "stereo.ogg")
    assert finished.code == 0, finished.err
    assert finished.out.endswith("one.wav: cab\nfast.flac: abba\nstereo.ogg: bc\n")


def test_a_transcript_does_not_change_with_its_neighbours_in_the_batch(trained, tmp_path):
    options, _ = trained
    record(tmp_path / "short.wav", "b")
    record(tmp_path / "long.wav", "caca" * 5)
    together = run_script("jasper_infer.py", *options, "short.wav", "long.wav")
    alone = run_script("jasper_infer.py", *options, "short.wav", "long.wav", "--batch_size", 1)
    assert together.out.splitlines()[-2:] == alone.out.splitlines()[-2:]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("none.wav",), "jasper_infer.py: error: none.wav: there is no such audio file; give WAV, FLAC, OGG"),
        (("one.wav", "corrupt.wav"), "error: corrupt.wav is not a WAV, FLAC, OGG, MP3"),
        (("one.wav", "--batch_sze", "3"), "error: unrecognized arguments: --batch_sze 3 (did you mean --batch_size?)"),
        (("--batch_size", "0", "one.wav"), "'0' is not a whole number from 1"),
        ((), "error: the following arguments are required: files"),
    ],
)
def test_inference_says_in_one_line_what_it_cannot_use(args, told, trained, tmp_path):
    options, _ = trained
    record(tmp_path / "one.wav", "cab")
    (tmp_path / "corrupt.wav").write_bytes(b"corrupt" * 100)
    finished = run_script("jasper_infer.py", *options, *args)
    assert finished.code == 2
    assert told in finished.err
    assert finished.err.count("\n") == 1


def test_evaluation_says_in_one_line_what_it_cannot_use(trained, corpus, tmp_path):
    options, _ = trained
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    other = tmp_path / "other.yaml"
    other.write_text(options[1].read_text().replace('"b", "c"', '"b", "c", "d"'))
    dev = corpus / "dev.json"
    for args, told in (
        ((*options, "--eval_datasets", "none.json"), "none.json: the manifest does not exist"),
        ((*options, "--eval_datasets", dev, "--out", "file/out"), "file: there is a file where a folder is wanted"),
        (
            (*options[:2], "--load_dir", "empty", "--eval_datasets", dev),
            "empty: there is no model in this folder: wanted",
        ),
        (
            ("--model_config", other, *options[2:], "--eval_datasets", dev),
            "the labels are not the model's: got 5",
        ),
        (options, "the following arguments are required: --eval_datasets"),
    ):
        finished = run_script("jasper_eval.py", *args)
        assert finished.code == 2
        assert told in finished.err
        assert finished.err.count("\n") == 1
    assert list(tmp_path.rglob("*.jsonl")) == []
