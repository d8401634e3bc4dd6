"""Tensor kinds common to all optimizers. Registry entries of optimizers name the other kinds. Importing them needs no torch."""

from typing import NamedTuple

# Float32 master weight.
WEIGHT = "weight"
# Moving average of a trained weight, stored like optimizer state.
EMA = "ema"


class TensorKey(NamedTuple):
    """Identity of one tensor of the state.

    Attributes:
        kind: Kind of the tensor.
        name: Name of the parameter.
    """

    kind: str
    name: str
