"""Decisions of one pass, and those of two passes over several units, against their definition."""

from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest

from megatape.data.cleaning.comparison import compare, equal_groups, near_duplicate_flags
from megatape.data.cleaning.decisions import Cleaning, OnePass
from megatape.data.cleaning.first_pass import FirstPass
from megatape.data.cleaning.near_duplicates import Banding, NearDuplicates, Signature
from megatape.data.cleaning.rule import DocumentDropped, TextRule
from megatape.data.prepare.checksummed_files import ChecksummedFiles
from megatape.data.prepare.first_pass_unit import FirstPassUnit
from megatape.data.shards.hashes import document_hash
from megatape.data.sources.document import Decide, Document


@dataclass(frozen=True)
class Numbers(NearDuplicates):
    """Texts of three numbers resemble each other if the first, second or third is the same, and the distances are small."""

    banding = Banding(bands=3, rows=1)

    def signature(self, text: str, at_once: int = 1) -> Signature:
        numbers = np.array(text.split(), np.uint64)
        return Signature(numbers, numbers.astype(np.uint32))

    def _similarity(self, first: np.ndarray, second: np.ndarray) -> float:
        return float((first == second).all()) or 0.9 * like(first.tolist(), second.tolist())


@dataclass(frozen=True)
class NoNine(TextRule):
    """Texts with a 9 go, of the others an exclamation mark."""

    def apply(self, text: str) -> str:
        if "9" in text:
            raise DocumentDropped("a nine")
        return text.removesuffix("!")


def like(first: list[int], second: list[int]) -> bool:
    return any(map(int.__eq__, first, second)) and sum(abs(mine - its) for mine, its in zip(first, second, strict=True)) < 60


def outcomes(decide: Decide, texts: list[str]) -> list[str]:
    decisions = [decide(Document(text, "a.jsonl:7")) for text in texts]
    return [f"dropped by {decision.label}" if decision.text is None else decision.text for decision in decisions]


def defined(texts: list[str], drop_duplicates: bool, near: bool) -> list[str]:
    """Return the result for each text. Duplicates count against all earlier texts, near duplicates against kept ones only."""
    found: list[str] = []
    before: list[list[str]] = []
    kept: list[list[str]] = []
    for text in texts:
        numbers = text.removesuffix("!").split()
        if "9" in text:
            found.append("dropped by rule: a nine")
            continue
        if drop_duplicates and numbers in before:
            found.append("dropped by duplicates")
        elif near and any(like([*map(int, numbers)], [*map(int, earlier)]) for earlier in kept):
            found.append("dropped by near_duplicates")
        else:
            found.append(" ".join(numbers))
            kept.append(numbers)
        before.append(numbers)
    return found


@pytest.mark.parametrize(("drop_duplicates", "near"), [(True, True), (True, False), (False, True)])
def test_one_pass_and_two_are_the_definition(tmp_path: Path, drop_duplicates: bool, near: bool) -> None:
    draw = np.random.default_rng(0)
    drawn = [" ".join(map(str, draw.choice(80, 3))) for _ in range(60)]
    texts = [f"{text}{'!' * (draw.random() < 0.3)}" for text in draw.choice(drawn, 90)]
    wanted = defined(texts, drop_duplicates, near)
    reasons = {"rule: a nine", *(["duplicates"] * drop_duplicates), *(["near_duplicates"] * near)}
    assert reasons == {outcome[11:] for outcome in wanted if outcome.startswith("dropped by")} and len(set(wanted)) > 10
    cleaning = Cleaning({"rule": NoNine()} | ({"near_duplicates": Numbers()} if near else {}), drop_duplicates)
    assert outcomes(OnePass(cleaning).decide, texts) == wanted
    ends = [0, 0, 1, 30, 31, 90]
    units = [texts[begin:end] for begin, end in pairwise(ends)]
    folders = [tmp_path / f"{number}" for number in range(len(units))]
    found: list[str] = []
    for unit, folder in zip(units, folders, strict=True):
        first = FirstPass(cleaning)
        folder.mkdir()
        files = ChecksummedFiles(folder)
        found += outcomes(first.decide, unit[:9])
        first.save_shingles(files.append)
        found += outcomes(first.decide, unit[9:])
        first.save(files.append)
    beats: list[None] = []
    compared = []
    for comparison in cleaning.comparisons:
        judge = cleaning.near_duplicates if comparison.rule == "near_duplicates" else None
        file = tmp_path / f"{comparison.array}.npz"
        file.write_bytes(compare(folders, comparison.array, judge, lambda: beats.append(None)))
        compared.append(file)
    if near:
        bands = compared[:3]
        near_file = tmp_path / "near.npz"
        near_file.write_bytes(near_duplicate_flags(folders, bands, lambda: None))
        compared = [near_file, *compared[3:]]
    assert len(beats) >= len(units) * (drop_duplicates + 3 * near)
    dropped_by = chain(*(FirstPassUnit(folder, 0).dropped_by(compared, number) for number, folder in enumerate(folders)))
    kept = [number for number, outcome in enumerate(found) if not outcome.startswith("dropped by")]
    for number, rule_number in zip(kept, dropped_by, strict=True):
        if rule_number:
            found[number] = f"dropped by {cleaning.comparing_rules[rule_number - 1]}"
    assert found == wanted


def test_a_rule_that_takes_long_or_fails_names_the_document(caplog: pytest.LogCaptureFixture) -> None:
    """The document stays: what is dropped must not depend on the machine. Also where the rule drops it in the end."""
    rules = {"rule": NoNine(), "near_duplicates": Numbers()}
    for slow_seconds, named in ((60.0, []), (-1.0, ["rule", "near_duplicates", "rule"])):
        cleaning = Cleaning(rules, slow_seconds=slow_seconds)
        assert outcomes(OnePass(cleaning).decide, ["1 2 3!", "9"]) == ["1 2 3", "dropped by rule: a nine"]
        assert [line.split()[1] for line in caplog.messages] == named
    assert caplog.messages[0].endswith(" s for a.jsonl:7, a document of 6 characters")
    with pytest.raises(ValueError, match="invalid literal") as fault:
        OnePass(cleaning).decide(Document("one", "a.jsonl:7"))
    assert fault.value.__notes__ == ["rule near_duplicates was applied to a.jsonl:7"]


@pytest.mark.parametrize("at_once", [4, 64, 10**6])
def test_across_units_as_within_one(at_once: int) -> None:
    """Compared in many parts or in one: the definition."""
    generator = np.random.default_rng(0)
    units = [[f"document {number}" for number in generator.integers(0, 40, size)] for size in (30, 0, 1, 50)]
    hashes = [np.frombuffer(b"".join(document_hash(text.encode()) for text in texts), "<u8").reshape(-1, 2) for texts in units]
    texts = [text for texts in units for text in texts]
    wanted = [text in texts[:number] for number, text in enumerate(texts)]
    groups = equal_groups([lambda unit=unit: unit for unit in hashes], at_once)  # type: ignore[misc]
    later = {int(number) for group in groups for number in group[1:]}
    assert [number in later for number in range(len(texts))] == wanted and any(wanted)


def test_no_documents() -> None:
    assert list(equal_groups([lambda: np.empty((0, 2), np.uint64)])) == []
