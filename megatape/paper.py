"""The paper's figures (arXiv 2501.00712) that studies and benchmarks print beside their own."""

from dataclasses import dataclass

# The 155M model, without layers and length.
SHAPE = {"hidden_size": 768, "num_heads": 12, "mlp_size": 3072, "vocab_size": 32000, "position_size": 48}


@dataclass(frozen=True)
class PaperCost:
    """Costs of an encoding with COST_LAYERS layers of SHAPE on one sequence of COST_LENGTH tokens.

    Attributes:
        parameters: in units of 2^20.
        flops: FLOPs of the forward pass, in units of 10^9.
        multiply_adds: multiply-adds of the forward pass, in units of 10^9.
        attention_seconds: seconds of one attention layer.
    """

    parameters: float
    flops: float
    multiply_adds: float
    attention_seconds: float


COSTS = {
    "tape": PaperCost(155.33, 365.65, 180.69, 2.56e-4),  # with their fused kernel; 5.63e-4 without
    "rope": PaperCost(154.89, 321.10, 160.46, 2.08e-4),
    "fire": PaperCost(154.90, 331.97, 165.69, 5.56e-4),
    "t5": PaperCost(154.90, 321.10, 160.46, 6.90e-4),
}
COST_LAYERS, COST_LENGTH = 12, 1024

SHIFT_LAYERS = (1, 2, 4, 8)
# Kind of shift -> encoding -> values at SHIFT_LAYERS. The paper's "without equivariance" is our tape_no_equivariance.
SHIFT_ATTENTION = {  # 10^-2
    "added tokens": {
        "rope": (8.93, 8.51, 12.29, 11.46),
        "tape": (9.08, 11.24, 12.23, 13.78),
        "tape_no_equivariance": (11.30, 11.38, 13.32, 14.55),
    },
    "shifted ids": {
        "rope": (0.01, 0.02, 0.02, 0.03),
        "tape": (0.01, 0.02, 0.04, 0.04),
        "tape_no_equivariance": (0.01, 0.24, 0.37, 0.51),
    },
}
SHIFT_DOT_PRODUCTS = {  # percent
    "added tokens": {
        "rope": (0.03, 0.03, 0.03, 0.03),
        "tape": (0.03, 0.37, 2.75, 6.62),
        "tape_no_equivariance": (0.03, 2.29, 3.34, 6.37),
    },
    "shifted ids": {
        "rope": (0.03, 0.03, 0.03, 0.03),
        "tape": (0.03, 0.02, 0.03, 0.04),
        "tape_no_equivariance": (0.03, 0.54, 0.44, 0.86),
    },
}
