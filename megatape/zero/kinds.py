"""Tensor kinds common to all optimizers. Registry entries of optimizers name the other kinds."""

# Float32 master weight.
WEIGHT = "weight"
# Moving average of a trained weight, stored like optimizer state.
EMA = "ema"
