"""Training with compiled blocks is training without them."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from megatape.config import ModelConfig, parse_config
from megatape.distributed.topology import Topology
from megatape.model.build import build_model
from megatape.model.compilation import CompiledBlock
from megatape.model.layout import Layout
from megatape.model.options import Kernels, TrainingOptions
from megatape.model.transformer import Transformer
from megatape.training.startup import build_engine
from tests.helpers.models.small_models import model_with
from tests.helpers.planner.plan_cases import configure
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.case_runs import assert_no_errors
from tests.helpers.runs.run_folders import compare
from tests.helpers.runs.training_cases import train_cases


@pytest.mark.slow
def test_compiled_equals_eager(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Losses, norms, weights and moments of two steps under ZeRO in which blocks are recomputed, with evaluations."""
    raw_config["model"] |= {"num_layers": 9, "num_kv_heads": 4}  # layers share graphs: a function may have eight
    raw_config["training"] |= {"steps": 2, "activation_checkpointing": "full"}
    raw_config["optimizer"]["eps"] = 1e-2  # by default AdamW makes whole steps of gradients that are only rounding
    raw_config["evaluation"]["interval"] = 1
    raw_config["zero"] = {"stage": 2}
    cases = [
        {"name": "eager", "set": {"training.compile": False}},
        {"name": "compiled", "set": {"training.compile": True}},
    ]
    payload = {"config": raw_config, "cases": cases}

    (result,) = run_workers("tests.end_to_end.test_compile:train", 1, payload, tmp_path / "workers")

    # The norm in training, in evaluation and for the position view; the MLP's part in the last and the other blocks; the
    # position update in the first and the other blocks.
    assert result["graphs"] == 7
    assert result["breaks"] == 0
    assert "training.compile needs a C++ compiler" in result["error"]
    assert result["left to our kernel"] == {"tape": True, "tape_vector": False}
    compare(tmp_path / "run" / "eager", tmp_path / "run" / "compiled", step=2)


def train(payload: dict[str, Any], topology: Topology) -> dict[str, Any]:
    """Train the cases without the last stage of compiling, which takes a minute to make C++, then without a C++ compiler.

    Returns:
        Number of graphs and of their breaks, the error without a compiler, and by encoding whether the position update stays
        as it is with our attention: TAPE's, which our kernel knows, and another.
    """
    from torch._dynamo.utils import counters
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    def build_without_inductor(config: ModelConfig, layout: Layout, kernels: Kernels, training: TrainingOptions) -> Transformer:
        if kernels.compiler is not None:
            kernels = replace(kernels, compiler="aot_eager_decomp_partition")
        return build_model(config, layout, kernels, training)

    with patch.object(build_engine, "build_model", build_without_inductor):
        results = train_cases(payload, topology)
    assert_no_errors(results)
    graphs = counters["stats"]["unique_graphs"]
    breaks = len(counters["graph_break"])
    with patch.object(cpp_builder, "get_cpp_compiler", side_effect=InvalidCxxCompiler()):
        raw = payload["config"] | {"training": payload["config"]["training"] | {"compile": True}}
        (refused,) = train_cases({"config": raw, "cases": [{"name": "without"}]}, topology)
    left_to_kernel = {}
    for encoding in ("tape", "tape_vector"):
        config = parse_config(payload["config"] | {"model": payload["config"]["model"] | {"encoding": encoding}}, encoding)
        block = model_with(config.model, backends=("triton",), update_by_kernel=True, compiler="eager").blocks[0]
        assert isinstance(block, CompiledBlock)
        left_to_kernel[encoding] = "forward" not in vars(block.position)
    return {"graphs": graphs, "breaks": breaks, "error": refused["error"], "left to our kernel": left_to_kernel}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"zero.stage": 3}, "zero.stage 3, which gathers weights in hooks"),
        ({"parallel.tp": 2}, "parallel.tp 2, whose exchanges"),
        (
            {"training.activation_checkpointing": "selective"},
            "training.activation_checkpointing selective, since",
        ),
        (
            {
                "model.lora": {"rank": 2, "alpha": 2.0, "targets": ["query"]},
                "training.trainable": ["adapters"],
            },
            "model.lora, whose dropout",
        ),
    ],
    ids=["stage 3", "tensor-parallel", "selective", "lora"],
)
def test_what_cannot_be_compiled_is_refused(raw_config: dict[str, Any], settings: dict[str, Any], expected: str) -> None:
    raw_config["training"]["compile"] = True
    raw_config["zero"] = {"stage": 2}
    with pytest.raises(ValueError, match=f"training.compile does not support {expected}"):
        configure(raw_config, "test", settings)
