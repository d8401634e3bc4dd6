"""Decisions made in one pass, and in two passes over several units, against their definition."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatape.data.cleaning.comparison import ROW, divide_buckets, find_duplicates
from megatape.data.cleaning.decisions import Cleaning, OnePass
from megatape.data.cleaning.first_pass import FirstPass
from megatape.data.cleaning.near_duplicates.near_duplicates import Banding, NearDuplicates, Signature
from megatape.data.cleaning.rule import DocumentDropped, Rule, TextRule
from megatape.data.cleaning.stored.sorted_keys import HASH_RECORD, NUM_BUCKETS, BucketRange, SortedKeys, pack_columns
from megatape.data.cleaning.stored.unit_items import UnitItems
from megatape.data.prepare.passes.checksummed_files import ChecksummedFiles
from megatape.data.prepare.passes.decision_pass import DecisionPass
from megatape.data.prepare.passes.first_pass_unit import FirstPassUnit
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.shared_folder.unit_lease import DEFAULT_TIMEOUTS
from megatape.data.sources.document import Decide, Document
from megatape.errors import UserError


@dataclass(frozen=True)
class Numbers(NearDuplicates):
    """Texts of three numbers resemble each other if the first, second or third is the same, and the distances are small."""

    banding = Banding(bands=3, rows=1)

    def signature(self, text: str, at_once: int = 1) -> Signature:
        numbers = np.array(text.split(), np.uint64)
        # Multiplication by an odd number distributes the keys over all buckets.
        keys = numbers * np.uint64(0x9E3779B97F4A7C15)
        return Signature(keys, numbers.astype(np.uint32))

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
    """Find near duplicates as defined in this file."""
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
    """Return ninety texts of three numbers, some repeated, a third of them ending with an exclamation mark."""
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
    """The texts reach every outcome, without which the other tests of these texts would prove little."""
    results = set(expected_outcomes(texts, drop_duplicates, near))

    assert "dropped by rule: a nine" in results
    assert ("dropped by duplicates" in results) == drop_duplicates
    assert ("dropped by near_duplicates" in results) == near
    assert len(results) > 10


@pytest.mark.parametrize("memory_bytes", [pytest.param(10 * 80, id="many ranges"), pytest.param(2**30, id="one range")])
@COMPARISONS
def test_two_passes_over_several_units_decide_by_definition(
    texts: list[str], tmp_path: Path, drop_duplicates: bool, near: bool, memory_bytes: int
) -> None:
    """Results do not depend on ranges or their order, even if units have no text or one. Comparing sends heartbeats."""
    cleaning = cleaning_with(drop_duplicates, near)
    bounds = [0, 0, 1, 30, 31, 90]
    units = [texts[begin:end] for begin, end in pairwise(bounds)]
    folder = PartialFolder(tmp_path / "out", DEFAULT_TIMEOUTS)
    folder.create()
    results: list[str] = []
    for number, unit in enumerate(units):
        results += first_pass(cleaning, unit, folder.first_pass(number))
    lease = CountingLease()
    decisions = DecisionPass(cleaning, folder, len(units), memory_bytes, group_units=2)
    num_ranges = compare_units(decisions, lease)
    drop_compared(results, decisions, folder)

    assert results == expected_outcomes(texts, drop_duplicates, near)
    if memory_bytes < 10**6:
        assert num_ranges > len(cleaning.compared_columns)
    assert lease.num_heartbeats >= len(units) * num_ranges


class CountingLease:
    """Counts heartbeats."""

    num_heartbeats = 0

    def heartbeat(self) -> None:
        self.num_heartbeats += 1


def first_pass(cleaning: Cleaning, unit: list[str], folder: Path) -> list[str]:
    """Decide about the texts in a unit, storing what later comparisons need."""
    folder.mkdir()
    files = ChecksummedFiles(folder)
    decider = FirstPass(cleaning)
    results = outcomes(decider.decide, unit[:9])
    decider.save_shingles(files.append)
    results += outcomes(decider.decide, unit[9:])
    decider.save(files.append)
    return results


def compare_units(decisions: DecisionPass, lease: Any) -> int:
    """Run all steps, each with its parts in reverse order. Return the number of ranges."""
    num_ranges = 0
    decisions.division().work(0, lease)
    for step in decisions.later_steps():
        assert step.done() == set()
        if step.lease_suffix == "compare":
            num_ranges = step.count
        for number in reversed(range(step.count)):
            assert not step.is_done(number)
            step.work(number, lease)
        assert step.done() == set(range(step.count))
    return num_ranges


def drop_compared(results: list[str], decisions: DecisionPass, folder: PartialFolder) -> None:
    """Replace results for texts dropped by a comparison."""
    dropped_by: list[int] = []
    for number in range(decisions.num_units):
        first_pass = FirstPassUnit(folder.first_pass(number))
        dropped_by += list(first_pass.dropped_by(decisions.dropped_rows(number)))
    compared = [number for number, result in enumerate(results) if not result.startswith("dropped by")]
    for number, rule_number in zip(compared, dropped_by, strict=True):
        if rule_number:
            results[number] = f"dropped by {decisions.cleaning.comparing_rules[rule_number - 1]}"


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
    """A slow rule changes no result, which must not depend on the machine. It is named even if it drops the text."""
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


@pytest.fixture
def unit_hashes() -> list[np.ndarray]:
    """Return the hashes of four units, uint64 [documents, 2]. Many hashes have the same first half."""
    draw = np.random.default_rng(0)
    return [draw.integers(0, (2**64 - 1, 3), (size, 2), np.uint64) // (2**60, 1) * (2**60, 1) for size in (30, 0, 1, 50)]


def test_hashes_that_differ_in_the_second_half_are_no_duplicates(tmp_path: Path, unit_hashes: list[np.ndarray]) -> None:
    earlier: set[tuple[int, ...]] = set()
    expected: list[list[int]] = []
    units = []
    for number, hashes in enumerate(unit_hashes):
        path = tmp_path / f"{number}"
        path.write_bytes(pack_columns([hashes]))
        units.append(SortedKeys(path, [HASH_RECORD]))
        expected.append([])
        for row, pair in enumerate(map(tuple, hashes.tolist())):
            if pair in earlier:
                expected[-1].append(row)
            earlier.add(pair)

    found = tmp_path / "found"
    found.write_bytes(find_duplicates(units, BucketRange(0, 0, NUM_BUCKETS), lambda: None))

    rows = UnitItems(found, ROW, len(units)).read(0, len(units))
    assert [unit_rows.tolist() for unit_rows in rows] == expected
    assert sum(map(len, expected)) > 10


def test_too_little_memory_is_refused() -> None:
    counts = np.full((1, NUM_BUCKETS), 1000)

    with pytest.raises(UserError, match="^comparison_bytes 79999: 512,000 documents need at least 78.12 KiB in each process"):
        divide_buckets(counts, 79_999)
    assert len(divide_buckets(counts, 80_000)) == NUM_BUCKETS
