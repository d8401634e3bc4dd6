"""Converts tiktoken's rank files to a tokenizer.json with the same ids.

A rank file has one line per token: its bytes in base64, and its rank, which is its id. The pattern splitting texts into words
and the special tokens are defined in the vendor's code. ENCODINGS has those for OpenAI's models; tests compare the patterns
with tiktoken's. transformers converts ranks to merges (TikTokenConverter), but lacks these definitions and cannot choose the
ids of special tokens.
"""

import base64
import json
from pathlib import Path
from typing import Any, NamedTuple

from megatape.data.tokenizers.huggingface import JsonTokenizer
from megatape.data.tokenizers.tokenizer import CONFIG_FILE, JSON_FILE
from megatape.errors import UserError, path_errors

END = "<|endoftext|>"
PROMPT_END = "<|endofprompt|>"
_MIDDLE = {"<|fim_prefix|>": 100_258, "<|fim_middle|>": 100_259, "<|fim_suffix|>": 100_260}

# Possessive quantifiers are avoided: Oniguruma, the engine behind tokenizer.json, reads {1,3}+ as a repetition.
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{_REST}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CASES = "|".join(
    [
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+{_CONTRACTIONS}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*{_CONTRACTIONS}?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


class Encoding(NamedTuple):
    """Definitions missing from a rank file.

    Attributes:
        pattern: Pattern splitting texts into words.
        special: Special token -> id, including END, which ends documents.
    """

    pattern: str
    special: dict[str, int]


ENCODINGS = {
    "r50k_base": Encoding(_GPT2, {END: 50_256}),
    "cl100k_base": Encoding(_WORDS, {END: 100_257, **_MIDDLE, PROMPT_END: 100_276}),
    "o200k_base": Encoding(_CASES, {END: 199_999, PROMPT_END: 200_018}),
}


@path_errors()
def convert(path: Path, encoding: Encoding) -> JsonTokenizer:
    """Convert a rank file.

    Args:
        path: Path of the file.
        encoding: Definitions belonging to the file.

    Raises:
        UserError, FileNotFoundError: The file is missing or corrupted, or does not fit the encoding.
    """
    from transformers.convert_slow_tokenizer import TikTokenConverter

    ranks = read_ranks(path)
    special = encoding.special
    taken = set(special.values()) & set(ranks.values())
    if taken:
        raise UserError(f"{path}: id {min(taken)} is a rank of the file and a special token: it is of another encoding")

    class Converter(TikTokenConverter):  # type: ignore[misc]
        @staticmethod
        def load_tiktoken_bpe(tiktoken_url: str) -> dict[bytes, int]:
            # tiktoken itself would cache a copy of the file elsewhere.
            return ranks

    content = json.loads(Converter(str(path), pattern=encoding.pattern).converted().to_str())
    # Special tokens missing from the vocabulary would get new ids after the last one.
    content["model"]["vocab"] |= special
    content["added_tokens"] = [_added_token(text, token) for text, token in special.items()]
    config = {
        "tokenizer_class": "TokenizersBackend",
        "bos_token": None,
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
    }
    files = {
        JSON_FILE: json.dumps(content, ensure_ascii=False).encode(),
        CONFIG_FILE: json.dumps(config, indent=1).encode(),
    }
    return JsonTokenizer(files, str(path))


def _added_token(text: str, token: int) -> dict[str, Any]:
    """Return a special token's entry in tokenizer.json."""
    return {
        "id": token,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def read_ranks(path: Path) -> dict[bytes, int]:
    """Return the rank of each token. Raises FileNotFoundError, or UserError if the file is corrupted."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError:
            raise UserError(f"{path}:{number}: {line[:40]!r} is not a token in base64 and its rank: copy it again") from None
    reason = None
    for byte in range(256):
        if bytes([byte]) not in ranks:
            reason = f"byte {byte:#04x} is no token"
            break
    if reason is None and len(set(ranks.values())) < len(ranks):
        reason = "two tokens have the same rank"
    if reason is not None:
        raise UserError(f"{path}: {reason}: it is truncated, or no file of tiktoken")
    return ranks
