"""Texts of other languages than English, from a manifest to transcripts: spoken sentences that a tiny model learns."""

import json
import re
from typing import NamedTuple

import numpy as np
import pytest
import soundfile
import soxr
from toys.tone_corpus import HEAD, run_script, write_manifest

from nemo_asr.corpora.espeak import Synthesizer, Voice

pytest.importorskip("espeakng_loader", reason="the speech synthesiser is not installed")
pytestmark = pytest.mark.slow

MANDARIN = """今天天气很好。 我想喝水！ 你叫什么名字？ 她在学校学习 我们去北京 请打开窗户 明天会下雨 这本书很有意思
他喜欢吃苹果 火车已经开了 晚上一起看电影 妈妈在做饭 桌子上有一只猫 现在几点了 他们住在上海 我的朋友来了
太阳从东边升起 请说慢一点 孩子们在唱歌 谢谢你的帮助"""
GERMAN = """Schöne Grüße aus Köln! Wie spät ist es? Das Mädchen hört Musik. Der Zug fährt ab. Ich möchte Käse.
Bitte schließ die Tür. Morgen regnet es. Er läuft über die Straße. Wir gehen heim. Die Äpfel sind süß. Guten Abend.
Das Buch ist gut. Öffne das Fenster. Sie wohnt in Bonn. Heute ist Montag. Der Hund schläft. Ich weiß es nicht.
Viel Glück! Zwölf Bücher. Das Wetter ist schön."""
RUSSIAN = """Добрый день! Как тебя зовут? Сегодня хорошая погода. Я хочу пить. Мы едем в Москву. Открой окно.
Завтра будет дождь. Ёлка стоит в лесу. Он любит яблоки. Поезд уже ушёл. Дети поют песню. Спасибо за помощь.
Кошка спит. Она читает книгу. Мой друг приехал. Который час? Говори медленно. Солнце светит. Мама варит суп.
До свидания."""


def sentences(text):
    return re.sub(r"([.!?])\s", r"\1\n", text).splitlines()


class Language(NamedTuple):
    texts: list[str]
    labels: str
    epochs: int
    metric: str  # the error rate that comes first


# Mandarin has more labels than utterances for each.
LANGUAGES = {
    "cmn": Language(MANDARIN.split(), "".join(sorted(set(MANDARIN) - set(" \n。！？"))), 110, "CER"),
    "de": Language(sentences(GERMAN), " abcdefghijklmnopqrstuvwxyzäöüß", 50, "WER"),
    "ru": Language(sentences(RUSSIAN), " абвгдеёжзийклмнопрстуфхцчшщъыьэюя", 50, "WER"),
}
CONFIG = (
    HEAD
    + """
    - {filters: 96, repeat: 1, kernel: [11], stride: [2], dilation: [1], dropout: 0.0, residual: false, separable: true}
    - {filters: 96, repeat: 1, kernel: [13], stride: [1], dilation: [1], dropout: 0.0, residual: false, separable: true}
    - {filters: 96, repeat: 1, kernel: [13], stride: [1], dilation: [1], dropout: 0.0, residual: false, separable: true}
    - {filters: 128, repeat: 1, kernel: [1], stride: [1], dilation: [1], dropout: 0.0, residual: false}
labels: LABELS
"""
)


def speak_corpus(language, texts, folder):
    """``train.json``: one utterance a text."""
    lines = []
    with Synthesizer(languages=[language]) as synthesizer:
        for number, text in enumerate(texts):
            spoken = soxr.resample(synthesizer.speak(text, Voice(language)) / 32768, synthesizer.sample_rate, 16000)
            soundfile.write(folder / f"{number}.wav", np.trim_zeros(spoken), 16000)
            seconds = soundfile.info(folder / f"{number}.wav").duration
            lines.append({"audio_filepath": f"{number}.wav", "duration": seconds, "text": text})
    write_manifest(folder / "train.json", lines)


# Chinese has the most labels, and no spaces.
@pytest.mark.long
@pytest.mark.parametrize("language", ["cmn", "de", "ru"])
def test_a_tiny_model_learns_twenty_utterances_to_the_last_character(language, tmp_path):
    texts, labels, epochs, metric = LANGUAGES[language]
    assert len(texts) == 20
    speak_corpus(language, texts, tmp_path)
    (tmp_path / "tiny.yaml").write_text(CONFIG.replace("LABELS", json.dumps(list(labels), ensure_ascii=False)))
    trained = run_script(
        *("jasper.py", "--model_config", "tiny.yaml", "--train_dataset", "train.json", "--num_epochs", epochs),
        *("--batch_size", 4, "--optimizer", "adam_w", "--lr", 0.02, "--weight_decay", 0, "--warmup_steps", 10),
        *("--work_dir", "runs", "--log_freq", 1000),
    )
    assert trained.code == 0, trained.err
    assert "outside the vocabulary: " not in trained.err  # full stops are spaces
    evaluated = run_script("jasper_eval.py", "--load_dir", "runs/Jasper", "--eval_datasets", "train.json", "--out", ".")
    assert evaluated.code == 0, evaluated.err
    assert f"train: {metric} 0.00% (0 insertions, 0 deletions, 0 substitutions in " in evaluated.out
    rows = [json.loads(line) for line in (tmp_path / "train.transcripts.jsonl").read_text().splitlines()]
    written = {text.lower().rstrip(".!?。！？") for text in texts}
    assert {row["hypothesis"] for row in rows} == {row["reference"] for row in rows} == written
