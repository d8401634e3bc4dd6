"""Comparing encodings with each other, as functions on the same tokens."""

from typing import Any

from torch import Tensor

from megatape.model.transformer import Transformer
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close, relative_difference
from tests.helpers.models.small_models import random_model, tokens_and_positions


def shared_weights(encoding: str, reference_encoding: str, **changes: Any) -> tuple[Transformer, Transformer]:
    """Return random models with these encodings and the same other weights.

    Args:
        encoding: Encoding in the first model.
        reference_encoding: Encoding in the second model.
        changes: Further changes to the second model's shape.
    """
    model = random_model(encoding=encoding)
    reference = random_model(encoding=reference_encoding, **changes)
    model.load_state_dict(reference.state_dict(), strict=False)
    return model, reference


def assert_equal_functions(model: Transformer, reference: Transformer) -> None:
    inputs = tokens_and_positions()
    assert_close(model(*inputs), reference(*inputs), bounds.LOGITS)


def assert_different_functions(model: Transformer, reference: Transformer) -> None:
    inputs = tokens_and_positions()
    assert relative_difference(model(*inputs), reference(*inputs)) > 1e-3


def set_weights(model: Transformer, **values: float) -> None:
    """Set feature weights of the encoding: gate_bias=1.0 sets all weights whose names end in `features.gate.bias`."""
    for name, weight in model.named_parameters():
        for suffix, value in values.items():
            if ".attention." in name and name.endswith(f"features.{suffix}".replace("_", ".")):
                weight.data.fill_(value)


def set_equal_gates(fox: Transformer, slopes: Tensor) -> None:
    """Give all tokens the same gates, so that FoX becomes ALiBi with these slopes [H]."""
    set_weights(fox, gate_weight=0.0)
    for block in fox.blocks:
        block.attention.token_features.gate.bias.data.copy_(-slopes.expm1().log())
