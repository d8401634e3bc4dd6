"""A run only uses attention backends working on its ranks, saying why it avoids the others."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from megatape.attention import rotating_backend
from megatape.attention.attend import select_backend
from megatape.attention.fa4.package import TRIED_VERSION
from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.errors import UserError
from megatape.model.requirements import attention_requirements
from megatape.model.smoke_test import SmokeTest
from megatape.registry import BACKENDS
from megatape.training.startup.engine import working_kernels
from tests.helpers.models import fa4_stand_in
from tests.helpers.models.failing_kernels import CPU, FRAGILE, ROTATION, backends_of, fragile_rotation, kernel_tests
from tests.helpers.models.small_models import model_with


def test_next_backend_replaces_a_failing_one(
    raw_config: dict[str, Any], second_rank: Topology, capsys: pytest.CaptureFixture[str]
) -> None:
    """The preferred backend fails, so the next one runs its layers, and all others."""
    for encoding, expected in {"tape": ("sdpa",), "rope": ("sdpa",), "fire": ("blocked",)}.items():
        raw_config["model"]["encoding"] = encoding
        with patch.dict(BACKENDS, FRAGILE | BACKENDS, clear=True):
            assert backends_of(parse_config(raw_config, "test"), CPU, second_rank) == expected
        told = (
            f"attention by {expected[-1]} instead of fragile: it failed when rank 1 tried it (RuntimeError: out of resource: "
            "shared memory, required 247000)\n"
        )
        assert capsys.readouterr().out == told


def test_forced_backend_is_not_replaced(raw_config: dict[str, Any], second_rank: Topology) -> None:
    raw_config["model"]["encoding"] = "rope"
    with patch.dict(BACKENDS, FRAGILE | BACKENDS, clear=True):
        raw_config["training"]["attention"] = "fragile"
        config = parse_config(raw_config, "test")
        with pytest.raises(ValueError, match="attention is fragile, but it failed when rank 1 .*: choose auto, or one of sdpa"):
            backends_of(config, CPU, second_rank)
    raw_config["training"]["attention"] = "flex"
    with pytest.raises(ValueError, match="attention is flex, which is compiled for GPUs"):
        backends_of(parse_config(raw_config, "test"), CPU, second_rank)


def test_backends_that_may_crash_are_tested_in_a_child(
    raw_config: dict[str, Any], second_rank: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens on a GPU, on a node's first rank: after crashing, the process itself could no longer use CUDA."""
    tried = []

    def failure(name: str, *arguments: Any) -> str:
        tried.append(name)
        return "its process ended with status -6"

    def here(name: str, *arguments: Any) -> None:
        tried.append(f"{name} here")

    raw_config["model"] |= {"encoding": "rope", "hidden_size": 16 * raw_config["model"]["num_heads"]}
    raw_config["training"]["attention"] = "flex"
    config = parse_config(raw_config, "test")
    monkeypatch.setattr(working_kernels, "smoke_test_in_child", failure)
    monkeypatch.setattr(working_kernels, "smoke_test_backend", here)
    with pytest.raises(
        UserError, match=r"attention is flex, but it failed when rank 1 tried it \(its process ended with status"
    ):
        backends_of(config, torch.device("cuda"), second_rank)
    assert tried == ["flex", "sdpa here"]
    tried.clear()
    assert backends_of(config, torch.device("cuda"), replace(second_rank, local_rank=1)) == ("flex",)
    assert tried == ["flex here"], "the first rank of the node found no fault"
    tried.clear()
    raw_config["model"]["encoding"] = "tape"
    raw_config["training"] |= {"attention": "auto", "precision": "bfloat16"}
    assert backends_of(parse_config(raw_config, "test"), torch.device("cuda"), second_rank) == ("sdpa",)
    assert tried == ["triton", "sdpa here"], "our own kernels, too, where they go first"


@pytest.mark.parametrize("version", [TRIED_VERSION, "4.0.0b40"])
def test_a_run_says_why_an_installed_backend_is_not_used(
    raw_config: dict[str, Any],
    second_rank: Topology,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    version: str,
) -> None:
    """Having several kernels, FlashAttention-4 needs a longer sample than others."""
    pytest.importorskip("triton")
    fa4_stand_in.install(monkeypatch, tmp_path, version)
    fa4_stand_in.pretend_gpu(monkeypatch, (9, 0))
    raw_config["model"] |= {"encoding": "tape", "num_heads": 2, "num_kv_heads": 2, "head_dim": 64, "hidden_size": 128}
    raw_config["model"]["max_positions"] = 4096
    raw_config["data"]["sequence_length"] = 4096
    raw_config["training"]["precision"] = "bfloat16"
    config = parse_config(raw_config, "test")
    tried = {}

    def succeed(name: str, layers: object, test: SmokeTest) -> None:
        tried[name] = test.tokens

    select_backend.cache_clear()
    monkeypatch.setattr(working_kernels, "smoke_test_in_child", succeed)
    monkeypatch.setattr(working_kernels, "smoke_test_backend", succeed)
    working = backends_of(config, torch.device("cuda"), second_rank)
    output = capsys.readouterr().out
    if version == TRIED_VERSION:
        assert (working, tried, output) == (("fa4",), {"fa4": 2304}, "")
    else:
        assert (working, tried) == (("triton",), {"triton": 256})
        reason = "was only tried with flash-attn-4 4.0.0b36, and 4.0.0b40 is installed"
        assert output == f"attention by triton instead of fa4, which {reason}\n"


def test_no_backend_works(raw_config: dict[str, Any], second_rank: Topology) -> None:
    with patch.dict(BACKENDS, FRAGILE, clear=True):
        raw_config["model"]["encoding"] = "rope"
        config = parse_config(raw_config, "test")
        with pytest.raises(ValueError, match=r"no attention backend works here: fragile: it failed when rank 1 tried it \(Run"):
            backends_of(config, CPU, second_rank)


def test_backends_are_tested_with_the_chosen_rotation(
    raw_config: dict[str, Any], second_rank: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smoke test and the model must use the same rotation."""
    monkeypatch.setattr(rotating_backend, "has_kernels", lambda device: True)
    monkeypatch.setitem(sys.modules, ROTATION, fragile_rotation())
    raw_config["model"]["encoding"] = "rope"
    config = parse_config(raw_config, "test")
    requirements = attention_requirements(config, "cpu")
    kernels = kernel_tests(config, second_rank)
    chosen = [kernels.working_backends(requirements, "auto", rotation_by_kernel) for rotation_by_kernel in (True, False)]
    assert chosen == [("blocked",), ("sdpa",)]
    inputs = torch.zeros(1, 8, dtype=torch.long), torch.arange(8)[None]
    with pytest.raises(RuntimeError, match="out of resource"):
        model_with(config.model, rotation_by_kernel=True)(*inputs)
    model_with(config.model)(*inputs)
