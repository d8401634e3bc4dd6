"""A position encoding from outside the package: its class, its code for exported models, and one registry line are all it
takes."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from megatape.attention.operation import Attends
from megatape.checkpoint.reader import CheckpointReader
from megatape.config import parse_config
from megatape.hf.export import export
from megatape.hf.families import family_of
from megatape.hf.loading import load_exported
from megatape.model.build import build_model
from megatape.model.encodings.encoding import Encoding, Features, LayerBias
from megatape.parallel.mesh import Axis
from megatape.parallel.parameters import parameter
from megatape.plan.report import report
from megatape.registry import ENCODINGS, EncodingEntry
from megatape.runtime.topology import Topology
from tests import bounds
from tests.bounds import assert_close
from tests.training.cases import train_cases
from tests.workers import run_workers

START = 0.25


class SlopeBias(LayerBias):
    """-slope times distance with a learned slope for each head."""

    def __init__(self, num_heads: int, axis: Axis) -> None:
        super().__init__()
        self.slope = parameter((num_heads,), axis, 0, init=START, lr_scale=3.0)

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        return (-self.slope.float()[:, None] * torch.arange(q.shape[1], dtype=torch.float32, device=q.device),)


class LearnedSlopes(Encoding):
    """ALiBi with slopes that are learned."""

    attends: ClassVar[Attends] = "distance bias"

    def bias(self, axis: Axis) -> LayerBias:
        return SlopeBias(self.config.num_heads, axis)


EXPORTED = """
import torch
from torch import Tensor, nn
from transformers import initialization as init

from .encoding import Encoding, LayerBias


class SlopeBias(LayerBias):
    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.empty(num_heads))

    def forward(self, distance: Tensor, state: Tensor | None) -> Tensor:
        return (-self.slope.float()[:, None, None] * distance)[None]

    def init_weights(self, std: float) -> None:
        init.constant_(self.slope, 0.25)


class LearnedSlopes(Encoding):
    def bias(self) -> LayerBias:
        return SlopeBias(self.config.num_attention_heads)
"""
FILE = "encoding_learned_slopes"
LINE = {"learned_slopes": EncodingEntry(f"{__name__}:LearnedSlopes", "learned slopes", f"{FILE}:LearnedSlopes")}


def train(payload: dict[str, Any], topology: Topology) -> list[dict[str, Any]]:
    """train_cases in a process that knows the encoding."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENCODINGS, *next(iter(LINE.items())))
        return train_cases(payload, topology)


@pytest.mark.slow
def test_it_trains_plans_and_exports(raw_config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{FILE}.py").write_text(EXPORTED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(ENCODINGS, *next(iter(LINE.items())))
    raw_config["model"]["encoding"] = "learned_slopes"
    case = {"name": "new", "set": {"zero.stage": 3, "parallel.tp": 2}}
    (answers, _) = run_workers(f"{__name__}:train", 2, {"config": raw_config, "cases": [case]}, tmp_path / "workers")
    assert answers == [{"step": 0, "samples": 0}]

    checkpoint = CheckpointReader(tmp_path / "run" / "new" / "checkpoints" / "step-00000004")
    slope = checkpoint.tensor("blocks.0.attention.bias.slope")
    assert slope.shape == (8,) and slope.unique().numel() == 8  # each head's went its own way
    assert 1e-3 < float((slope - START).abs().max()) < 4 * 3 * 1e-2  # four Adam steps at three times the learning rate

    assert "parameters" in report(parse_config(raw_config, "test"))

    export(checkpoint, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").glob("*.py")}
    assert names == {
        "configuration_tape.py",
        "modeling_tape.py",
        "attention.py",
        "cache.py",
        "encoding.py",
        "encodings.py",
        f"{FILE}.py",
    }
    model = build_model(checkpoint.config.model)
    model.load_state_dict({name: checkpoint.tensor(name) for name in checkpoint.names()})
    tokens = torch.arange(3, 33)[None]
    with torch.no_grad():
        expected = model(tokens, torch.arange(30)[None])
        assert_close(load_exported(tmp_path / "out").model(tokens).logits, expected, bounds.EXPORTED)
        remote = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
        assert remote.__module__.startswith("transformers_modules.")
        assert_close(remote(tokens).logits, expected, bounds.EXPORTED)


def test_without_exported_code_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, raw_config: dict[str, Any]) -> None:
    monkeypatch.setitem(ENCODINGS, "learned_slopes", EncodingEntry(f"{__name__}:LearnedSlopes", "learned slopes"))
    raw_config["model"]["encoding"] = "learned_slopes"
    with pytest.raises(ValueError, match=r"no architecture of exported models has model\.encoding learned_slopes"):
        family_of(parse_config(raw_config, "test"))
