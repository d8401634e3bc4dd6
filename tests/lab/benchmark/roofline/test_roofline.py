"""Estimates in a table, with targets and measurements."""

import json
from pathlib import Path

import pytest

from megatape.errors import UserError
from megatape.lab.benchmark.roofline import estimates, roofline
from megatape.tools.planner.kernels.operations import Attention, AttentionBackend, Direction, KernelKind, Operation, Work
from tests.helpers.checks.cells import cells


@pytest.mark.slow
def test_report(tmp_path: Path) -> None:
    """Fused and compiled steps move fewer bytes. Ratios are to the fastest implemented RoPE. Measured times are shown."""
    pytest.importorskip("triton")
    measured = tmp_path / "results.jsonl"
    measured.write_text(json.dumps({"key": "step 155m/tape/triton/compiled", "seconds": 0.1234}) + "\n")
    paragraphs: list[str] = []
    roofline.report("h200", measured, paragraphs.append, tiny=True, step_targets={"155m": 1.1})
    steps, targets = ([cells(line) for line in paragraphs[index].splitlines()[2:]] for index in (3, 5))
    moved = {tuple(row[:3]): int(row[8]) for row in steps}
    assert len(moved) == 2 * (2 + 3)
    for (encoding, attention, mode), count in moved.items():
        if mode != "eager":
            assert count < moved[encoding, attention, "eager"]
    assert moved["tape", "triton", "compiled"] < moved["tape", "sdpa", "compiled"]
    for mode in ("eager", "compiled"):
        assert moved["tape", estimates.ONE_PASS, mode] == moved["tape", "triton", mode]
    assert [row[10] for row in steps if row[10]] == ["123.4"]
    ratios = {(row[1], row[2]): row[4] for row in steps if row[0] == "tape"}
    assert min(float(row[4]) for row in steps if row[0] == "rope" and row[1] in estimates.IMPLEMENTED) == 1
    for row, attentions in zip(targets[:2], (estimates.IMPLEMENTED, [estimates.ONE_PASS]), strict=True):
        best = min(ratio for (attention, _), ratio in ratios.items() if attention in attentions)
        assert row[1] == best
        assert row[4] == ("yes" if float(best) <= 1.1 else "no")
    assert len(targets) == 2 + 1 + 2


def test_attention_in_one_pass() -> None:
    """One pass has 7 of our kernels' 10 backward products, at cuDNN's rates."""

    def work(backend: AttentionBackend) -> Work:
        forward, backward = (Attention(backend, direction, 64) for direction in Direction)
        return Work({Operation(forward, 3, 1): 2, Operation(backward, 10, 1): 1, Operation(KernelKind.PRODUCT, 5, 7): -1})

    works = {name: work(AttentionBackend(name)) for name in estimates.IMPLEMENTED}
    assert estimates.one_pass_work("rope", works) == {}
    assert estimates.one_pass_work("tape", works) == {
        estimates.ONE_PASS: Work(
            {
                Operation(Attention(AttentionBackend.SDPA, Direction.FORWARD, 64), 3, 1): 2,
                Operation(Attention(AttentionBackend.SDPA, Direction.BACKWARD, 64), 7, 1): 1,
                # torch.compile saves this product.
                Operation(KernelKind.PRODUCT, 5, 7): -1,
            }
        )
    }


def test_triton_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install triton"):
        roofline.report("h200", None, print)
