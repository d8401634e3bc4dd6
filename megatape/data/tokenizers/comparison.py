"""Comparison of two tokenizers: whether texts and ids mean the same to both."""

import numpy as np

from megatape.data.tokenizers.sentencepiece import SPACE_MARK
from megatape.data.tokenizers.tokenizer import Tokenizer

# Text in many scripts, with code, numbers, spaces and emoji. Tokenizers often agree on English alone.
SAMPLE = """The quick brown fox doesn't jump over 12,345.67 lazy dogs, i.e. none.
def area(radius: float) -> float:
    return 3.14159 * radius**2  # tabs\tand    spaces

Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich; où l'été naît, ¿qué pasó?
Съешь ещё этих мягких французских булок. Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. נהג בשמחה. نص حكيم له سر قاطع.
सभी मनुष्य जन्म से स्वतंत्र हैं। เป็นมนุษย์สุดประเสริฐ. 天地玄黃，宇宙洪荒。いろはにほへと、チリヌルヲ。모든 인간은 태어날 때부터 자유롭다.
∀x ∈ ℝ: ⌈x⌉ = −⌊−x⌋ → 🙂👍🏽👩‍🚀
"""


def tokenizer_difference(ours: Tokenizer, theirs: Tokenizer, text: str = "") -> str | None:
    """Return how two tokenizers differ, or None if the second one reads the ids of the first one alike.

    Tokenizers of different formats can be equal. Theirs may have more tokens, if texts do not contain them.

    Args:
        ours: Tokenizer of some ids.
        theirs: Tokenizer that has to understand these ids.
        text: Text to encode by both, in addition to a sample.
    """
    if ours.sha256 == theirs.sha256:
        return None
    for token in range(ours.vocab_size):
        our_piece = _piece(ours, token)
        their_piece = _piece(theirs, token)
        if our_piece != their_piece:
            return f"token {token} is {our_piece!r} and {their_piece!r}"
    more_pieces = [_piece(theirs, token) or "" for token in range(ours.vocab_size, theirs.vocab_size)]
    for part in (SAMPLE, text, " ".join(more_pieces)):
        (our_ids,) = ours.encode_documents([part])
        (their_ids,) = theirs.encode_documents([part])
        if not np.array_equal(our_ids, their_ids):
            return f"the ids of a text that begins {part[:40]!r} differ"
    return None


def _piece(tokenizer: Tokenizer, token: int) -> str | None:
    """Return a token's name. Our exports of a SentencePiece model write spaces instead of its mark."""
    piece = tokenizer.piece(token)
    if piece is None:
        return None
    return piece.replace(SPACE_MARK, " ")
