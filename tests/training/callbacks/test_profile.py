"""--profile: a trace with named ranges on every rank, and a summary agreeing with the planner."""

import json
from pathlib import Path
from typing import Any

import pytest

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.traffic.rank_traffic import RankGroup, plan_traffic
from megatape.config import parse_config
from megatape.run_folder import RunFolder
from megatape.training.callbacks import profile as profile_module
from megatape.training.callbacks.profile import WARM_UP, Profile
from megatape.utils.text.units import format_bytes
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_context import make_context
from tests.helpers.runs.training_cases import TRAIN_CASES

NAMES = {"embedding", "attention", "position update", "MLP", "head and loss"}
BACKWARD = {"attention backward", "position update backward", "MLP backward", "head and loss backward"}
COLLECTIVES = {
    "all-gather (tensor ranks)",
    "all-to-all (tensor ranks)",
    "reduce-scatter (data ranks)",
    "all-gather (data ranks)",
}


def test_unwritable_trace_is_a_warning(
    raw_config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The run continues and still prints its summary."""
    (tmp_path / "profile").write_text("no folder")
    monkeypatch.setattr(profile_module, "summarize", lambda *_: "summary")
    nothing: Any = None
    Profile(make_context(parse_config(raw_config, "test"), RunFolder(tmp_path))).finish(nothing, nothing)
    assert capfd.readouterr().out.startswith("summary\nno trace: [Errno 17]")


@pytest.mark.slow
def test_trace_and_summary(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Profile two steps with everything nesting ranges: ZeRO-3, tensor ranks, recomputed blocks."""
    changes = {"parallel.tp": 2, "training.activation_checkpointing": "full", "training.steps": WARM_UP + 3}
    cases = [
        {"name": "traced", "set": changes, "profile": 2},
        {"name": "short", "set": {"training.steps": 1, "parallel.tp": 2}, "profile": 2},
    ]
    run_workers(TRAIN_CASES, 4, {"config": raw_config, "cases": cases}, tmp_path / "workers")
    run = Path(raw_config["run"]["directory"]) / "traced"
    for rank in range(4):
        events = json.loads((run / "profile" / f"rank{rank}.json").read_text())["traceEvents"]
        ranges = {event["name"] for event in events if event.get("cat") == "user_annotation"}
        assert NAMES | BACKWARD | COLLECTIVES <= ranges, rank
        steps = 2
        # Each layer runs attention forward, and again in the backward pass.
        calls = [event["name"] for event in events if event.get("cat") == "user_annotation"]
        assert calls.count("attention") == 2 * calls.count("attention backward") == 2 * steps * 2
    console = (tmp_path / "workers" / "rank0.log").read_text()
    assert "profile of 2 steps" in console
    assert "nothing profiled: the run took 1 step," in console
    raw_config["training"] |= {"activation_checkpointing": "full"}
    raw_config["parallel"] = {"tp": 2}
    config = parse_config(raw_config, "test")
    planned = plan_traffic(TrainingLayout.from_config(config, 4))
    for name, group in {"tensor": RankGroup.TENSOR, "data": RankGroup.REPLICAS}.items():
        for collective, count in planned.sent[group].items():
            line = next(line for line in console.splitlines() if line.startswith(f"{name} ranks, {collective}"))
            assert line.endswith(format_bytes(count)), line
