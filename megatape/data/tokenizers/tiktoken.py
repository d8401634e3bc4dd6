"""tiktoken's files of ranks, as the tokenizer.json that gives the same ids.

Such a file has a line for each token: its bytes in base64, and its rank, which is its id. The pattern that splits texts into
words, and the special tokens, are defined in the vendor's code; ENCODINGS has those of OpenAI's models, with patterns that
tests compare with tiktoken's. transformers makes merges of the ranks (TikTokenConverter); it has neither these definitions nor
a choice of the special tokens' ids.
"""

import base64
import json
from pathlib import Path
from typing import NamedTuple

from megatape.data.tokenizers.huggingface import JsonTokenizer
from megatape.data.tokenizers.tokenizer import CONFIG_FILE, JSON_FILE
from megatape.errors import UserError, path_errors

# Oniguruma, which tokenizer.json is run by, takes {1,3}+ for a repetition: patterns have no possessive quantifiers here.
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
    """Definitions that a file of ranks lacks.

    Attributes:
        pattern: Of the words into which texts are split.
        special: Ids of special tokens, among them END, with which documents end.
    """

    pattern: str
    special: dict[str, int]


END = "<|endoftext|>"
PROMPT_END = "<|endofprompt|>"
_MIDDLE = {"<|fim_prefix|>": 100_258, "<|fim_middle|>": 100_259, "<|fim_suffix|>": 100_260}
ENCODINGS = {
    "r50k_base": Encoding(_GPT2, {END: 50_256}),
    "cl100k_base": Encoding(_WORDS, {END: 100_257, **_MIDDLE, PROMPT_END: 100_276}),
    "o200k_base": Encoding(_CASES, {END: 199_999, PROMPT_END: 200_018}),
}


@path_errors()
def convert(path: Path, encoding: Encoding) -> JsonTokenizer:
    """The tokenizer of a file of ranks.

    Raises:
        UserError, FileNotFoundError: The file is missing or corrupted, or does not fit the encoding.
    """
    from transformers.convert_slow_tokenizer import TikTokenConverter

    ranks = read_ranks(path)
    special = encoding.special
    if taken := set(special.values()) & set(ranks.values()):
        raise UserError(f"{path}: id {min(taken)} is a rank of the file and a special token: it is of another encoding")

    class Converter(TikTokenConverter):  # type: ignore[misc]
        @staticmethod
        def load_tiktoken_bpe(tiktoken_url: str) -> dict[bytes, int]:
            return ranks  # tiktoken itself would keep a copy of the file elsewhere

    content = json.loads(Converter(str(path), pattern=encoding.pattern).converted().to_str())
    content["model"]["vocab"] |= special  # before they are added as special: else they get the ids after the last one
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    content["added_tokens"] = [{"id": token, "content": text} | flags for text, token in special.items()]
    config = {
        "tokenizer_class": "TokenizersBackend",
        "bos_token": None,
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
    }
    files = {JSON_FILE: json.dumps(content, ensure_ascii=False).encode(), CONFIG_FILE: json.dumps(config, indent=1).encode()}
    return JsonTokenizer(files, str(path))


def read_ranks(path: Path) -> dict[bytes, int]:
    """Rank of each token. Raises FileNotFoundError, or UserError for a corrupted file."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if line.strip():
            try:
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
            except ValueError:
                raise UserError(f"{path}:{number}: {line[:40]!r} is no token in base64 and its rank: copy it again") from None
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing or len(set(ranks.values())) < len(ranks):
        fault = f"byte {missing[0]:#04x} is no token" if missing else "two tokens have the same rank"
        raise UserError(f"{path}: {fault}: it is truncated, or no file of tiktoken")
    return ranks
