"""Decisions made in one pass, and in two passes over several units, against their definition."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from megatape.data.cleaning.comparison import compare, equal_groups, near_duplicate_flags
from megatape.data.cleaning.decisions import Cleaning, OnePass
from megatape.data.cleaning.first_pass import FirstPass
from megatape.data.cleaning.near_duplicates import Banding, NearDuplicates, Signature
from megatape.data.cleaning.rule import DocumentDropped, Rule, TextRule
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
        if (first == second).all():
            return 1.0
        if resemble(first.tolist(), second.tolist()):
            return 0.9
        return 0.0


@dataclass(frozen=True)
class NoNine(TextRule):
    """Drops texts with a 9, and removes an exclamation mark from the others."""

    def apply(self, text: str) -> str:
        if "9" in text:
            raise DocumentDropped("a nine")
        return text.removesuffix("!")


def resemble(first: list[int], second: list[int]) -> bool:
    """The definition of near duplicates in this file."""
    pairs = list(zip(first, second, strict=True))
    has_common_number = any(a == b for a, b in pairs)
    distance = sum(abs(a - b) for a, b in pairs)
    return has_common_number and distance < 60


def outcomes(decide: Decide, texts: list[str]) -> list[str]:
    """Return each text as edited, or "dropped by RULE: REASON"."""
    results = []
    for text in texts:
        decision = decide(Document(text, "a.jsonl:7"))
        if decision.text is None:
            results.append(f"dropped by {decision.label}")
        else:
            results.append(decision.text)
    return results


def expected_outcomes(texts: list[str], drop_duplicates: bool, near: bool) -> list[str]:
    """Decide by definition. Duplicates count against all earlier texts, near duplicates against kept ones only."""
    results: list[str] = []
    earlier: list[list[int]] = []
    kept: list[list[int]] = []
    for text in texts:
        if "9" in text:
            results.append("dropped by rule: a nine")
            continue
        numbers = [int(word) for word in text.removesuffix("!").split()]
        if drop_duplicates and numbers in earlier:
            results.append("dropped by duplicates")
        elif near and any(resemble(numbers, others) for others in kept):
            results.append("dropped by near_duplicates")
        else:
            results.append(" ".join(map(str, numbers)))
            kept.append(numbers)
        earlier.append(numbers)
    return results


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Ninety texts of three numbers, with repetitions, a third of them with an exclamation mark."""
    draw = np.random.default_rng(0)
    distinct = [" ".join(map(str, draw.choice(80, 3))) for _ in range(60)]
    texts = []
    for text in draw.choice(distinct, 90):
        if draw.random() < 0.3:
            text += "!"
        texts.append(str(text))
    return texts


COMPARISONS = pytest.mark.parametrize(
    ("drop_duplicates", "near"),
    [
        pytest.param(True, True, id="exact and near"),
        pytest.param(True, False, id="exact"),
        pytest.param(False, True, id="near"),
    ],
)


def cleaning_with(drop_duplicates: bool, near: bool) -> Cleaning:
    rules: dict[str, Rule] = {"rule": NoNine()}
    if near:
        rules["near_duplicates"] = Numbers()
    return Cleaning(rules, drop_duplicates)


@COMPARISONS
def test_one_pass_decides_by_definition(texts: list[str], drop_duplicates: bool, near: bool) -> None:
    expected = expected_outcomes(texts, drop_duplicates, near)
    cleaning = cleaning_with(drop_duplicates, near)

    assert outcomes(OnePass(cleaning).decide, texts) == expected


@COMPARISONS
def test_every_outcome_occurs(texts: list[str], drop_duplicates: bool, near: bool) -> None:
    """Otherwise the other tests of these texts would prove little."""
    results = set(expected_outcomes(texts, drop_duplicates, near))

    assert "dropped by rule: a nine" in results
    assert ("dropped by duplicates" in results) == drop_duplicates
    assert ("dropped by near_duplicates" in results) == near
    assert len(results) > 10


@COMPARISONS
def test_two_passes_over_several_units_decide_by_definition(
    texts: list[str], tmp_path: Path, drop_duplicates: bool, near: bool
) -> None:
    """Some units are empty or have a single text. Comparing causes heartbeats."""
    cleaning = cleaning_with(drop_duplicates, near)
    bounds = [0, 0, 1, 30, 31, 90]
    units = [texts[begin:end] for begin, end in pairwise(bounds)]
    folders = [tmp_path / f"{number}" for number in range(len(units))]

    results: list[str] = []
    for unit, folder in zip(units, folders, strict=True):
        results += first_pass(cleaning, unit, folder)
    heartbeats: list[None] = []
    comparisons = compare_units(cleaning, folders, tmp_path, lambda: heartbeats.append(None))
    drop_compared(results, cleaning, folders, comparisons)

    assert results == expected_outcomes(texts, drop_duplicates, near)
    num_comparisons = 0
    if drop_duplicates:
        num_comparisons += 1
    if near:
        num_comparisons += 3
    assert len(heartbeats) >= len(units) * num_comparisons


def first_pass(cleaning: Cleaning, unit: list[str], folder: Path) -> list[str]:
    """Decide about the texts of a unit, and store what later comparisons need."""
    folder.mkdir()
    files = ChecksummedFiles(folder)
    decider = FirstPass(cleaning)
    results = outcomes(decider.decide, unit[:9])
    decider.save_shingles(files.append)
    results += outcomes(decider.decide, unit[9:])
    decider.save(files.append)
    return results


def compare_units(cleaning: Cleaning, folders: list[Path], output: Path, heartbeat: Callable[[], None]) -> list[Path]:
    """Compare the units for exact and near duplicates. Return the files with the results."""
    files = []
    band_files = []
    for comparison in cleaning.comparisons:
        file = output / f"{comparison.array}.npz"
        if comparison.rule == "near_duplicates":
            file.write_bytes(compare(folders, comparison.array, cleaning.near_duplicates, heartbeat))
            band_files.append(file)
        else:
            file.write_bytes(compare(folders, comparison.array, None, heartbeat))
            files.append(file)
    if band_files:
        near_file = output / "near.npz"
        near_file.write_bytes(near_duplicate_flags(folders, band_files, lambda: None))
        files.insert(0, near_file)
    return files


def drop_compared(results: list[str], cleaning: Cleaning, folders: list[Path], comparisons: list[Path]) -> None:
    """Replace the results of texts that a comparison dropped."""
    dropped_by: list[int] = []
    for number, folder in enumerate(folders):
        dropped_by += list(FirstPassUnit(folder, 0).dropped_by(comparisons, number))
    compared = [number for number, result in enumerate(results) if not result.startswith("dropped by")]
    for number, rule_number in zip(compared, dropped_by, strict=True):
        if rule_number:
            results[number] = f"dropped by {cleaning.comparing_rules[rule_number - 1]}"


@pytest.mark.parametrize(
    ("slow_seconds", "expected"),
    [
        pytest.param(60.0, [], id="no rule is slow"),
        pytest.param(-1.0, ["rule", "near_duplicates", "rule"], id="every rule is slow"),
    ],
)
def test_a_slow_rule_is_named_with_the_document(
    caplog: pytest.LogCaptureFixture, slow_seconds: float, expected: list[str]
) -> None:
    """The result is the same, since it must not depend on the machine. Rules that drop a text are named as well."""
    cleaning = Cleaning({"rule": NoNine(), "near_duplicates": Numbers()}, slow_seconds=slow_seconds)

    results = outcomes(OnePass(cleaning).decide, ["1 2 3!", "9"])

    assert results == ["1 2 3", "dropped by rule: a nine"]
    assert [message.split()[1] for message in caplog.messages] == expected
    if expected:
        assert caplog.messages[0].endswith(" s for a.jsonl:7, a document of 6 characters")


def test_a_failing_rule_is_named_with_the_document() -> None:
    cleaning = Cleaning({"rule": NoNine(), "near_duplicates": Numbers()})

    with pytest.raises(ValueError, match="invalid literal") as error:
        OnePass(cleaning).decide(Document("one", "a.jsonl:7"))

    assert error.value.__notes__ == ["rule near_duplicates was applied to a.jsonl:7"]


def hashes_of(texts: list[str]) -> np.ndarray:
    """Return the document hashes of texts as two integers each, uint64 [texts, 2]."""
    content = b"".join(document_hash(text.encode()) for text in texts)
    return np.frombuffer(content, "<u8").reshape(-1, 2)


@pytest.mark.parametrize("at_once", [4, 64, 10**6])
def test_duplicates_are_found_across_units(at_once: int) -> None:
    """The number of hashes compared at a time does not matter."""
    draw = np.random.default_rng(0)
    units = [[f"document {number}" for number in draw.integers(0, 40, size)] for size in (30, 0, 1, 50)]
    hashes = [hashes_of(unit) for unit in units]
    texts = [text for unit in units for text in unit]
    expected = [number for number, text in enumerate(texts) if text in texts[:number]]
    assert expected != []

    groups = equal_groups([partial(np.copy, unit) for unit in hashes], at_once)

    later = [int(number) for group in groups for number in group[1:]]
    assert sorted(later) == expected


def test_no_documents_have_no_duplicates() -> None:
    assert list(equal_groups([lambda: np.empty((0, 2), np.uint64)])) == []
