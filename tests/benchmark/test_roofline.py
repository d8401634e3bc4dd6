"""The table of estimates beside targets and measurements."""

import json
from pathlib import Path

import pytest

from megatape.benchmark import roofline
from tests.helpers.cells import cells


@pytest.mark.slow
def test_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is fused or compiled moves fewer bytes; ratios are to the fastest RoPE that we have; measured times stand beside."""
    pytest.importorskip("triton")
    monkeypatch.setattr(roofline, "STEP_TARGETS", {"155m": 1.1})
    measured = tmp_path / "results.jsonl"
    measured.write_text(json.dumps({"key": "step 155m/tape/triton/compiled", "seconds": 0.1234}) + "\n")
    paragraphs = list(roofline.report("h200", measured, tiny=True))
    steps, targets = ([cells(line) for line in paragraphs[index].splitlines()[2:]] for index in (3, 5))
    moved = {tuple(row[:3]): int(row[8]) for row in steps}
    assert len(moved) == 10
    for (encoding, attention, mode), count in moved.items():
        assert count < moved[encoding, attention, "eager"] or mode == "eager"
    assert moved["tape", "triton", "compiled"] < moved["tape", "sdpa", "compiled"]
    for mode in ("eager", "compiled"):
        assert moved["rope", roofline.ROTATED_AT_ONCE, mode] < moved["rope", "sdpa", mode]
    ours = [float(row[4]) for row in steps if row[0] == "rope" and row[1] != roofline.ROTATED_AT_ONCE]
    assert min(ours) == 1
    assert [row[10] for row in steps if row[10]] == ["123.4"]
    best = min(float(row[4]) for row in steps if row[0] == "tape")
    assert float(targets[0][1]) == best and [row[4] for row in targets[:1]] == ["yes" if best <= 1.1 else "no"]
    assert len(targets) == 3
