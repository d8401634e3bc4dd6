"""Documents that hold a part of an evaluation."""

import gzip
import json
from pathlib import Path

import pytest

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import parse_rules
from tests.helpers.data.rules import PROSE, apply_rule


def test_decontamination(tmp_path: Path) -> None:
    """Thirteen words in a row of any string of a record, whatever their case and punctuation; not twelve."""
    words = [f"word{number}" for number in range(40)]
    line = {"question": " ".join(words[:20]), "choices": ["short", {"text": " ".join(words[20:])}]}
    (tmp_path / "a.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "b.txt").write_text(PROSE)
    rule = f"decontaminate:files={tmp_path / 'a.jsonl'},{tmp_path / 'b.txt'}"
    shares = "dropped by decontaminate: shares 13 words with {}"
    assert apply_rule(rule, "Before, " + ", ".join(words[3:16]).upper() + "; after") == shares.format(tmp_path / "a.jsonl")
    assert apply_rule(rule, " ".join(words[25:38])) == shares.format(tmp_path / "a.jsonl")
    assert apply_rule(rule, f"x {PROSE[40:200]} y") == shares.format(tmp_path / "b.txt")
    for clean in (" ".join(words[3:15]), " ".join(words[14:26]), " ".join(reversed(words)), "none of its words"):
        assert apply_rule(rule, clean) == clean
    described = Cleaning(parse_rules([rule])).describe()
    (tmp_path / "b.txt").write_text(PROSE + " More.")
    assert Cleaning(parse_rules([rule])).describe() != described  # another file of this name is another rule
    (tmp_path / "b.txt").write_text("only a few words")
    with pytest.raises(ValueError, match="^rule decontaminate: .*b.txt has no text of 13 words or more"):
        parse_rules([rule])  # before a document is read


def test_folders_and_files_that_are_no_text(tmp_path: Path) -> None:
    """A folder stands for its files. Compressed bytes are no text, whose words no document would have."""
    folder = tmp_path / "sets"
    folder.mkdir()
    (folder / "a.txt").write_text(PROSE)
    rule = f"decontaminate:files={folder}"
    assert apply_rule(rule, f"x {PROSE[40:200]} y") == f"dropped by decontaminate: shares 13 words with {folder / 'a.txt'}"
    name = folder / "b.gz"
    name.write_bytes(gzip.compress(json.dumps({"text": PROSE}).encode()))
    with pytest.raises(ValueError, match=f"^rule decontaminate: {name} is no text in UTF-8 .*: give text, or lines of JSON as"):
        parse_rules([rule])
    name.rename(folder / "b.NDJSON.gz")
    assert apply_rule(rule, f"x {PROSE[40:200]} y") == f"dropped by decontaminate: shares 13 words with {folder / 'a.txt'}"
    with pytest.raises(ValueError, match="no such file, nor a folder with files"):
        parse_rules([f"decontaminate:files={tmp_path / 'missing'}"])
