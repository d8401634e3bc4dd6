"""Tensor kinds common to all optimizers. Registry entries of optimizers name the other kinds. Importing them needs no torch."""

# Float32 master weight.
WEIGHT = "weight"
# Moving average of a trained weight, stored like optimizer state.
EMA = "ema"
