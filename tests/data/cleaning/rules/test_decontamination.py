"""Documents sharing a run of words with an evaluation."""

import gzip
import json
from pathlib import Path

import pytest

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import parse_rules
from tests.helpers.data.rules import PROSE, apply_rule

WORDS = [f"word{number}" for number in range(40)]


def dropped_by(file: Path) -> str:
    return f"dropped by decontaminate: shares 13 words with {file}"


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Return a record with words in two strings, one of them nested."""
    path = tmp_path / "a.jsonl"
    record = {"question": " ".join(WORDS[:20]), "choices": ["short", {"text": " ".join(WORDS[20:])}]}
    path.write_text(json.dumps(record) + "\n")
    return path


@pytest.fixture
def prose(tmp_path: Path) -> Path:
    path = tmp_path / "b.txt"
    path.write_text(PROSE)
    return path


def test_thirteen_words_in_a_row_are_dropped(questions: Path, prose: Path) -> None:
    """Runs of thirteen words are found in any string inside a record, ignoring case and punctuation."""
    rule = f"decontaminate:files={questions},{prose}"

    assert apply_rule(rule, "Before, " + ", ".join(WORDS[3:16]).upper() + "; after") == dropped_by(questions)
    assert apply_rule(rule, " ".join(WORDS[25:38])) == dropped_by(questions)
    assert apply_rule(rule, f"x {PROSE[40:200]} y") == dropped_by(prose)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(" ".join(WORDS[3:15]), id="twelve words"),
        pytest.param(" ".join(WORDS[14:26]), id="twelve words of two strings"),
        pytest.param(" ".join(reversed(WORDS)), id="another order"),
        pytest.param("none of its words", id="other words"),
    ],
)
def test_other_texts_stay(questions: Path, prose: Path, text: str) -> None:
    assert apply_rule(f"decontaminate:files={questions},{prose}", text) == text


def test_the_content_of_files_is_part_of_the_rule(questions: Path, prose: Path) -> None:
    """A preparation does not resume with another file having the same name."""
    rule = f"decontaminate:files={questions},{prose}"
    before = Cleaning(parse_rules([rule])).describe()

    prose.write_text(PROSE + " More.")

    assert Cleaning(parse_rules([rule])).describe() != before


def test_files_without_a_run_of_words_are_refused(questions: Path, prose: Path) -> None:
    """The rule is refused before a document is read."""
    prose.write_text("only a few words")

    with pytest.raises(ValueError, match="^rule decontaminate: .*b.txt has no text of 13 words or more"):
        parse_rules([f"decontaminate:files={questions},{prose}"])


def test_a_folder_stands_for_its_files(tmp_path: Path, prose: Path) -> None:
    assert apply_rule(f"decontaminate:files={tmp_path}", f"x {PROSE[40:200]} y") == dropped_by(prose)


def test_compressed_files_without_the_name_of_lines_are_refused(tmp_path: Path, prose: Path) -> None:
    """No document would have the words of compressed bytes."""
    rule = f"decontaminate:files={tmp_path}"
    packed = tmp_path / "b.gz"
    packed.write_bytes(gzip.compress(json.dumps({"text": PROSE}).encode()))

    message = f"^rule decontaminate: {packed} is not UTF-8 text .*: give text, or lines of JSON as"
    with pytest.raises(ValueError, match=message):
        parse_rules([rule])

    prose.rename(tmp_path / "a.txt")
    packed.rename(tmp_path / "b.NDJSON.gz")
    assert apply_rule(rule, f"x {PROSE[40:200]} y") == dropped_by(tmp_path / "a.txt")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file, nor a folder with files"):
        parse_rules([f"decontaminate:files={tmp_path / 'missing'}"])
