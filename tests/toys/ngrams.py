"""Small n-gram models: an ARPA file whose scores a reader can add up, the same as a binary of KenLM, random texts."""

from __future__ import annotations

import base64
import random
import zlib

TINY_ARPA = r"""
\data\
ngram 1=5
ngram 2=3

\1-grams:
-1.0	<unk>
-99	<s>	-0.3
-0.5	</s>
-0.6	a	-0.2
-0.7	b

\2-grams:
-0.1	<s> a
-0.4	a b
-0.25	b </s>

\end\
"""
# TINY_ARPA after KenLM's `build_binary trie`.
TINY_BINARY = zlib.decompress(
    base64.b85decode(
        "c-qU&O)OBz$yLZGDJihh*U!#KO-##7%}LQq&d=3P&QD2INXswEO)OC;OD!tS%+FIW<zhg9274f}pAks>2Lg}?BUFY7Odhajf{KAKD^!jd$pj"
        "WCT~MdE*RrjYK`=Y}@+EO`cCMW7A8U&rWSeVgO{)FV{R+v>{U8FtKXz!=%$fUOyje3P_n$rEvk%D%uzHxgjE#-=Bix4o%naB;W?I@iK?a5k%"
        "hS@*<dG$8O7pVq7;K8|7!nz5^np|o0|2^hJ-q"
    )
)


def random_texts(number: int, seed: int = 0) -> list[list[str]]:
    """Texts of 1 to 7 of the words a to j, of which some follow others more often."""
    generator = random.Random(seed)
    texts = []
    for _ in range(number):
        text = [generator.choice("abcdefghij")]
        while len(text) < generator.randint(1, 7):
            text.append(
                generator.choice("abcdefghij") if generator.random() < 0.5 else "abcdefghij"[ord(text[-1]) % 10]
            )
        texts.append(text)
    return texts
