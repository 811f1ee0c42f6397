"""eSpeak NG through ctypes: a text and a voice in, samples out. The library comes from espeakng-loader."""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nemo_lite.base.errors import UsageError

_AUDIO_OUTPUT_SYNCHRONOUS = 2
_DONT_EXIT = 0x8000
_CHARACTERS, _UTF8, _SSML = 1, 1, 0x10
_RATE, _PITCH, _RANGE, _WORD_GAP = 1, 3, 4, 7

_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


@dataclass(frozen=True)
class Voice:
    """How to speak.

    Attributes:
        name: a voice of the library, perhaps with a variant: ``en-us+f3``.
        rate: words a minute.
        pitch: 0 to 99, 50 is the voice's own.
        pitch_range: 0 to 99, how lively the intonation is; 50 is the voice's own.
        word_gap: pause between words, in units of 10 ms at the default rate.
    """

    name: str
    rate: int = 160
    pitch: int = 50
    pitch_range: int = 50
    word_gap: int = 0


class Synthesizer:
    """The synthesiser, for the time of a ``with`` block.

    The same text and voice give the same samples, whatever was spoken before: the library keeps the phase of its pitch
    flutter and more in static variables that nothing resets, so it is loaded anew for each utterance. An exception are
    variants whose file has a line ``breath``: their noise comes out of memory that the library does not initialise.

    Args:
        languages: those of the voices that will be used, in the library's codes: ``en``, ``de``, ``ru``, ``cmn``
            (Mandarin). Each that is left out saves time.

    Raises:
        UsageError: the package is missing, or its library cannot be used on this machine.
    """

    sample_rate: int

    def __init__(self, languages: Sequence[str] = ("en",)) -> None:
        self._languages = tuple(languages)
        try:
            import espeakng_loader
        except ImportError:
            problem = "the speech synthesiser eSpeak NG is not installed"
            raise UsageError(problem, remedy="pip install espeakng-loader") from None
        self._library = str(espeakng_loader.get_library_path())
        self._data = Path(espeakng_loader.get_data_path())
        self._libc = ctypes.CDLL(None)
        self._libc.dlclose.argtypes = [ctypes.c_void_p]

    def __enter__(self) -> Synthesizer:
        self._temporary = tempfile.TemporaryDirectory(prefix="espeak-")
        self._home = Path(self._temporary.name) / self._data.name
        _link_voices(self._data, self._home, self._languages)
        with self._loaded() as library:
            library.espeak_Info.restype = ctypes.c_char_p
            self.version = library.espeak_Info(None).decode()
        return self

    def __exit__(self, *_error: object) -> None:
        self._temporary.cleanup()

    def speak(self, ssml: str, voice: Voice) -> npt.NDArray[np.int16]:
        """The samples of ``ssml`` (plain text, or with SSML elements), at ``sample_rate``.

        Raises:
            UsageError: the library has no such voice, or cannot speak the text.
        """
        pieces: list[bytes] = []

        def collect(samples: int | None, count: int, _events: int) -> int:
            if samples and count > 0:
                pieces.append(ctypes.string_at(samples, 2 * count))
            return 0

        callback = _Callback(collect)
        with self._loaded() as library:
            library.espeak_SetSynthCallback(callback)
            # The library itself passes over a variant that it does not know.
            has_variant = (self._home / "voices" / "!v" / voice.name.partition("+")[2]).exists()
            if library.espeak_SetVoiceByName(voice.name.encode()) != 0 or not has_variant:
                raise UsageError("eSpeak NG has no such voice", got=voice.name)
            settings = {_RATE: voice.rate, _PITCH: voice.pitch, _RANGE: voice.pitch_range, _WORD_GAP: voice.word_gap}
            for parameter, value in settings.items():
                library.espeak_SetParameter(parameter, value, 0)
            self._libc.srand(1)  # breath and frication noise are drawn with the C library's rand()
            text = ssml.encode() + b"\0"
            size = ctypes.c_size_t(len(text))
            if library.espeak_Synth(text, size, 0, _CHARACTERS, 0, _UTF8 | _SSML, None, None) != 0 or not pieces:
                raise UsageError("eSpeak NG cannot speak the text", got=ssml)
        return np.frombuffer(b"".join(pieces), dtype=np.int16)

    @contextmanager
    def _loaded(self) -> Iterator[ctypes.CDLL]:
        try:
            library = ctypes.CDLL(self._library)
        except OSError as error:
            raise UsageError("the library of eSpeak NG cannot be loaded", place=self._library, got=str(error)) from None
        try:
            path = os.fsencode(self._home)
            self.sample_rate = library.espeak_Initialize(_AUDIO_OUTPUT_SYNCHRONOUS, 0, path, _DONT_EXIT)
            if self.sample_rate <= 0:
                raise UsageError("eSpeak NG cannot read its data", place=str(self._data))
            yield library
            library.espeak_Terminate()
        finally:
            self._libc.dlclose(library._handle)


def _link_voices(data: Path, home: Path, languages: tuple[str, ...]) -> None:
    """Make ``home`` look like the library's data, with the voices of these languages alone and in one folder.

    The library cuts the path of its data off after 160 characters, which a deep folder of packages exceeds. And it
    opens the files of all languages before it finds a voice whose file is in a sub-folder or has a capital in its
    name: with these links it speaks in half the time. Dictionaries of other languages are left out: taking a hundred
    links away took longer than to speak a sentence.
    """
    (home / "lang").mkdir(parents=True)
    dictionaries = {"en", *(language.partition("-")[0] for language in languages)}  # English words stand in any text
    for entry in data.glob("lang/*/*"):
        if entry.name.lower().startswith(languages):
            (home / "lang" / entry.name.lower()).symlink_to(entry)
            dictionaries.update(re.findall(r"^dictionary\s+(\w+)", entry.read_text(encoding="utf-8"), re.MULTILINE))
    for entry in data.iterdir():
        if entry.name != "lang" and (not entry.match("*_dict") or entry.name.removesuffix("_dict") in dictionaries):
            (home / entry.name).symlink_to(entry)
