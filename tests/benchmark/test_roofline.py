"""The table of estimates beside targets and measurements."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from megatape.benchmark import roofline
from megatape.errors import UserError
from megatape.plan.operations import Attention, Operation, Work
from tests.helpers.cells import cells


@pytest.mark.slow
def test_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is fused or compiled moves fewer bytes; ratios are to RoPE by cuDNN, as `sdpa` is; measured times stand beside."""
    pytest.importorskip("triton")
    monkeypatch.setattr(roofline, "STEP_TARGETS", {"155m": 1.1})
    measured = tmp_path / "results.jsonl"
    measured.write_text(json.dumps({"key": "step 155m/tape/triton/compiled", "seconds": 0.1234}) + "\n")
    paragraphs = list(roofline.report("h200", measured, tiny=True))
    steps, targets = ([cells(line) for line in paragraphs[index].splitlines()[2:]] for index in (3, 5))
    moved = {tuple(row[:3]): int(row[8]) for row in steps}
    assert len(moved) == 2 * 2 * 4
    for (encoding, attention, mode), count in moved.items():
        assert count < moved[encoding, attention, "eager"] or mode == "eager"
    assert moved["tape", "triton", "compiled"] < moved["tape", "sdpa", "compiled"]
    for encoding, mode in product(("rope", "tape"), ("eager", "compiled")):
        assert moved[encoding, roofline.CUDNN, mode] <= moved[encoding, "sdpa", mode]
    assert [row[10] for row in steps if row[10]] == ["123.4"]
    ratios = {(row[1], row[2]): row[4] for row in steps if row[0] == "tape"}
    assert min(float(row[4]) for row in steps if row[:2] == ["rope", roofline.CUDNN]) == 1
    for row, attentions in zip(targets[:3], (roofline.HERE, [roofline.CUDNN], [roofline.ONE_PASS]), strict=True):
        best = min(ratio for (attention, _), ratio in ratios.items() if attention in attentions)
        assert row[1] == best and row[4] == ("yes" if float(best) <= 1.1 else "no")
    assert len(targets) == 3 + 1 + 3


@pytest.mark.parametrize(("size", "forward", "backward", "moved"), [(64, 3, 7, 8), (128, 4, 10, 3)])
def test_attention_of_cudnn(size: int, forward: int, backward: int, moved: int) -> None:
    """Products and bytes by hand: one call over [v | e] of 64 + 64, two calls of 128, and one pass in each direction."""
    shape = roofline.shapes(tiny=True)["155m"]
    shape = replace(shape, model=shape.model.model_copy(update={"head_dim": size}))
    config = shape.config("tape", roofline.PRECISION, attention="triton")
    ours = Work(
        {Operation(Attention("triton", "forward", size), 3, 1): 2, Operation(Attention("triton", "backward", size), 4, 1): 1}
    )
    ours.update({Operation(Attention("triton", "backward", size), 6, 1): 1, Operation("product", 5, 7): -1})
    found = roofline._without_code(config, ours, layers=2, passes=2)
    expected = {roofline.CUDNN: (forward, backward), roofline.ONE_PASS: (3, 7)}
    for name, (of_forward, of_backward) in expected.items():
        flops = {"forward": 0.0, "backward": 0.0}
        for operation, times in found[name].items():
            if isinstance(operation.kind, Attention):
                assert operation.kind.backend == "sdpa"
                flops[operation.kind.direction] += operation.flops * times
        assert flops == pytest.approx({"forward": 2 * of_forward, "backward": of_backward})
        assert found[name][Operation("product", 5, 7)] == -1  # what torch.compile saves
    x = shape.batch * shape.length * shape.model.hidden_size * 2
    assert {kind: found[roofline.CUDNN][Operation("other", 0, kind * x)] for kind in (2, moved)} == {2: 2, moved: 2}


def test_triton_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install triton"):
        next(roofline.report("h200", None))
