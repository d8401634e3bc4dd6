"""Training with compiled blocks is training without them."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from megatape.distributed.topology import Topology
from tests.helpers.planner.plan_cases import configure
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.case_runs import assert_no_errors
from tests.helpers.runs.compilers import without_inductor
from tests.helpers.runs.run_folders import compare
from tests.helpers.runs.training_cases import train_cases


@pytest.mark.slow
def test_compiled_equals_eager(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Losses, norms, weights and moments of two steps under ZeRO, with recomputed blocks, evaluations and a profile."""
    raw_config["model"] |= {"num_layers": 9, "num_kv_heads": 4}  # layers share graphs: a function may have eight
    raw_config["training"] |= {"steps": 2, "activation_checkpointing": "full"}
    # With the default eps, AdamW turns rounding errors in zero gradients into full steps.
    raw_config["optimizer"]["eps"] = 1e-2
    raw_config["evaluation"]["interval"] = 1
    raw_config["zero"] = {"stage": 2}
    cases = [
        {"name": "eager", "set": {"training.compile": False}},
        {"name": "compiled", "set": {"training.compile": True}, "profile": 1},
    ]
    payload = {"config": raw_config, "cases": cases}

    (result,) = run_workers("tests.end_to_end.test_compile:train", 1, payload, tmp_path / "workers")

    # The first block, the last one, and the others
    assert result["graphs"] == 3
    assert result["breaks"] == 0
    assert "training.compile needs a C++ compiler" in result["error"]
    compare(tmp_path / "run" / "eager", tmp_path / "run" / "compiled", step=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallel", "stage"),
    [({"tp": 2}, 2), ({"tp": 2}, 3), ({"sp": 2}, 2), ({"cp": 2}, 2), ({"cp": 2}, 3)],
    ids=["tensor", "tensor, stage 3", "sequence", "context", "context, stage 3"],
)
def test_ranks_exchange_tensors_within_a_graph(
    raw_config: dict[str, Any], tmp_path: Path, parallel: dict[str, int], stage: int
) -> None:
    """Sums over ranks are the same, so results differ by the rounding of a compiled block only."""
    raw_config["training"] |= {"steps": 2}
    raw_config["optimizer"]["eps"] = 1e-2
    raw_config["zero"] = {"stage": stage}
    raw_config["parallel"] = parallel
    cases = [
        {"name": "eager", "set": {"training.compile": False}},
        {"name": "compiled", "set": {"training.compile": True}},
    ]

    results = run_workers(
        "tests.end_to_end.test_compile:train", 2, {"config": raw_config, "cases": cases}, tmp_path / "workers"
    )

    for result in results:
        # The first block and the last one
        assert result["graphs"] == 2
        assert result["breaks"] == 0
    compare(tmp_path / "run" / "eager", tmp_path / "run" / "compiled", step=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{}, {"activation_checkpointing": "full"}, {"frozen": ["embeddings"]}],
    ids=["all saved", "recomputed", "frozen embeddings"],
)
def test_gathered_blocks_equal_eager(raw_config: dict[str, Any], tmp_path: Path, settings: dict[str, Any]) -> None:
    """At ZeRO 3, a compiled block is one graph without hooks. Uncompiled ones gather the weights of each module.

    With frozen embeddings, the first block's input needs no gradient: DeepSpeed would reduce its weights' gradients too early.
    """
    raw_config["model"]["num_layers"] = 4
    raw_config["training"] |= {"steps": 2, "micro_batch_size": 2} | settings
    raw_config["optimizer"]["eps"] = 1e-2
    raw_config["evaluation"]["interval"] = 1
    # Weights of later blocks are gathered ahead, but not those of all blocks.
    raw_config["zero"] = {"stage": 3, "bucket_size": 1000}
    cases = [
        {"name": "eager", "set": {"training.compile": False}},
        {"name": "compiled", "set": {"training.compile": True}},
    ]

    results = run_workers(
        "tests.end_to_end.test_compile:train", 2, {"config": raw_config, "cases": cases}, tmp_path / "workers"
    )

    for result in results:
        assert result["graphs"] == 3
        assert result["breaks"] == 0
    compare(tmp_path / "run" / "eager", tmp_path / "run" / "compiled", step=2)


def train(payload: dict[str, Any], topology: Topology) -> dict[str, Any]:
    """Train the cases without the last stage of compiling, which takes a minute to make C++, then without a C++ compiler.

    Returns:
        Number of graphs and of their breaks, and the error without a compiler.
    """
    from torch._dynamo.utils import counters
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    with without_inductor():
        results = train_cases(payload, topology)
    assert_no_errors(results)
    graphs = counters["stats"]["unique_graphs"]
    breaks = len(counters["graph_break"])
    with patch.object(cpp_builder, "get_cpp_compiler", side_effect=InvalidCxxCompiler()):
        raw = payload["config"] | {"training": payload["config"]["training"] | {"compile": True}}
        (refused,) = train_cases({"config": raw, "cases": [{"name": "without"}]}, topology)
    return {"graphs": graphs, "breaks": breaks, "error": refused["error"]}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"parallel.tp": 2, "training.chunk_tokens": 4}, "training.chunk_tokens on tensor-parallel ranks, which"),
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
    ids=["chunks of tensor-parallel ranks", "selective", "lora"],
)
def test_uncompilable_settings_are_refused(raw_config: dict[str, Any], settings: dict[str, Any], expected: str) -> None:
    raw_config["training"]["compile"] = True
    raw_config["zero"] = {"stage": 2}
    with pytest.raises(ValueError, match=f"training.compile does not support {expected}"):
        configure(raw_config, "test", settings)
