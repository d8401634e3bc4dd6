"""tiktoken's files of ranks, as the tokenizer.json that gives the same ids.

Such a file has a line for each token: its bytes in base64, and its rank, which is its id. The pattern that splits texts into
words, and the special tokens, are defined in the vendor's code; ENCODINGS has those of the best known ones. transformers makes
merges of the ranks (TikTokenConverter); it has neither these definitions nor a choice of the special tokens' ids.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from megatape.data.tokenizers.fast import DIVERGENT_INPUTS
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


@dataclass(frozen=True)
class Encoding:
    """Definitions that a file of ranks lacks.

    Attributes:
        pattern: Of the words into which texts are split.
        special: Ids of special tokens; empty: `eos` has the one after the last rank.
        eos: The token that documents end with.
    """

    pattern: str
    special: Mapping[str, int]
    eos: str


END, PROMPT_END = "<|endoftext|>", "<|endofprompt|>"
_MIDDLE = {"<|fim_prefix|>": 100_258, "<|fim_middle|>": 100_259, "<|fim_suffix|>": 100_260}
ENCODINGS = {
    "r50k_base": Encoding(_GPT2, {END: 50_256}, END),
    "cl100k_base": Encoding(_WORDS, {END: 100_257, **_MIDDLE, PROMPT_END: 100_276}, END),
    "o200k_base": Encoding(_CASES, {END: 199_999, PROMPT_END: 200_018}, END),
}


@path_errors()
def convert(path: Path, encoding: Encoding) -> JsonTokenizer:
    """The tokenizer of a file of ranks, compared with tiktoken on DIVERGENT_INPUTS if that is installed.

    Raises:
        UserError, FileNotFoundError: The file is missing or corrupted, or does not fit the encoding.
    """
    from transformers.convert_slow_tokenizer import TikTokenConverter

    ranks = read_ranks(path)
    special = dict(encoding.special) or {encoding.eos: max(ranks.values()) + 1}
    if taken := set(special.values()) & set(ranks.values()):
        raise UserError(f"{path}: id {min(taken)} is a rank of the file and a special token: it is of another encoding")

    class Converter(TikTokenConverter):  # type: ignore[misc]
        @staticmethod
        def load_tiktoken_bpe(tiktoken_url: str) -> dict[bytes, int]:
            return ranks  # tiktoken itself would keep a copy of the file elsewhere

    try:
        backend = Converter(str(path), pattern=encoding.pattern).converted()
    except Exception as error:  # of Oniguruma: the library raises nothing more specific
        raise UserError(f"{path}: no tokenizer can be made of it with the pattern {encoding.pattern!r}: {error}") from error
    content = json.loads(backend.to_str())
    content["model"]["vocab"] |= special  # before they are added as special: else they get the ids after the last one
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    content["added_tokens"] = [{"id": token, "content": text} | flags for text, token in special.items()]
    config = {
        "tokenizer_class": "TokenizersBackend",
        "bos_token": None,
        "eos_token": encoding.eos,
        "clean_up_tokenization_spaces": False,
    }
    files = {JSON_FILE: json.dumps(content, ensure_ascii=False).encode(), CONFIG_FILE: json.dumps(config, indent=1).encode()}
    tokenizer = JsonTokenizer(files, str(path))
    if find_spec("tiktoken"):
        _compare(tokenizer, ranks, encoding, special)
    return tokenizer


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


def _compare(tokenizer: JsonTokenizer, ranks: dict[bytes, int], encoding: Encoding, special: dict[str, int]) -> None:
    from tiktoken import Encoding as Tiktoken

    theirs = Tiktoken("file", pat_str=encoding.pattern, mergeable_ranks=ranks, special_tokens=special)
    for text in DIVERGENT_INPUTS:
        if tokenizer.encode(text) != theirs.encode_ordinary(text):
            raise UserError(
                f"{tokenizer.origin}: tiktoken gives other ids than the tokenizer.json made of it for a text that begins "
                f"{text[:40]!r}: write the pattern {encoding.pattern!r} so that Oniguruma reads it as tiktoken does"
            )
