"""How many recordings a model of digits marks as unknown: of sets that it knows, of music, other words and languages.

    python benchmarks/domain.py runs/Digits --known dev.json test.json [--head ctc]

A domain is fitted on up to 200 utterances of the first set, evenly spread, as at the end of a training. The other
sounds are made: eSpeak NG speaks (pip install espeakng-loader), and music is chords and a melody of plucked tones, half
of it with a drum. They get the bandwidth and the level of the first set, so that these tell nothing; "narrow" ones get
half of the bandwidth. Of a model that streams by frames, a second line counts those of whose stream a final text
is marked.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import soxr

import nemo_asr
from nemo_asr.corpora.espeak import Synthesizer, Voice
from nemo_asr.run.audio.segments import Samples
from nemo_asr.run.transcribe.domain import sound_of
from nemo_asr.run.transcribe.inputs import Recording, recordings_of
from nemo_asr.run.transcribe.stream import FrameStream
from nemo_asr.run.transcribe.transcript import Transcript
from nemo_asr.trained.calibrating import hear_set
from nemo_asr.trained.model import TrainedModel
from nemo_asr.trained.texts import text_layer
from nemo_lite import NeuralModuleFactory

SECONDS = 4.0  # of a piece of music
# ruff: noqa: RUF001
TEXTS = {
    "digits": """zero seven three one|nine two two eight six|four one five|three eight zero nine seven|six six one
        two four zero five eight|seven one nine|five three zero two eight|eight nine six four
        two seven five zero one""",
    "other words": """the weather was cold and grey|please close the kitchen door|my brother plays the guitar
        we bought apples and bread|the train leaves in the morning|she called a doctor yesterday
        black coffee without sugar|open the window and let in some air|a large dog sleeps under the table
        he paid by credit card|our garden is full of roses|the meeting has been cancelled""",
    "German": """das wetter war kalt und grau|bitte mach die tür zu|mein bruder spielt gitarre
        wir haben äpfel und brot gekauft|der zug fährt morgen früh ab|sie hat gestern einen arzt gerufen
        schwarzer kaffee ohne zucker|öffne das fenster und lass luft herein|ein großer hund schläft unter dem tisch
        er hat mit der karte bezahlt|unser garten ist voller rosen|die sitzung wurde abgesagt""",
    "Russian": """погода была холодной и серой|закройте пожалуйста дверь|мой брат играет на гитаре
        мы купили яблоки и хлеб|поезд уходит утром|она вчера вызвала врача|чёрный кофе без сахара
        открой окно и впусти воздух|большая собака спит под столом|он заплатил картой|наш сад полон роз
        собрание отменили""",
    "Spanish": """hacía frío y estaba nublado|cierra la puerta por favor|mi hermano toca la guitarra
        compramos manzanas y pan|el tren sale por la mañana|ayer llamó a un médico|café negro sin azúcar
        abre la ventana y deja entrar el aire|un perro grande duerme bajo la mesa|pagó con tarjeta
        nuestro jardín está lleno de rosas|la reunión fue cancelada""",
}
VOICES = {"German": "de", "Russian": "ru", "Spanish": "es"}
VARIANTS = ("", "+f2", "+m3", "+f4", "+m7")


def spoken() -> Iterator[tuple[str, Samples, int]]:
    """What eSpeak NG says: of what kind it is, samples (T,) and how many a second."""
    with Synthesizer(["en", *VOICES.values()]) as synthesizer:
        for kind, texts in TEXTS.items():
            lines = [text.strip() for line in texts.splitlines() for text in line.split("|")]
            for number, text in enumerate(lines):
                voice = VOICES.get(kind, "en-us") + VARIANTS[number % len(VARIANTS)]
                samples = synthesizer.speak(text, Voice(voice, rate=140 + 10 * (number % 4)))
                yield kind, (samples / 32768).astype(np.float32), synthesizer.sample_rate


def music(seed: int, rate: int) -> Samples:
    """Chords and a melody over them, of plucked tones with overtones; every second piece has a drum."""
    rng, size = np.random.default_rng(seed), round(SECONDS * rate)
    piece, beat = np.zeros(size), round(rng.uniform(0.25, 0.6) * rate)
    key, fade = rng.uniform(110, 220), rng.uniform(1.0, 6.0)
    for number, first in enumerate(range(0, size, beat)):
        times = np.arange(min(size - first, rate)) / rate
        chord = (0, 4, 7) if number % 4 == 0 else ()
        for step in (*chord, rng.choice((0, 2, 4, 5, 7, 9, 11)) + 12):
            pitch = key * 2 ** (step / 12)
            for overtone in range(1, 7):
                piece[first : first + rate] += (
                    np.sin(2 * np.pi * overtone * pitch * times) * np.exp(-fade * times) / overtone
                )
        if seed % 2:
            piece[first : first + rate] += rng.normal(size=len(times)) * np.exp(-25 * times)
    return piece.astype(np.float32)


def as_known(samples: Samples, rate: int, domain_rate: int, bandwidth: float, level: float) -> Samples:
    """Samples at the rate of the model, with a bandwidth and a level."""
    narrow = soxr.resample(soxr.resample(samples, rate, 2 * bandwidth), 2 * bandwidth, domain_rate)
    sound = sound_of(narrow, domain_rate)
    gain = 0.0 if sound is None else level - sound.level
    scaled: Samples = np.clip(narrow * 10 ** (gain / 20), -1, 1).astype(np.float32)
    return scaled


def others(rate: int, like: Sequence[Transcript]) -> dict[str, list[Recording]]:
    """Recordings of what a model of digits does not know, by kind, with the sound of some transcripts."""
    sounds = [transcript.sound for transcript in like if transcript.sound is not None]
    bandwidth, level = (float(np.median([getattr(each, name) for each in sounds])) for name in ("bandwidth", "level"))
    made = [("music", music(seed, rate), rate) for seed in range(60)]
    found: dict[str, list[Recording]] = {}
    for kind, samples, own_rate in (*made, *spoken()):
        as_wide = min(bandwidth, rate / 2)
        bands = {kind: as_wide, **({"digits, narrow": as_wide / 2} if kind == "digits" else {})}
        for name, band in bands.items():
            of_kind = found.setdefault(name, [])
            of_kind.append(Recording(f"{name} {len(of_kind)}", as_known(samples, own_rate, rate, band, level), rate))
    return found


def of_streams(model: TrainedModel, recordings: Sequence[Recording]) -> list[tuple[str, ...]]:
    """The reasons of the final texts of each recording as a stream by frames."""
    streamed, domain, found = model.streamed(), model.card.domain, list[tuple[str, ...]]()
    for recording in recordings:
        stream = FrameStream(streamed, streamed.sample_rate, domain=domain)
        events = [*stream.accept(recording.read(streamed.sample_rate).samples), *stream.finish()]
        found.append(tuple(reason for event in events for reason in event.unfamiliar))
    return found


def row(kind: str, reasons: Sequence[tuple[str, ...]]) -> str:
    """How many are marked, and by which measures."""
    words = [
        word  # once of a stream with several final texts
        for each in reasons
        for word in {re.sub(r" *-?[\d.]+ *", " ", reason.partition(", on ")[0]).strip() for reason in each}
    ]
    told = ", ".join(f"{name} {count}" for name, count in Counter(words).most_common())
    return f"{kind:16}{sum(map(bool, reasons)):5} of {len(reasons):<5}{told}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", help="a model folder")
    parser.add_argument("--known", nargs="+", required=True, metavar="MANIFEST", help="sets that it should know")
    parser.add_argument("--head", help="which head of a model with several")
    options = parser.parse_args(arguments)
    model = nemo_asr.load_model(options.model)
    model = model.with_head(options.head) if options.head else model
    _, domain = hear_set(model, "the set", text_layer(model.recipe, options.known[0]), NeuralModuleFactory())
    if domain is None:
        parser.error("the model hears words in fewer than 20 recordings of the first set")
    knowing = TrainedModel(model.place, model.recipe, model.modules, msgspec.structs.replace(model.card, domain=domain))

    def heard(recordings: Sequence[Recording]) -> list[Transcript]:
        return knowing.transcribed(recordings, calibration=None, count_gaps=True).or_error()

    known = {name: heard(recordings_of([name])) for name in options.known}
    made = others(model.card.sample_rate, known[options.known[0]])
    can_stream = not knowing.stream_problem()
    for kind, recordings in {**{name: recordings_of([name]) for name in known}, **made}.items():
        transcripts = known[kind] if kind in known else heard(recordings)
        print(row(Path(kind).stem, [transcript.unfamiliar for transcript in transcripts]), flush=True)
        if can_stream:
            print(row("  as streams", of_streams(knowing, recordings)), flush=True)


if __name__ == "__main__":
    main()
