"""Training of a vocabulary of subwords from texts."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable

from nemo_asr.run.arguments import look_up
from nemo_asr.run.text.labels import WORD_MARK
from nemo_asr.run.text.subwords import INSTALL, Subwords
from nemo_lite.base.errors import DataError, UsageError
from nemo_lite.base.ranges import PositiveInt, numbers_checked

ALGORITHMS = ("unigram", "bpe")
_MAX_LINE_BYTES = 2**20  # longer texts are an error, where the library would leave them out
# What the library says of a size that the texts cannot give.
_TOO_LARGE = re.compile(r"Vocabulary size (?:is )?too high.*<= (\d+)")
_TOO_SMALL = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")


@numbers_checked
def train_subwords(
    texts: Iterable[str], vocab_size: PositiveInt, *, algorithm: str = "unigram", symbols: Iterable[str] = ()
) -> Subwords:
    """Train a SentencePiece model; the same texts give the same one.

    Every character of the texts becomes a piece. There are no pieces for the beginning, the end and padding: CTC needs
    none. Piece 0 stands for what cannot be written.

    Args:
        texts: as a parser normalises them.
        vocab_size: the number of pieces.
        algorithm: ``unigram`` or ``bpe``.
        symbols: words that stay whole, such as ``<noise>``.

    Raises:
        DataError: there are no texts, or one is longer than a megabyte.
        UsageError: the texts cannot give so many pieces, or need more; or sentencepiece is not installed.
        UnknownNameError: another algorithm.

    Source: Kudo, "Subword Regularization", ACL 2018; Sennrich et al., "Neural Machine Translation of Rare Words with
    Subword Units", ACL 2016.
    """
    try:
        import sentencepiece
    except ImportError:
        raise UsageError("the package sentencepiece is not installed", remedy=INSTALL) from None
    look_up("algorithm", algorithm, dict.fromkeys(ALGORITHMS))
    lines = [cleaned for text in texts if (cleaned := " ".join(text.replace(WORD_MARK, " ").split()))]
    if not lines:
        raise DataError("there are no texts to train a tokenizer on")
    longest = max(len(line.encode()) for line in lines)
    if longest > _MAX_LINE_BYTES:
        raise DataError("a text is too long", got=f"{longest} bytes", wanted=f"at most {_MAX_LINE_BYTES}")
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=written,
            vocab_size=vocab_size,
            model_type=algorithm,
            user_defined_symbols=list(symbols),
            normalization_rule_name="identity",  # the parser decides how texts are rewritten
            character_coverage=1.0,
            max_sentence_length=_MAX_LINE_BYTES,
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=1,  # the sums of several threads depend on their order
            minloglevel=3,
        )
    except (RuntimeError, OSError) as error:
        raise _explained(str(error), vocab_size, lines) from None
    return Subwords(written.getvalue())


def _explained(message: str, vocab_size: int, lines: list[str]) -> UsageError:
    problem, got = "the texts cannot give a vocabulary of this size", f"{vocab_size} pieces"
    if match := _TOO_LARGE.search(message):
        return UsageError(problem, place="vocab_size", got=got, wanted=f"at most {match[1]}")
    if match := _TOO_SMALL.search(message):
        return UsageError(problem, place="vocab_size", got=got, wanted=f"at least {match[1]}, one for each character")
    got = message.strip().rpartition("] ")[2].partition("\n")[0] or message.strip()
    return UsageError("sentencepiece refuses the texts", got=f"{got} ({len(lines)} texts)")
