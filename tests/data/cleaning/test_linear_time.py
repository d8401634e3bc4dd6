"""Every registered rule takes linear time for any text, since a page may be as long as --max-record-bytes."""

import random
import string
import time
from collections.abc import Callable
from functools import partial
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
from tests.helpers.data.preparation import write_corpus
from tests.helpers.data.rules import PROSE

DRAW = random.Random(0)
LETTERS = "".join(DRAW.choices(string.ascii_letters + string.digits + "+/", k=2**20))


def words(size: int) -> str:
    return " ".join(LETTERS[begin : begin + 5] for begin in range(0, size, 6))


def repeated(part: str, size: int) -> str:
    return part * (size // len(part))


# Content -> text of about a given size
TEXTS: dict[str, Callable[[int], str]] = {
    "base64": lambda size: LETTERS[:size],
    "words": words,
    "sentences": lambda size: (PROSE + "\n") * (size // len(PROSE)),
    "spaces": lambda size: "x" + " " * size + "x",
    "lines": partial(repeated, "x\n"),
    "lines of long words": lambda size: (" (" * 2 + "(" * 900 + " b.\n") * (size // 900),
}
for part in ("(", "'", "😀", "a-", "a.", "a@", "1.", "a@b."):
    TEXTS[repr(part)] = partial(repeated, part)

# Shorter measurements are too noisy to be compared.
MIN_SECONDS = 0.02
MIN_SIZE = 2**11
MAX_SIZE = 2**16


def document(text: str) -> Document:
    """Return a document whose URL and license are as long as its text."""
    return Document(text, "", f"https://{text.replace(' ', '/')}", fields={"license": text})


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_a_rule_takes_linear_time(name: str, tmp_path: Path) -> None:
    """Twice the text takes twice as long. Quadratic rules, such as spaCy's and some patterns for addresses, take four times."""
    rule = name
    options = options_of(name, tmp_path)
    if options:
        rule = f"{name}:{options}"
    cleaning = Cleaning(parse_rules([rule]), drop_duplicates=False)
    OnePass(cleaning).decide(document(PROSE))  # loads its packages

    for kind, text_of_size in TEXTS.items():
        check_linear_time(cleaning, kind, text_of_size)


def options_of(name: str, folder: Path) -> str:
    """Return options that let a rule read a whole text. Write the files that they name."""
    if name == "language":
        return "languages=en"
    if name == "c4_quality":
        return "terminal_punctuation=false"
    if name == "gopher_quality":
        return f"max_words={10**9}"
    if name == "license":
        return "allow=mit"
    if name == "fasttext_classifier":
        return f"model={fasttext_model()},minimum=0.5,label=en"
    if name == "transformers_classifier":
        model = save_classifier(folder / "model", ["score"])
        return f"model={model},minimum=0"
    if name == "decontaminate":
        questions = folder / "questions.txt"
        questions.write_text(PROSE)
        return f"files={questions}"
    if name == "urls":
        domains = folder / "domains.txt"
        domains.write_text("a.org\n")
        return f"block={domains}"
    if name == "distinct":
        prepare(PreparationOptions(write_corpus(folder / "texts"), 0.1, small_tokenizer(), 0), folder / "data")
        return f"folders={folder / 'data'}"
    return ""


def check_linear_time(cleaning: Cleaning, kind: str, text_of_size: Callable[[int], str]) -> None:
    """Check that twice the text takes less than three times as long, in one of three attempts."""
    size = MIN_SIZE
    seconds = seconds_to_decide(cleaning, text_of_size(size))
    while seconds < MIN_SECONDS and size < MAX_SIZE:
        size *= 2
        seconds = seconds_to_decide(cleaning, text_of_size(size))

    limit = 3 * max(seconds, MIN_SECONDS)
    for _ in range(3):
        if seconds_to_decide(cleaning, text_of_size(2 * size)) < limit:
            return
    raise AssertionError(f"{kind}: {size:,} characters took {seconds:.2f} s, and twice as many more than three times as long")


def seconds_to_decide(cleaning: Cleaning, text: str) -> float:
    """Measure a decision about a text ending like a sentence, since some rules spend more time on such lines."""
    decider = OnePass(cleaning)
    start = time.process_time()
    decider.decide(document(f"{text}."))
    return time.process_time() - start
