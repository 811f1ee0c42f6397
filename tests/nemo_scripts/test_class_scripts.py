"""Scripts of NeMo for commands, speakers and ContextNet run unchanged on its data."""

import numpy as np
import pytest
from toys.nemo_alias import run_script
from toys.tone_corpus import make_corpus, record, write_manifest

CONFIG = """
model: Commands
sample_rate: 16000
timesteps: 32
labels: [a, b, c]
AudioToSpeechLabelDataLayer:
  train: {shuffle: true}
  eval: {shuffle: false}
AudioToMFCCPreprocessor: {window_size: 0.025, window_stride: 0.01, window: hann, n_mels: 32, n_mfcc: 24, n_fft: 512}
JasperEncoder:
  activation: relu
  conv_mask: true
  jasper:
    - {filters: 16, repeat: 1, kernel: [11], stride: [1], dilation: [1], dropout: 0.0, residual: false, separable: true}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tones")
    for key, times in (("command", 8), ("label", 8)):
        for of_set, count in (("train", times), ("dev", 2)):
            lines = []
            for number, letter in enumerate("abc" * count):
                path = made / f"{of_set}{number}.wav"
                lines.append({"audio_filepath": str(path), "duration": record(path, letter * 2), key: letter})
            write_manifest(made / f"{of_set}_{key}.json", lines)
    (made / "commands.yaml").write_text(CONFIG)
    return made


def sets(folder, key):
    return ["--train_dataset", str(folder / f"train_{key}.json"), "--eval_datasets", str(folder / f"dev_{key}.json")]


@pytest.mark.slow
def test_a_script_for_speech_commands_trains_and_evaluates(folder, tmp_path, capsys):
    config = ["--model_config", str(folder / "commands.yaml"), "--work_dir", str(tmp_path)]
    names = run_script("speech_commands.py", [*config, *sets(folder, "command")])
    assert "names {'a': 0, 'b': 1, 'c': 2} accuracy 1.0" in capsys.readouterr().out
    assert set(names["accuracies"][-1]) == {
        "Evaluation_Loss dev_command",
        "Evaluation_Accuracy_Top@1 dev_command",
        "Evaluation_Accuracy_Top@2 dev_command",
    }


@pytest.mark.slow
def test_a_script_for_speakers_trains_and_writes_embeddings(folder, tmp_path, capsys):
    run_script("speakers.py", ["--work_dir", str(tmp_path), *sets(folder, "label")])
    assert "speakers 3" in capsys.readouterr().out
    embeddings = np.load(tmp_path / "dev_label.npy")
    names = np.load(tmp_path / "dev_label_labels.npy")
    assert embeddings.shape == (6, 16)
    assert names.tolist() == list("abcabc")
    directions = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    alike = directions @ directions.T
    same = names[:, None] == names[None]
    assert alike[same].min() > alike[~same].max()


@pytest.mark.long
@pytest.mark.slow
def test_a_script_for_contextnet_learns_a_small_language(tmp_path, capsys):
    corpus = make_corpus(tmp_path)
    data = ["--train_dataset", str(corpus / "train.json"), "--eval_datasets", str(corpus / "dev.json")]
    names = run_script("contextnet.py", data)
    assert "rates 1.0 " in capsys.readouterr().out
    assert names["rates"][-1]["Evaluation_WER_dev"] == 0.0
