"""Kinds of tensors that do not depend on the optimizer. Its registry entry names the kinds of its own state."""

# Float32 master weight.
WEIGHT = "weight"
# Moving average of a trained weight, stored like optimizer state.
EMA = "ema"
