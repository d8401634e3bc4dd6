"""Encodings from outside the package, embedding positions, adding a bias, or reading the content."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from megatape.accounting.whole_model.flops import forward_flops
from megatape.accounting.whole_model.parameters import count_parameters
from megatape.checkpoint.load.reader import CheckpointReader
from megatape.config import ModelConfig
from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Encoding, PositionEmbedding
from megatape.errors import UserError
from megatape.imports import import_given
from megatape.registry import ENCODINGS, EncodingEntry
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.packed_documents import assert_documents_are_independent
from tests.helpers.models.small_models import SHAPE, random_model, tokens_and_positions
from tests.helpers.processes.workers import ROOT, Workers

FILES = {
    "kerple": "examples/add_encoding.py",
    "learned_absolute": "examples/learned_absolute.py",
    "forgetting": "examples/forgetting.py",
}


@pytest.fixture(autouse=True)
def registered(own_modules: None) -> Iterator[None]:
    for file in FILES.values():
        import_given(str(ROOT / file))
    yield


def test_forgetting_with_equal_gates_is_nope() -> None:
    """Neighboring gates are equal and cancel, keeping c constant."""
    inputs = tokens_and_positions()
    expected = random_model(encoding="nope")
    model = random_model(encoding="forgetting")
    model.load_state_dict(expected.state_dict(), strict=False)
    assert not torch.allclose(model(*inputs), expected(*inputs), atol=1e-3)
    for block in model.blocks:
        block.attention.get_submodule("token_features.gate").weight.data.zero_()
        block.attention.sequence_features.weight.data.fill_(-1.0)
    assert_close(model(*inputs), expected(*inputs), bounds.LOGITS)


def test_learned_absolute_with_a_zero_table_is_nope() -> None:
    inputs = tokens_and_positions()
    expected = random_model(encoding="nope")
    model = random_model(encoding="learned_absolute")
    model.load_state_dict(expected.state_dict(), strict=False)
    assert not torch.allclose(model(*inputs), expected(*inputs), atol=1e-3)
    for name, weight in model.named_parameters():
        if name.endswith("table"):
            weight.data.zero_()
    assert_close(model(*inputs), expected(*inputs), bounds.LOGITS)


class PlainLinear(PositionEmbedding):
    """Position embedding by a torch layer, which does not declare its parameters."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.projection = nn.Linear(1, size, bias=False)


class Undeclared(Encoding):
    def embedding(self, axis: Axis) -> PositionEmbedding:
        return PlainLinear(self.config.hidden_size)


def test_a_parameter_without_a_declaration_is_named() -> None:
    """Drawing the initial weights of an undeclared parameter fails with its name."""
    ENCODINGS["undeclared"] = EncodingEntry(f"{__name__}:Undeclared", "not declared")
    with pytest.raises(
        UserError,
        match=r"parameter position_embedding\.projection\.weight does not declare .*: make it by megatape\.nn\.parameters",
    ):
        random_model(encoding="undeclared")


@pytest.mark.parametrize("encoding", FILES)
def test_packed_documents_are_independent(encoding: str) -> None:
    model = random_model(encoding=encoding)
    weight_names = [name for name, _ in model.named_parameters() if name.startswith(("position", "blocks.0.attention"))]
    assert_documents_are_independent(model, [0, 7, 60, 100, 150], weight_names)


def test_costs_are_counted() -> None:
    plain = ModelConfig(**SHAPE | {"encoding": "nope"})
    sizes = {"kerple": 3 * 8, "learned_absolute": 64 * 32, "forgetting": 3 * (4 * 32 + 4)}
    flops = {"kerple": 0, "learned_absolute": 0, "forgetting": 2 * 40 * 3 * 4 * 32}
    for encoding in FILES:
        config = ModelConfig(**SHAPE | {"encoding": encoding})
        assert count_parameters(config).position == sizes[encoding]
        assert forward_flops(config, 40) - forward_flops(plain, 40) == flops[encoding]


@pytest.mark.slow
@pytest.mark.parametrize("encoding", FILES)
def test_ranks_train_as_one_process(encoding: str, raw_config: dict[str, Any], tmp_path: Path) -> None:
    """ZeRO-3 on two tensor-parallel and two data- or sequence-parallel ranks trains the same weights as one process."""
    raw_config["model"]["encoding"] = encoding
    raw_config["data"]["mask_documents"] = True
    raw_config["training"]["steps"] = 3
    # A large eps keeps Adam's updates smooth (see test_stages.py).
    raw_config["optimizer"]["eps"] = 1e-3
    config = tmp_path / "config.json"
    config.write_text(json.dumps(raw_config))
    topologies = {
        "one": ["zero.stage=0"],
        "data": ["zero.stage=3", "parallel.tp=2", "training.micro_batch_size=2"],
        "sequence": ["zero.stage=3", "parallel.tp=2", "training.micro_batch_size=2", "parallel.sp=2"],
    }
    trained = {}
    for name, changes in topologies.items():
        folder = tmp_path / name
        num_ranks = 4
        if name == "one":
            num_ranks = 1
        words = ["pretrain", "--import", str(ROOT / FILES[encoding]), "--config", str(config)]
        for change in [f"run.directory={folder}", *changes]:
            words += ["--set", change]
        with Workers(words, num_ranks, tmp_path / f"workers-{name}") as workers:
            assert workers.statuses() == [0] * num_ranks, workers.logs()
        trained[name] = CheckpointReader(folder / "checkpoints" / "step-00000003")
    expected = trained["one"]
    assert any("position" in name or "features" in name or "bias" in name for name in expected.names())
    for topology in ("data", "sequence"):
        assert trained[topology].names() == expected.names()
        for name in expected.names():
            assert_close(trained[topology].tensor(name), expected.tensor(name), bounds.TRAINED, what=name)
