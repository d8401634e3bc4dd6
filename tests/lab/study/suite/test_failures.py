"""megatape study failures: what is looked at, on models whose attention is known, and what the command prints and refuses."""

import math
from typing import Any

import pytest
import torch

from megatape.data.synthetic.folder import Encoder
from megatape.data.synthetic.task import Answer, SyntheticSample, SyntheticTask
from megatape.lab.study.suite.failures import look
from megatape.model.transformer import Transformer
from megatape.registry import SYNTHETIC_TASKS
from tests.helpers.models import random_model

TEXT = "w1i0i0r1w0r0"
ANSWERS = (Answer(7, 8, 6), Answer(11, 12, 2))


def flip_flop() -> tuple[SyntheticTask, list[SyntheticSample]]:
    task: SyntheticTask = SYNTHETIC_TASKS["flip_flop"].load()("flip_flop", "tiny")
    return task, [SyntheticSample(TEXT, ANSWERS)]


def without_scores(task: SyntheticTask, **changes: Any) -> Transformer:
    """A model whose queries and keys are zero."""
    model = random_model(vocab_size=Encoder(task).tokenizer.vocab_size, num_layers=2, **changes)
    for block in model.blocks:
        block.attention.query.weight.data.zero_()
        block.attention.key.weight.data.zero_()
    return model


def test_shares_are_those_of_the_source_and_of_what_is_around_it() -> None:
    """With ALiBi alone, attention is a function of the distance from the query."""
    task, samples = flip_flop()
    found = look(without_scores(task, encoding="alibi"), task, samples, len(TEXT), 0)
    for shares in found.layers:
        for row, (query, source) in enumerate(((7, 2), (11, 10))):  # inputs: <s>, w, 1, ..., of which the last is not one
            for head in range(4):
                weights = [math.exp(-(2.0 ** (-2 * (head + 1))) * (query - key)) for key in range(query + 1)]
                parts = weights[:source], weights[source : source + 1], weights[source + 1 :]
                expected = [sum(part) / sum(weights) for part in parts]
                assert [float(part[row, head]) for part in shares[:3]] == pytest.approx(expected, rel=1e-4), (row, head)
                assert shares.places[row, head].tolist() == [query, query - 1, query - 2]
                assert shares.weights[row, head].tolist() == pytest.approx([weights[-n] / sum(weights) for n in (1, 2, 3)])
        assert shares.without is None
    assert found.right_without is None and [view.moved for view in found.layers] == found.gains == [None, None]


def test_what_blocks_add_is_the_gain_times_the_mean_of_e() -> None:
    """If all keys get the same attention, and with one plane for each channel."""
    task, samples = flip_flop()
    model = without_scores(task, encoding="tape_attention_only", hidden_size=8)
    gains = torch.tensor([0.5, -1.0, 2.0, 0.0])
    model.blocks[0].position.gain.data.copy_(gains)
    found = look(model, task, samples, len(TEXT), 0)
    assert (
        found.gains[0] is not None
        and torch.equal(found.gains[0], gains)
        and found.layers[0].moved is None
        and found.layers[0].without is None
    )
    for row, query in enumerate((7, 11)):
        mean = abs(sum(complex(math.cos(place), math.sin(place)) for place in range(query + 1))) / (query + 1)
        expected = mean * float(gains.square().mean().sqrt())
        moved = found.layers[1].moved
        assert moved is not None and float(moved[row]) == pytest.approx(expected, rel=1e-4)


def test_a_start_that_encodings_compute_is_not_what_blocks_add() -> None:
    """Selective RoPE's angles are there before any block, whose updates begin with zeros."""
    task, samples = flip_flop()
    model = random_model(vocab_size=Encoder(task).tokenizer.vocab_size, num_layers=2, encoding="tape_selective_rope", std=0.6)
    for block in model.blocks:
        block.position.gain.data.zero_()
        block.position.up.data.zero_()
    first, second = look(model, task, samples, len(TEXT), 0).layers
    assert first.moved is None and first.without is None
    assert second.moved is not None and not second.moved.any()
    assert second.without is not None and torch.equal(second.without, second.source)
    model.blocks[0].position.gain.data.fill_(0.5)
    assert look(model, task, samples, len(TEXT), 0).layers[1].moved.min() > 0.01


def test_updates_are_left_out_where_the_tables_say_so() -> None:
    """What the model says, and how its layers attend, is then what it is with gains and W_up of zero."""
    task, _ = flip_flop()
    samples, length, tokenizer = list(task.samples("test", 20)), task.tokens("test") - 1, Encoder(task).tokenizer
    model = random_model(vocab_size=tokenizer.vocab_size, encoding="tape", max_positions=length, std=0.6, tie_embeddings=True)
    zero, one = (tokenizer.encode(bit)[0] for bit in "01")
    model.embedding.weight.data[zero] *= 5
    model.embedding.weight.data[one] = -model.embedding.weight.data[zero]  # so that it says one of the two
    found = look(model, task, samples, length, 0)
    assert found.right_without is not None and not torch.equal(found.right, found.right_without)
    assert [shares.without is None for shares in found.layers] == [True, False, False]
    for block in model.blocks:
        block.position.gain.data.zero_()
        block.position.up.data.zero_()
    plain = look(model, task, samples, length, 0)
    assert torch.equal(plain.right, found.right_without)
    # The second layer is the first to read D, and its content does not depend on it.
    without = found.layers[1].without
    assert without is not None and torch.equal(plain.layers[1].source, without)
    assert not torch.equal(found.layers[1].source, without)
