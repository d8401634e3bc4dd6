"""Kinds of tensors that every run knows. An optimizer's registry entry names the kinds of its own state."""

# A master weight in float32.
WEIGHT = "weight"
# Moving average of a trained weight over the updates, which is stored like optimizer state.
EMA = "ema"
