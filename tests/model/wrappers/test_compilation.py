"""Compiled blocks are one graph with the results of uncompiled ones."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.fx import GraphModule
from torch.utils.flop_counter import FlopCounterMode

from megatape.model.options import ModelOptions, TrainingOptions
from megatape.model.transformer import Transformer
from megatape.model.wrappers.compilation import CompiledBlock, PartlyCompiledBlock, prepare_compiler, reason_for_parts
from megatape.registry import ENCODINGS
from megatape.utils.pytorch.torch_internals import aot_backend
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.checks.slow import slow_but
from tests.helpers.models.attention import random_document_starts
from tests.helpers.models.small_models import model_with, random_model, tokens_and_positions

pytestmark = pytest.mark.numerics


def trained(model: Transformer, document_starts: Tensor | None = None) -> dict[str, Tensor]:
    """Return the loss for one batch, and all gradients."""
    tokens, positions = tokens_and_positions()
    loss = model.train()(tokens, positions, document_starts, targets=tokens)
    loss.backward()
    results = {"loss": loss.detach()}
    for name, weight in model.named_parameters():
        if weight.grad is not None:
            results[name] = weight.grad
    return results


def compiled_like(plain: Transformer, compiler: str, options: dict[str, Any]) -> Transformer:
    """Return a model with the same weights, compiling its blocks. Counting graphs starts from zero."""
    torch._dynamo.reset()
    counters.clear()
    model = model_with(plain.config, compiler=compiler, **options)
    model.load_state_dict(plain.state_dict())
    return model


def assert_same_results(model: Transformer, plain: Transformer, document_starts: Tensor | None = None) -> None:
    """Train a compiled and an uncompiled model. Their sums may have another order."""
    results = trained(model, document_starts)
    expected = trained(plain, document_starts)
    assert results.keys() == expected.keys()
    for name, result in results.items():
        assert_close(result, expected[name], bounds.PACKED_GRADIENTS, what=name)


@pytest.mark.parametrize("encoding", slow_but(("tape", "fox"), ENCODINGS))
def test_a_block_of_any_encoding_is_one_graph(encoding: str) -> None:
    """Compiling raises an error at a graph break. Blocks with the same shapes share a graph.

    With TAPE, the first block gets no second term of the position state, unless that starts from the content, and the last one
    does not update it.
    """
    plain = random_model(encoding=encoding, num_layers=4)
    model = compiled_like(plain, "aot_eager", {})
    assert all(isinstance(block, CompiledBlock) for block in model.blocks)

    assert_same_results(model, plain)

    num_graphs = 1
    if plain.encoding.carries_state:
        num_graphs = 3 if plain.state_start is None else 2
    assert counters["stats"]["unique_graphs"] == num_graphs


def test_a_block_has_few_guards() -> None:
    """Each call checks all guards. Six graphs had 614 when they also selected the attention backend."""
    torch._dynamo.reset()
    prepare_compiler("eager")
    model = random_model(encoding="tape").train()
    streams = model.start(*tokens_and_positions(), None)

    explained = torch._dynamo.explain(model.blocks[0])(streams, None)

    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
    assert len(explained.out_guards) < 500


# Name -> changes to the shape, and options
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "documents": ({}, {}),
    "documents by blocked attention": ({"encoding": "fox"}, {}),
    "window": ({"sliding_window": 9}, {}),
    "layers": ({"num_layers": 4, "layers": "tape@full,rope@9"}, {}),
    "grouped queries": ({"num_kv_heads": 2, "qk_norm": True}, {}),
    "biases, scale by length": ({"encoding": "rope", "attention_bias": "qkvo", "attention_scale": "log_n"}, {}),
    "large heads": ({"head_dim": 64}, {}),
    "shifted groups": ({"encoding": "rope"}, {"num_shifted_groups": 4}),
    "recomputed blocks": ({}, {"activation_checkpointing": "full"}),
    "frozen weights": ({}, {"trainable": ["position"]}),
}


@pytest.mark.parametrize("name", slow_but(("documents",), SETTINGS))
def test_other_settings_compile_into_one_graph(name: str) -> None:
    changes, options = SETTINGS[name]
    document_starts = random_document_starts(2, 40) if "documents" in name else None
    plain = random_model(options=options, **changes)
    model = compiled_like(plain, "aot_eager", options)

    assert_same_results(model, plain, document_starts)

    assert counters["stats"]["unique_graphs"] <= len(model.blocks)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["tape", "tape_fox", "rope", "t5", "path"])
def test_inductor_computes_the_same(encoding: str) -> None:
    plain = random_model(encoding=encoding)
    model = compiled_like(plain, "inductor", {})

    assert_same_results(model, plain)


def test_operators_of_a_graph_have_their_flops() -> None:
    """Counting both graphs' operators gives as many FLOPs as the uncompiled block."""
    torch._dynamo.reset()
    model = random_model(encoding="fox", num_layers=1).train()
    prepare_compiler("aot_eager")
    graphs: list[tuple[GraphModule, list[Any]]] = []

    def compiler(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append((graph, inputs))
        return graph.forward

    block = model.blocks[0]
    streams = model.start(*tokens_and_positions(), None)
    torch.compile(block, backend=aot_backend(compiler), fullgraph=True)(streams).x.sum().backward(retain_graph=True)
    with FlopCounterMode(display=False) as in_graphs:
        for graph, inputs in graphs:
            graph(*inputs)
    with FlopCounterMode(display=False) as uncompiled:
        block(streams).x.sum().backward()

    assert len(graphs) == 2
    names = {str(operator) for operator in in_graphs.get_flop_counts()["Global"]}
    assert {"megatape.blocked_forward", "megatape.blocked_backward"} < names
    assert in_graphs.get_total_flops() == uncompiled.get_total_flops()


def test_settings_needing_several_graphs_have_a_reason() -> None:
    assert reason_for_parts(ModelOptions(training=TrainingOptions(chunk_tokens=8))) is not None
    assert reason_for_parts(ModelOptions()) is None


def test_chunks_run_the_second_part_several_times() -> None:
    """A block has two parts: the norm before attention, and the rest, which is compiled for 16 tokens and the remaining 8."""
    plain = random_model(encoding="rope")
    model = compiled_like(plain, "aot_eager", {"chunk_tokens": 16})
    assert all(isinstance(block, PartlyCompiledBlock) for block in model.blocks)

    assert_same_results(model, plain)
    assert counters["stats"]["unique_graphs"] == 3
