"""Five layers represent all layers of a deep model."""

from typing import Any

import pytest

from megatape.accounting.shapes.module_events import EventKind
from megatape.accounting.shapes.trace import NUM_SHALLOW_LAYERS, TracedMicroBatch, trace_deep, trace_layers, trace_micro_batch
from megatape.accounting.workload import Workload
from tests.helpers.checks.slow import slow_but
from tests.helpers.planner.plan_cases import configure

LORA = {
    "model.lora": {"rank": 3, "alpha": 1.0, "dropout": 0.1, "targets": ["query", "up"]},
    "training.trainable": ["adapters"],
}
DEPTH = NUM_SHALLOW_LAYERS + 3


def _named(one: TracedMicroBatch) -> tuple[list[tuple[EventKind, str]], set[str]]:
    """Return events and trained weights by name."""
    modules = {module: name for name, module in one.model.named_modules()}
    parameters = {parameter: name for name, parameter in one.model.named_parameters()}
    return [(event.kind, modules[event.module]) for event in one.events], {parameters[parameter] for parameter in one.trained}


RUNS: list[dict[str, Any]] = [
    {"parallel.tp": 2, "training.activation_checkpointing": "full"},
    LORA,
    {},
    {"training.activation_checkpointing": "selective", "model.encoding": "rope"},
    {"parallel.tp": 2, "training.activation_checkpointing": "offload", "training.chunk_tokens": 5},
    {"model.encoding": "t5", "model.tie_embeddings": True},
    {"training.trainable": ["position"]},
    {"training.frozen": ["blocks.0.*"]},
]


@pytest.mark.parametrize("changes", slow_but(RUNS[:2], RUNS), ids=str)
def test_extrapolation_equals_full_depth(raw_config: dict[str, Any], changes: dict[str, Any]) -> None:
    workload = Workload.from_config(configure(raw_config, "x", changes | {"model.num_layers": DEPTH}))
    deep = trace_deep(workload)
    assert deep is not None
    assert _named(deep) == _named(trace_layers(workload, DEPTH))


@pytest.mark.parametrize("changes", [{"training.frozen": ["blocks.3.*"]}, {"model.nope_every": 3}], ids=str)
def test_differing_layers_all_run(raw_config: dict[str, Any], changes: dict[str, Any]) -> None:
    workload = Workload.from_config(configure(raw_config, "x", changes | {"model.num_layers": DEPTH}))
    assert _named(trace_micro_batch(workload)) == _named(trace_layers(workload, DEPTH))
