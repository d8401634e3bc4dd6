"""Costs of encodings: counts, ratios over rounds, and the report."""

import re

import pytest
import torch

from megatape.config import ModelConfig
from megatape.model.accounting import count_parameters, forward_flops, saved_bytes
from megatape.model.build import build_model
from megatape.registry import ENCODINGS
from megatape.study import efficiency, timing
from megatape.study.choice import parse_encodings, with_encoding
from megatape.study.efficiency import PARTS, costs_table, paper_config, prepare, report, study, time_part
from megatape.study.timing import Spread, interleaved, spread
from tests.model.builder import SHAPE
from tests.study.cells import cells

CPU = torch.device("cpu")
SMALL = ModelConfig(**SHAPE)


def test_every_encoding_runs_every_part_and_is_counted() -> None:
    """The bytes are those of the accounting; for encodings with a state, the blocks keep less than the whole model."""
    subjects = prepare(SMALL, list(ENCODINGS), 32, 2, CPU)
    assert list(subjects) == list(ENCODINGS)
    for name, subject in subjects.items():
        for part in PARTS.values():
            part(subject)
        assert all(parameter.grad is None for parameter in subject.model.parameters())
        cost, config = subject.cost(32), with_encoding(SMALL, name)
        assert (cost.parameters, cost.flops) == (count_parameters(config).total, forward_flops(config, 32))
        assert cost.saved == saved_bytes(build_model(config), 2, 32), name
        assert 0 < cost.saved_blocks < cost.saved


def test_activation_checkpointing_is_measured_beside_none() -> None:
    """Of the whole model and of the blocks alone, which the study runs by itself."""
    subjects = prepare(SMALL, ["tape"], 32, 2, CPU, ("selective", "full"))
    assert list(subjects) == ["rope", "tape", "rope, selective", "rope, full", "tape, selective", "tape, full"]
    none, selective, full = (subjects[name].cost(32) for name in ("tape", "tape, selective", "tape, full"))
    assert full.saved < selective.saved < none.saved
    assert full.saved_blocks < selective.saved_blocks < none.saved_blocks


def test_shared_weights_are_shared() -> None:
    """All encodings share one copy of the weights they have in common."""
    tape, rope = (prepare(SMALL, ["tape"], 8, 1, CPU)[name].model for name in ("tape", "rope"))
    other = prepare(SMALL, ["tape", "rope"], 8, 1, CPU)
    pointers = {name: dict(other[name].model.named_parameters()) for name in ("tape", "rope")}
    for name, parameter in pointers["rope"].items():
        assert parameter.data_ptr() == pointers["tape"][name].data_ptr(), name
        assert torch.equal(dict(rope.named_parameters())[name], dict(tape.named_parameters())[name])


def test_rounds_run_all_actions_in_turn_and_drop_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    clock = iter([9.0, 9.0, 1.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(timing, "timed", lambda action, *_: (action(), next(clock))[1])
    seconds = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2, CPU)
    assert order == ["a", "b"] * 3
    assert seconds == {"a": [1.0, 3.0], "b": [2.0, 4.0]}


def test_ratios_are_of_the_same_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that slows down to half its speed changes the medians, not the ratio."""
    taken = {"rope": [1.0, 2.0, 1.0], "tape": [1.5, 3.0, 1.5]}
    monkeypatch.setattr(efficiency, "interleaved", lambda actions, rounds, device, clock: taken)
    timings = time_part(prepare(SMALL, ["rope", "tape"], 8, 1, CPU), "inference", 3, CPU)
    assert timings["tape"].ratio == Spread(1.5, 1.5, 1.5)
    assert timings["tape"].seconds == Spread(1.5, 1.5, 2.25)


def test_quartiles() -> None:
    assert spread([4.0, 1.0, 3.0, 2.0, 5.0]) == Spread(3.0, 2.0, 4.0)
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0)


def test_time_is_that_of_the_action() -> None:
    import time

    assert 0.02 <= timing.timed(lambda: time.sleep(0.02), CPU) < 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_report_on_a_gpu() -> None:
    text = "\n".join(report(SMALL, list(ENCODINGS), 32, 2, 2, torch.device("cuda")))
    assert "bfloat16" in text and "CUDA events" in text


def test_report_reproduces_the_paper_first_and_measures_the_baseline_always() -> None:
    paragraphs = list(report(SMALL, ["tape"], 16, 1, 1, CPU))
    assert "320.91 G FLOPs and 160.46 G MACs here, 321.10 and 160.46 in the paper" in paragraphs[0]
    assert "float32 on a CPU" in paragraphs[1] and "3 layers of width 32, N 16, batch 1" in paragraphs[1]
    for text in paragraphs[2:]:
        assert re.findall(r"`(\w+)`", text) == ["rope", "tape"]
        assert "paper" not in text  # not the paper's shape
    assert len(paragraphs) == 3 + len(PARTS)


def test_the_papers_columns_stand_beside_ours() -> None:
    config = paper_config()
    cost = efficiency.Cost(count_parameters(config).total, forward_flops(config, 1024), 2**20, 2**20)
    line = costs_table({"rope": cost, "nope": cost}, in_paper=True).splitlines()
    assert cells(line[2])[:7] == ["`rope`", "154.89", "154.89", "320.91", "321.10", "160.46", "160.46"]
    assert cells(line[3])[:7] == ["`nope`", "154.89", "", "320.91", "", "160.46", ""]
    assert efficiency.is_paper_shape(config, 1024) and not efficiency.is_paper_shape(config, 512)


def test_encodings_by_name() -> None:
    assert parse_encodings("tape, rope") == ["tape", "rope"]
    with pytest.raises(ValueError, match=r"'ropes' is not an encoding: choose from tape, .*, nope"):
        parse_encodings("tape,ropes")
    with pytest.raises(ValueError, match="tape is listed twice"):
        parse_encodings("tape,tape")
    with pytest.raises(ValueError, match="encoding rope: head_dim 7 is odd"):
        with_encoding(ModelConfig(**SHAPE | {"encoding": "nope", "head_dim": 7}), "rope")
    scaled = ModelConfig(**SHAPE | {"scaling": {"kind": "linear", "factor": 2.0}})
    assert with_encoding(scaled, "tape").scaling and with_encoding(scaled, "fire").scaling is None


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"encodings": ""}, "'' is not an encoding"),
        ({"file": "nowhere.json"}, "no configuration at nowhere.json"),
    ],
    ids=str,
)
def test_bad_input(changes: dict[str, object], message: str) -> None:
    arguments = {"file": None, "layers": 1, "length": 8, "batch": 1, "encodings": "rope", "rounds": 1}
    with pytest.raises((ValueError, OSError), match=re.escape(message)):
        next(study(**arguments | changes))  # type: ignore[arg-type]
