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


@dataclass(frozen=True)
class PaperTable:
    """Figures of methods (`rows`) at lengths in tokens."""

    lengths: tuple[int, ...]
    rows: dict[str, tuple[float, ...]]


# Context extension of Llama 2 7B from 4096 to 8192 tokens, by method.
EXTENSION_NAMES = {"lora": "LoRA", "longlora": "LongLoRA", "theta": "Theta", "tape": "TAPE"}  # as the paper writes them
PERPLEXITY_LENGTHS = (1024, 2048, 4096, 8192)
EXTENSION_PERPLEXITY = {  # Table 4
    "Proof-pile": PaperTable(
        PERPLEXITY_LENGTHS,
        {
            "lora": (3.828, 3.369, 3.064, 2.867),
            "longlora": (3.918, 3.455, 3.153, 2.956),
            "theta": (3.864, 3.415, 3.121, 2.934),
            "tape": (3.641, 3.196, 2.901, 2.708),
        },
    ),
    "PG19": PaperTable(
        PERPLEXITY_LENGTHS,
        {
            "lora": (9.791, 9.098, 8.572, 8.199),
            "longlora": (9.989, 9.376, 8.948, 8.645),
            "theta": (9.257, 8.640, 8.241, 7.999),
            "tape": (8.226, 7.642, 7.278, 7.063),
        },
    ),
}
EXTENSION_PASSKEY = PaperTable(  # Figure 5, % of 20 prompts each
    tuple(range(1000, 9000, 1000)),
    {
        "lora": (40.0, 40.0, 35.0, 35.0, 30.0, 35.0, 40.0, 35.0),
        "longlora": (40.0, 35.0, 40.0, 35.0, 50.0, 50.0, 50.0, 45.0),
        "theta": (100.0, 100.0, 100.0, 100.0, 100.0, 100.0, 100.0, 95.0),
        "tape": (100.0, 100.0, 100.0, 100.0, 100.0, 100.0, 95.0, 100.0),
    },
)
EXTENSION_ANSWERS_COLUMNS = (  # of lm-eval, at 8192 tokens; the paper does not say with how many examples
    "mmlu_humanities acc (%)",
    "mmlu_social_sciences acc (%)",
    "mmlu_stem acc (%)",
    "mmlu_other acc (%)",
    "arc_challenge acc_norm (%)",
    "arc_easy acc_norm (%)",
)
EXTENSION_ANSWERS = {
    "lora": (39.09, 46.47, 33.65, 45.83, 45.31, 74.28),
    "longlora": (37.53, 43.55, 32.54, 43.84, 45.31, 74.16),
    "theta": (37.45, 43.16, 33.05, 44.64, 45.65, 74.24),
    "tape": (37.96, 45.40, 33.27, 45.06, 46.25, 74.16),
}

# SCROLLS, models of 155M parameters: F1, exact match or ROUGE of its sets.
SCROLLS_SETS = ("qasper", "contract_nli", "narrative_qa", "quality", "qmsum", "summ_screen_fd", "gov_report")
SCROLLS = {
    "RoPE": (8.39, 65.00, 1.77, 0.04, 6.34, 5.63, 9.71),
    "ALiBi": (8.25, 69.62, 4.11, 0.00, 9.92, 9.78, 18.81),
    "RandPE": (13.44, 62.01, 4.63, 0.38, 8.43, 8.31, 8.93),
    "FIRE": (3.41, 71.26, 0.48, 1.25, 8.78, 7.42, 11.03),
    "xPos": (9.02, 71.75, 4.83, 0.24, 10.73, 9.38, 16.38),
    "TAPE": (11.52, 72.80, 6.79, 11.60, 12.42, 10.34, 15.18),
}

SHIFT = 3  # number of added tokens, or first position id
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
