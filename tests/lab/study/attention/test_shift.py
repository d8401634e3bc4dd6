"""Shift stability: computing both quantities by hand, and equivariant encodings."""

from typing import Any

import pytest
import torch

from megatape.lab.study.attention.examined_model import ExaminedModel
from megatape.lab.study.attention.shift import attention_difference, dot_product_difference, measure_changes, report
from megatape.model.transformer import Transformer
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_within
from tests.helpers.checks.cells import cells
from tests.helpers.models.small_models import random_model, tokens_and_positions


def examined(encoding: str, **options: Any) -> ExaminedModel:
    model: Transformer = random_model(encoding=encoding, **options)
    tokens, _ = tokens_and_positions()
    return ExaminedModel(encoding, encoding, model, tokens, bos=1)


BEFORE = torch.tensor([[[[1.0, 0.0], [0.7, 0.3]]]])


def test_attention_difference_by_hand() -> None:
    """The first query moves nothing and the second moves 0.2 to the other key: 0.1 on average."""
    after = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])

    assert attention_difference(BEFORE, after) == pytest.approx(0.1)


def test_attention_difference_counts_attention_to_added_tokens() -> None:
    """Both queries move half their attention to the added token."""
    after = torch.tensor([[[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.35, 0.15]]]])

    assert attention_difference(BEFORE, after) == pytest.approx(0.5)


def test_dot_product_difference_by_hand() -> None:
    before = torch.tensor([[[[3.0, 0.0], [0.0, 4.0]]]])
    after = torch.tensor([[[[9.0, 9.0, 9.0], [9.0, 3.0, 0.5], [9.0, 0.0, 4.0]]]])

    assert dot_product_difference(before, after) == pytest.approx(0.1)


@pytest.mark.numerics
@pytest.mark.parametrize("encoding", ["rope", "tape", "tape_attention_only", "tape_mlp_only"])
def test_shifted_ids_change_nothing_with_equivariance(encoding: str) -> None:
    change = measure_changes(examined(encoding), 3).shifted

    assert_within(change.logits, bounds.SHIFTED)
    assert len(change.attention) == 3
    assert len(change.dot_products) == 3
    for difference in (*change.attention, *change.dot_products):
        assert_within(difference, bounds.SHIFTED)


@pytest.mark.numerics
@pytest.mark.parametrize("encoding", ["tape_vector", "tape_no_equivariance", "tape_no_rotation_equivariance"])
def test_shifted_ids_change_later_layers_without_equivariance(encoding: str) -> None:
    """The first layer attends before any position update."""
    change = measure_changes(examined(encoding), 3).shifted

    assert_within(change.attention[0], bounds.SHIFTED)
    assert_within(change.dot_products[0], bounds.SHIFTED)
    assert min(change.attention[1:]) > 1e-4
    assert min(change.dot_products[1:]) > 1e-3
    assert change.logits > 1e-3


@pytest.mark.numerics
def test_added_tokens_change_content_and_tape() -> None:
    """RoPE's position tensors do not depend on earlier tokens. TAPE's do, after the first layer."""
    rope = measure_changes(examined("rope"), 3).added
    tape = measure_changes(examined("tape"), 3).added

    assert min(rope.attention) > 1e-2
    assert min(tape.attention) > 1e-2
    for difference in (*rope.dot_products, tape.dot_products[0]):
        assert_within(difference, bounds.SHIFTED)
    assert min(tape.dot_products[1:]) > 1e-3


def test_report_includes_the_paper() -> None:
    models = [examined(encoding, num_layers=4) for encoding in ("rope", "nope", "tape_no_equivariance")]

    paragraphs: list[str] = []
    report(models, 2, paragraphs.append)

    assert len(paragraphs) == 7
    table = next(text for text in paragraphs if text.startswith("shifted ids: difference of position dot products"))
    header, _, *rows = [cells(line) for line in table.splitlines()[2:]]
    assert header == ["", "1", "2", "3", "4"]
    assert [row[0] for row in rows] == ["`rope`", "paper", "`nope`", "`tape_no_equivariance`", "paper"]
    assert rows[1][1:] == ["0.03", "0.03", "", "0.03"]
    assert rows[4][1:] == ["0.03", "0.54", "", "0.44"]
    assert rows[2][1:] == ["", "", "", ""]
    assert "| `nope` " in paragraphs[-1]


def test_report_lists_all_lengths() -> None:
    """Each model gets sequences of its own length."""
    long = examined("rope")
    short = ExaminedModel("short", "short", long.model, long.tokens[:, :20], bos=1)

    paragraphs: list[str] = []
    report([long, short], 2, paragraphs.append)

    count = f"{len(long.tokens)} sequences of"
    assert paragraphs[1].startswith(f"{count} 40 tokens, {count} 20 tokens, float32 on a CPU")


@pytest.mark.parametrize("shift", [0, -1, 40, 41])
def test_shift_out_of_range_is_refused(shift: int) -> None:
    with pytest.raises(ValueError, match=f"shift is {shift}, but the sequences have 40 tokens: give 1 to 39"):
        measure_changes(examined("rope"), shift)
