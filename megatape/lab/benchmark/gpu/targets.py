"""Targets of the benchmarks: costs of TAPE over those of RoPE."""

# Largest ratio of TAPE's whole training step to the fastest RoPE, by shape.
STEP_TARGETS = {"155m": 1.10, "1b": 1.08, "7b": 1.07}
# Largest ratio of attention layers, forward: that of the paper's fused layer.
LAYER_TARGET = 1.23
# Largest ratio of the bytes that a training step keeps for its backward pass.
SAVED_TARGET = 1.08
# Shape, and the smallest model FLOPs utilization there.
MFU_TARGET = ("1b", 0.45)
