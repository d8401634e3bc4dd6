"""ZeRO's thresholds: one definition for DeepSpeed and for the planner."""

import subprocess
import sys
from typing import Any

import pytest

from megatape.accounting.shapes.trace import trace_micro_batch
from megatape.accounting.sharding.gathered_weights import gathered
from megatape.accounting.workload import Workload
from megatape.config import Config, parse_config
from megatape.nn.linear import Linear
from megatape.zero.deepspeed_config import stage3_limits
from megatape.zero.engine_options import engine_options
from tests.helpers.processes.load import scaled
from tests.helpers.processes.workers import ROOT


def test_deepspeed_gets_the_planned_limits(raw_config: dict[str, Any]) -> None:
    config = parse_config(raw_config | {"zero": {"stage": 3}}, "test")
    limits = stage3_limits(config.model, config.zero, tensor_size=1)
    section = engine_options(config, 1).deepspeed_config["zero_optimization"]
    assert section["stage3_prefetch_bucket_size"] == limits.prefetch
    assert section["stage3_max_live_parameters"] == limits.max_live_parameters
    # accounting/sharding/gathered_weights.py simulates DeepSpeed with this distance.
    assert section["stage3_max_reuse_distance"] == 0
    assert limits.persistence_threshold == config.model.hidden_size
    assert section["stage3_param_persistence_threshold"] == limits.persistence_threshold


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("changes", [{}, {"hidden_size": 256, "num_heads": 8, "num_kv_heads": 2, "mlp_size": 1024}])
def test_limits_follow_the_largest_layer(raw_config: dict[str, Any], changes: dict[str, int], tp: int) -> None:
    """A block's matrices, or a larger bucket, are gathered ahead. Two blocks are gathered at a time."""
    raw_config["model"] |= {"num_layers": 6, "vocab_size": 40} | changes
    raw_config["parallel"] = {"tp": tp}

    def configure(bucket_size: int) -> Config:
        return parse_config(raw_config | {"zero": {"stage": 3, "bucket_size": bucket_size}}, "test")

    config = configure(bucket_size=100)
    trace = trace_micro_batch(Workload.from_config(config))
    layers = [layer for layer in trace.model.blocks[0].modules() if isinstance(layer, Linear)]
    block_size = sum(layer.weight.numel() for layer in layers)
    limits = stage3_limits(config.model, config.zero, tp)
    assert limits.prefetch == block_size
    assert limits.max_live_parameters == 2 * block_size
    num_blocks_gathered = gathered(trace.events, 2, limits).live / block_size
    assert 1.5 < num_blocks_gathered < 2.7

    config = configure(bucket_size=3 * block_size)
    limits = stage3_limits(config.model, config.zero, tp)
    assert limits.prefetch == 3 * block_size
    assert limits.max_live_parameters == 6 * block_size


def test_configuration_needs_no_deepspeed() -> None:
    """The planner reads DeepSpeed's configuration without training."""
    code = "import sys, megatape.zero.engine_options; sys.exit('deepspeed' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=scaled(60))


def test_docs_list_all_deepspeed_keys(raw_config: dict[str, Any]) -> None:
    """The DeepSpeed section of docs/architecture.md names each key of the ZeRO settings."""
    raw_config["zero"] = {"stage": 3, "offload_optimizer": True, "offload_parameters": True}
    keys = set(engine_options(parse_config(raw_config, "test"), 1).deepspeed_config["zero_optimization"])
    _, section = (ROOT / "docs/architecture.md").read_text().split("\n## DeepSpeed\n")
    section, *_ = section.split("\n## ")
    missing = [key for key in keys - {"stage"} if f"`{key}`" not in section]
    assert missing == []
