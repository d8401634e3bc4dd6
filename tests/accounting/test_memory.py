"""The planner's activation bytes equal those that a real forward pass saves; its parts are consistent."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from megatape.accounting.activation_memory import FP8_BYTES, plan_activations, recomputed_bytes
from megatape.accounting.activations import activations
from megatape.accounting.extrapolation import changed
from megatape.accounting.memory import checkpoint_bytes, plan_memory
from megatape.accounting.parameters import count_parameters
from megatape.accounting.saved import saved_bytes
from megatape.accounting.shapes import build, on_shapes
from megatape.accounting.trace import run_pass
from megatape.config import ActivationCheckpointing, load_config
from megatape.distributed.mesh import make_mesh
from megatape.distributed.topology import Topology
from megatape.model.build import build_model
from megatape.utils.torch_internals import fused_on_shapes
from tests.helpers.plan_cases import configure
from tests.helpers.slow import slow_but
from tests.helpers.workers import run_workers

# Three sizes: the fixture's own, a wider one with grouped queries, a longer and deeper one.
SIZES: dict[str, dict[str, Any]] = {
    "small": {},
    "wide": {"model.hidden_size": 128, "model.num_kv_heads": 4, "model.mlp_size": 320, "model.vocab_size": 1000},
    "long": {"data.sequence_length": 256, "model.max_positions": 256, "model.num_layers": 5},
}
KINDS: dict[str, dict[str, Any]] = {
    "tape": {},
    "rope": {"model.encoding": "rope"},
    "lora": {
        "model.lora": {"rank": 3, "alpha": 1.0, "dropout": 0.1, "targets": ["query", "output", "up"]},
        "training.trainable": ["adapters"],
    },
    "interleaved": {"model.num_layers": 8, "model.nope_every": 3},
    "checkpointed": {"training.activation_checkpointing": "full"},
    "offload": {"training.activation_checkpointing": "offload", "model.num_kv_heads": 4},
    "chunks": {"training.chunk_tokens": 20},
    "selective": {"training.activation_checkpointing": "selective", "training.precision": "bfloat16", "model.qk_norm": True},
    "bfloat16": {"training.precision": "bfloat16", "model.attention_bias": "qkvo", "model.qk_norm": True},
}
# Every kind in the small size, and in one that is larger.
LARGER = {"tape": "wide", "lora": "wide", "bfloat16": "wide", "rope": "long", "checkpointed": "long", "selective": "long"}
LARGER |= {"offload": "long", "chunks": "long"}
LARGER["interleaved"] = "wide"
SMALL = [("small", kind) for kind in KINDS]

MODES: tuple[ActivationCheckpointing, ...] = ("none", "selective")


@pytest.mark.parametrize(("size", "kind"), slow_but(SMALL, [*SMALL, *((LARGER[kind], kind) for kind in KINDS)]))
def test_activations_are_those_saved(raw_config: dict[str, Any], size: str, kind: str) -> None:
    config = configure(raw_config, "x", SIZES[size] | KINDS[kind])
    model = build_model(
        config.model,
        trainable=config.training.trainable,
        frozen=config.training.frozen,
        activation_checkpointing=config.training.activation_checkpointing,
        chunk_tokens=config.training.chunk_tokens,
    )
    model.to(getattr(torch, config.training.precision))
    batch = config.training.micro_batch_size, config.data.sequence_length
    assert activations(config, on_gpu=False).total == saved_bytes(model, *batch)
    planned = activations(config, on_gpu=True).total
    with fused_on_shapes(), on_shapes(config.training.precision):  # a GPU's, of all layers and tokens
        assert planned == saved_bytes(build(config, config.model.num_layers), *batch)


@pytest.mark.parametrize("axis", slow_but(["tp"], ["tp", "sp", "cp"]))
def test_activations_of_ranks_of_a_sample(raw_config: dict[str, Any], tmp_path: Path, axis: str) -> None:
    config = configure(raw_config, "x", SIZES["long"] | {f"parallel.{axis}": 2})
    planned = {
        mode: activations(changed(config, "training", activation_checkpointing=mode), on_gpu=False).total for mode in MODES
    }
    for measured in run_workers("tests.accounting.test_memory:measure", 2, config.model_dump(), tmp_path):
        assert planned == measured


def measure(raw: dict[str, Any], topology: Topology) -> dict[ActivationCheckpointing, int]:
    config = configure(raw, "x", {})
    mesh, found = make_mesh(topology, config.parallel.axes), {}
    tensor, sequence, context = mesh["tensor"], mesh["sequence"], mesh["context"]
    for mode in MODES:
        model = build_model(config.model, tensor, sequence_axis=sequence, context_axis=context, activation_checkpointing=mode)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        found[mode] = saved_bytes(model, config.training.micro_batch_size, config.data.sequence_length)
    return found


@pytest.mark.slow
def test_divided_samples_divide_activations(raw_config: dict[str, Any]) -> None:
    """By S, but for two copies of A v and A e: by heads for attention's backward pass, and by tokens for what follows. Weights
    and their state are divided over all ranks, as they are over data-parallel ones."""
    sizes = {"data.sequence_length": 4096, "model.max_positions": 4096, "zero.stage": 3, "model.num_layers": 6}
    plans = {s: plan_memory(configure(raw_config, "x", sizes | {"parallel.sp": s}), 4, on_gpu=False).device for s in (1, 2, 4)}
    kept = {s: plan["activations"] + plan["position encoding"] for s, plan in plans.items()}
    assert 0.25 < kept[4] / kept[1] < 0.3
    assert kept[4] / kept[2] == pytest.approx(0.5, rel=0.01)
    assert plans[4]["largest temporary"] / plans[1]["largest temporary"] == pytest.approx(0.25, rel=0.02)
    for part in ("weights", "gradients", "master weights", "moments"):
        assert plans[4][part] == plans[1][part], part


def test_offloaded_streams(raw_config: dict[str, Any]) -> None:
    """x before every block, e - e_0 before all but the first, and once e_0 are counted in host memory and not on the device."""
    sizes = SIZES["long"] | {"training.activation_checkpointing": "full"}
    full, offloaded = (
        plan_memory(configure(raw_config, "x", sizes | changes), 1, on_gpu=True)
        for changes in ({}, {"training.activation_checkpointing": "offload"})
    )
    streams = 4 * 256 * ((2 * 5 - 1) * 32 + 4) * 4  # samples, tokens, layers, C = L R, R, bytes
    assert offloaded.host == {"activations": streams}
    assert full.device["activations"] + full.device["position encoding"] - streams == (
        offloaded.device["activations"] + offloaded.device["position encoding"]
    )
    assert full.device["largest temporary"] == offloaded.device["largest temporary"]


@pytest.mark.parametrize("mode", slow_but(["full"], ["none", "selective", "full", "offload"]))
def test_chunks_divide_what_is_made_again(raw_config: dict[str, Any], mode: str) -> None:
    """With chunks of a quarter of the tokens, of MLP and position update a quarter is there at a time."""
    changes = SIZES["long"] | {"training.activation_checkpointing": mode}
    again = {
        tokens: recomputed_bytes(configure(raw_config, "x", changes | {"training.chunk_tokens": tokens}), on_gpu=True)
        for tokens in (None, 256, 128, 64)
    }
    part = again[256] - again[128]
    assert part > 0 and again[128] - again[64] == part / 2
    assert again[256] == again[None] or mode in ("none", "selective")  # which keep that part without chunks


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "chunk"), [("none", "null"), ("offload", "8192")])
def test_memory_of_long_samples_is_linear(mode: str, chunk: str) -> None:
    """Saved activations of the 8B file grow like the tokens of a sample. docs/planning.md has the table."""
    shape = ["parallel.tp=1", "parallel.sp=8", "model.max_positions=131072"]
    training = [f"training.activation_checkpointing={mode}", f"training.chunk_tokens={chunk}"]
    saved = []
    for length in (32_768, 131_072):
        config = load_config("configs/tape_8b_gqa.json", [*shape, *training, f"data.sequence_length={length}"])
        plan = plan_memory(config, 64, on_gpu=True)
        saved.append(sum(plan.device[part] for part in ("activations", "position encoding")))
    assert saved[1] / saved[0] == pytest.approx(4, rel=0.001)


def test_parts(raw_config: dict[str, Any]) -> None:
    """What each stage shards over four data-parallel ranks, for the model's parameters."""
    raw_config["model"]["vocab_size"] = 301
    count = count_parameters(configure(raw_config, "x", {}).model).total
    parts, hosts = {}, {}
    for stage in (0, 1, 2, 3):
        config = configure(raw_config, "x", {"zero.stage": stage, "checkpoint.background": True})
        planned = plan_memory(config, 4, on_gpu=False)
        parts[stage], hosts[stage] = planned.device, planned.host
    for stage, (weights, gradients, state) in {0: (1, 1, 1), 1: (1, 1, 4), 2: (1, 4, 4), 3: (4, 4, 4)}.items():
        near = pytest.approx  # padding, and the vectors that stage 3 keeps whole
        assert parts[stage]["gradients"] == near(4 * count / gradients, rel=0.01)
        assert parts[stage]["moments"] == near(8 * count / state, rel=0.01)
        assert parts[stage]["master weights"] == near(4 * count / state if stage else 0, rel=0.01)
        assert parts[stage]["weights"] == near(4 * count / weights, rel=0.03)
        assert hosts[stage] == {"copies for checkpoints": near(12 * count / state, rel=0.01)}
    assert "gathered weights" in parts[3] and "gathered weights" not in parts[2]


def test_offloading_moves_to_the_host(raw_config: dict[str, Any]) -> None:
    changes = {"zero.stage": 3, "zero.offload_optimizer": True, "zero.offload_parameters": True}
    plain, offloaded = configure(raw_config, "x", {"zero.stage": 3}), configure(raw_config, "x", changes)
    before = plan_memory(plain, 2, on_gpu=False).device
    after = plan_memory(offloaded, 2, on_gpu=False)
    moved = {part: before[part] for part in ("weights", "gradients", "master weights", "moments")}
    assert after.host == moved | {"flattened gradients": before["gradients"]}
    assert not set(after.host) & set(after.device)


def test_a_second_copy_of_the_weights(raw_config: dict[str, Any]) -> None:
    """Half of the divided weights on each rank of a pair, beside a quarter of all."""
    plain, copies = (configure(raw_config, "x", {"zero.stage": 3, "zero.hpz_ranks": ranks}) for ranks in (1, 2))
    before, after = (plan_memory(config, 4, on_gpu=False).device["weights"] for config in (plain, copies))
    matrices = sum(weight.numel() for weight in run_pass(plain).model.parameters() if weight.numel() > 32)
    assert after - before == 4 * matrices / 2


@pytest.mark.parametrize("stage", slow_but([3], [0, 2, 3]))
def test_moving_average(raw_config: dict[str, Any], stage: int) -> None:
    """Four bytes a trained weight beside the master weights, wherever those are, and in checkpoints."""
    changes: dict[str, Any] = {"zero.stage": stage, "zero.offload_optimizer": stage == 3, "checkpoint.background": True}
    changes |= {"training.frozen": ["embeddings"]}
    without, config = (configure(raw_config, "x", changes | {"optimizer.ema_decay": decay}) for decay in (None, 0.999))
    before, after = (plan_memory(one, 2, on_gpu=False) for one in (without, config))
    average = before.device.get("moments", before.host.get("moments", 0)) / 2
    where = "host" if stage == 3 else "device"
    for part in ("device", "host"):
        expected = dict(getattr(before, part)) | ({"moving average": average} if part == where else {})
        if part == "host":
            expected["copies for checkpoints"] += average
        assert getattr(after, part) == expected
    trained = (checkpoint_bytes(config) - checkpoint_bytes(without)) / 4
    assert trained == count_parameters(config.model).total - 300 * 32


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_host_memory_is_deepspeeds(raw_config: dict[str, Any], tmp_path: Path, stage: int) -> None:
    """The tensors of a run of two ranks: stage 3 keeps gradients twice."""
    raw_config |= {"zero": {"stage": stage, "offload_optimizer": True}}
    raw_config["training"]["precision"] = "bfloat16"
    planned = plan_memory(configure(raw_config, "x", {}), 2, on_gpu=False).host
    for held in run_workers("tests.helpers.plan_cases:host_tensors", 2, raw_config, tmp_path / "workers"):
        assert planned == pytest.approx(held, rel=0.001)


@pytest.mark.fp8
def test_rounding_to_fp8(raw_config: dict[str, Any]) -> None:
    """Bytes at the peak of torchao's rounding, and in the plan where the largest matrix is tokens x model.mlp_size."""
    from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic  # seconds
    from torchao.float8.float8_training_tensor import LinearMMConfig

    matrix, held, peak = torch.randn(128, 512, dtype=torch.bfloat16), 0, 0
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        hp_tensor_to_float8_dynamic(matrix, torch.float8_e4m3fn, LinearMMConfig())
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    assert 0 <= peak - FP8_BYTES * matrix.numel() < 100  # the scale

    raw_config["training"] |= {"precision": "bfloat16", "fp8": "tensorwise"}
    config = configure(raw_config, "x", {"model.mlp_size": 512, "zero.stage": 2})
    assert plan_activations(config, on_gpu=False)["largest temporary"] == FP8_BYTES * matrix.numel()
