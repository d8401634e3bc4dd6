"""AdamW: Adam with decoupled weight decay (https://arxiv.org/abs/1711.05101)."""

import torch

from megatape.config import OptimizerConfig
from megatape.optim.optimizer import Group


def adamw(groups: list[Group], config: OptimizerConfig) -> torch.optim.Optimizer:
    """torch's AdamW."""
    return torch.optim.AdamW(
        groups,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,  # one pass without temporaries, which are otherwise several times the size of the master weights
    )
