"""Encodings from outside the package that embed positions, add a bias, or read the content."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.accounting.flops import forward_flops
from megatape.accounting.parameters import count_parameters
from megatape.checkpoint.reader import CheckpointReader
from megatape.config import ModelConfig
from megatape.imports import import_given
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
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


def test_identities() -> None:
    """They equal NoPE with a table of zeros, and with equal gates that cancel."""
    expected = random_model(encoding="nope")
    inputs = tokens_and_positions()
    for encoding, name in (("forgetting", "features.gate.weight"), ("learned_absolute", "table")):
        model = random_model(encoding=encoding)
        model.load_state_dict(expected.state_dict(), strict=False)
        assert not torch.allclose(model(*inputs), expected(*inputs), atol=1e-3), encoding
        for parameter in (parameter for key, parameter in model.named_parameters() if key.endswith(name)):
            parameter.data.zero_()
        if encoding == "forgetting":  # equal gates of neighbors cancel: c is constant
            for block in model.blocks:
                block.attention.sequence_features.weight.data.fill_(-1.0)
        assert_close(model(*inputs), expected(*inputs), bounds.LOGITS)


@pytest.mark.parametrize("encoding", FILES)
def test_documents_packed_together_are_as_if_alone(encoding: str) -> None:
    model = random_model(encoding=encoding)
    tokens, _ = tokens_and_positions(batch=1, length=150)
    borders = [0, 7, 60, 100, 150]
    pieces = [tokens[:, start:stop] for start, stop in itertools.pairwise(borders)]
    alone = torch.cat([model(piece, torch.arange(piece.shape[1])[None]) for piece in pieces], dim=1)
    positions = torch.cat([torch.arange(piece.shape[1]) for piece in pieces])[None]
    starts = torch.cat([torch.full((piece.shape[1],), start) for start, piece in zip(borders, pieces, strict=False)])[None]
    packed = model(tokens, positions, starts)
    assert_close(packed, alone, bounds.LOGITS)
    for name, weight in model.named_parameters():
        if name.startswith(("position", "blocks.0.attention")):
            found, expected = (torch.autograd.grad(x.square().sum(), weight, retain_graph=True)[0] for x in (packed, alone))
            assert_close(found, expected, bounds.PACKED_GRADIENTS, what=name)


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
    """ZeRO-3 on two tensor-parallel and two data- or sequence-parallel ranks has the weights of one process."""
    raw_config["model"]["encoding"] = encoding
    raw_config["data"]["mask_documents"] = True
    raw_config["training"]["steps"] = 3
    raw_config["optimizer"]["eps"] = 1e-3  # keeps Adam from making a step of the rounding of a gradient near zero
    config = tmp_path / "config.json"
    config.write_text(json.dumps(raw_config))
    found = []
    divided = ["zero.stage=3", "parallel.tp=2", "training.micro_batch_size=2"]
    for number, changes in enumerate((["zero.stage=0"], divided, [*divided, "parallel.sp=2"])):
        folder = tmp_path / f"run{number}"
        ranks = 4 if number else 1
        words = ["pretrain", "--import", str(ROOT / FILES[encoding]), "--config", str(config)]
        for change in [f"run.directory={folder}", *changes]:
            words += ["--set", change]
        with Workers(words, ranks, tmp_path / f"workers{number}") as workers:
            assert workers.statuses() == [0] * ranks, workers.logs()
        found.append(CheckpointReader(folder / "checkpoints" / "step-00000003"))
    assert found[0].names() == found[1].names() == found[2].names()
    own = [name for name in found[0].names() if "position" in name or "features" in name or "bias" in name]
    assert own
    for name in found[0].names():
        for divided_run in found[1:]:
            assert_close(divided_run.tensor(name), found[0].tensor(name), bounds.TRAINED, what=name)
