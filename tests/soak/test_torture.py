"""Torturing runs under a supervisor."""

import json
from pathlib import Path

import pytest

from tests.soak.torture import Piece, faults_of_finished_runs, table, torture
from tests.soak.tortured_run import KINDS


@pytest.mark.slow
# A busy machine needs this long.
@pytest.mark.timeout(3600)
def test_a_minute(tmp_path: Path) -> None:
    """A run with four faults ends as an undisturbed one. The same call continues with the next run, until all are enough."""
    torture(4, 1.0, 3, tmp_path, steps=60)
    faults = faults_of_finished_runs(tmp_path / "torture.jsonl")
    assert len(faults) == 4
    assert all(fault["recovery"] > 0 for fault in faults)

    torture(4, 1.0, 3, tmp_path, steps=60)
    assert len(faults_of_finished_runs(tmp_path / "torture.jsonl")) == 4


def test_pieces_have_all_stages_and_ranks() -> None:
    pieces = [Piece.of_number(number) for number in range(1, 17)]
    assert len({(piece.stage, piece.tensor_ranks) for piece in pieces}) == 8
    assert {piece.background for piece in pieces} == {False, True}


def test_faults_of_unfinished_runs_are_not_counted(tmp_path: Path) -> None:
    journal = tmp_path / "torture.jsonl"
    fault = {"event": "fault", "kind": "kill a rank", "seconds": 700.0, "recovery": 2.5}
    other = {"event": "fault", "kind": "kill a rank", "recovery": 99.0}
    entries = [{"event": "piece"}, other, {"event": "piece"}, fault, {"event": "equal", "faults": 1}, {"event": "piece"}, other]
    journal.write_text("\n".join(json.dumps(entry) for entry in entries))
    lines = table(journal).splitlines()
    assert len(lines) == 3 + len(KINDS)
    (kill,) = [line for line in lines if line.startswith("| kill a rank ")]
    assert [cell.strip() for cell in kill.split("|")[2:5]] == ["1", "2.5", "2.5"]
