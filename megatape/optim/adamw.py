"""AdamW: Adam with decoupled weight decay (Loshchilov and Hutter, https://arxiv.org/abs/1711.05101, algorithm 2).

Step t with gradient g, learning rate η and weight decay λ updates a weight w:

    m ← β1 m + (1 - β1) g
    v ← β2 v + (1 - β2) g²
    w ← (1 - η λ) w - η (m / (1 - β1^t)) / (sqrt(v / (1 - β2^t)) + ε)
"""

from typing import TYPE_CHECKING, Any

from pydantic import Field

from megatape.config.section import Compared, Confirmed
from megatape.config.sections.optimizer import OptimizerConfig

if TYPE_CHECKING:
    import torch


class AdamWOptions(OptimizerConfig):
    """AdamW.

    Attributes:
        beta1: decay of the first moment
        beta2: decay of the second moment
        eps: added to the square root of the second moment
    """

    beta1: Confirmed[float] = Field(0.9, ge=0, lt=1)
    beta2: Confirmed[float] = Field(0.999, ge=0, lt=1)
    eps: Compared[float] = Field(1e-8, gt=0)


def adamw(groups: list[dict[str, Any]], options: AdamWOptions) -> "torch.optim.Optimizer":
    """Build torch's AdamW.

    Args:
        groups: Parameter groups, see optimizer.parameter_groups.
        options: Section `optimizer` of the configuration.
    """
    # Imported here, because configurations are checked without torch.
    import torch

    return torch.optim.AdamW(
        groups,
        betas=(options.beta1, options.beta2),
        eps=options.eps,
        # The fused implementation makes one pass over memory. Other implementations need temporaries several times the size of
        # the master weights.
        fused=True,
    )
