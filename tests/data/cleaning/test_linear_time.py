"""Every rule of the registry takes linear time, whatever the text: a page may be as long as --max-record-bytes."""

import random
import string
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from megatape.data.cleaning.decisions import Cleaning, OnePass
from megatape.data.cleaning.rule import parse_rules
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.sources.document import Document
from megatape.registry import RULES
from tests.helpers.data.classifiers import fasttext_model, save_classifier
from tests.helpers.data.data_directory import small_tokenizer
from tests.helpers.data.preparation import write_lines
from tests.helpers.data.rules import PROSE

DRAW = random.Random(0)
LETTERS = "".join(DRAW.choices(string.ascii_letters + string.digits + "+/", k=2**20))
TEXTS: dict[str, Callable[[int], str]] = {
    "base64": lambda size: LETTERS[:size],
    "words": lambda size: " ".join(LETTERS[begin : begin + 5] for begin in range(0, size, 6)),
    "sentences": lambda size: (PROSE + "\n") * (size // len(PROSE)),
    "spaces": lambda size: "x" + " " * size + "x",
    "lines": lambda size: "x\n" * (size // 2),
    "lines of long words": lambda size: (" (" * 2 + "(" * 900 + " b.\n") * (size // 900),
} | {
    repr(part): lambda size, part=part: part * (size // len(part)) for part in ("(", "'", "😀", "a-", "a.", "a@", "1.", "a@b.")
}
# seconds of a measurement that is trusted; characters beyond which none is needed
STEADY = 0.02
MOST = 2**16


def document(text: str) -> Document:
    """A document whose URL and license are as long as its text."""
    return Document(text, "", f"https://{text.replace(' ', '/')}", fields={"license": text})


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_a_rule_takes_linear_time(name: str, tmp_path: Path) -> None:
    """Twice the text takes twice as long, where the square takes four times: spaCy and patterns for addresses do."""
    (tmp_path / "questions.txt").write_text(PROSE if name == "decontaminate" else "a.org\n")
    if name == "distinct":
        prepare(PreparationOptions(write_lines(tmp_path / "texts"), 0.1, small_tokenizer(), 0), tmp_path / "data")
    options = {
        "language": "languages=en",
        "decontaminate": f"files={tmp_path / 'questions.txt'}",
        "c4_quality": "terminal_punctuation=false",
        "gopher_quality": f"max_words={10**9}",
        "urls": f"block={tmp_path / 'questions.txt'}",
        "license": "allow=mit",
        "distinct": f"folders={tmp_path / 'data'}",
        "fasttext_classifier": f"model={fasttext_model()},minimum=0.5,label=en",
        "transformers_classifier": f"model={save_classifier(tmp_path / 'model', ['score'])},minimum=0",
    }
    rule = f"{name}:{options[name]}" if name in options else name
    cleaning = Cleaning(parse_rules([rule]), drop_duplicates=False)
    OnePass(cleaning).decide(document(PROSE))  # loads its packages

    def seconds(text: str) -> float:
        decider = OnePass(cleaning)
        began = time.process_time()
        decider.decide(document(f"{text}."))  # a line that ends as sentences do is looked at longer
        return time.process_time() - began

    for kind, text in TEXTS.items():
        size = 2**11
        while (one := seconds(text(size))) < STEADY and size < MOST:
            size *= 2
        two = next(
            (took for _ in range(3) if (took := seconds(text(2 * size))) < 3 * max(one, STEADY)), None
        )  # unless disturbed
        assert two is not None, f"{kind}: {size:,} characters took {one:.2f} s, and twice as many more than three times as long"
