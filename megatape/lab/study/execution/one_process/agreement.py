"""Check at the start that a Learner's loss and gradients are those of the model in `pretrain`."""

import torch

from megatape.lab.study.execution.one_process.learner import Learner

# Maximum difference relative to the norm of a gradient, and to the loss. The encodings of this package differ by 2e-7.
TOLERANCE = 1e-5
# Gradients below this share of the norm of all gradients are compared with the share instead. Some are zero but for rounding.
NEGLIGIBLE = 1e-3


def disagreement(learner: Learner) -> str | None:
    """Return how a Learner differs from `pretrain` in its first step, or None. The weights stay as they are.

    Args:
        learner: Learner whose weights have their initial values.
    """
    inputs = learner.read(0)
    samples = learner.read_samples(0).mapped(lambda tensor: tensor.to(learner.device))
    named = dict(learner.model.named_parameters())

    learner.model.train()
    learner.weights.zero_gradients()
    plain_loss = learner.model(**vars(samples)) / inputs.num_targets
    plain_loss.backward()
    plain = {name: torch.clone(parameter.grad) for name, parameter in named.items() if parameter.grad is not None}
    norm = float(learner.weights.gradient_norm())

    learner.begin_step(inputs, inputs.batch.mapped(lambda tensor: tensor.to(learner.device)))
    learner.compute_gradients()
    loss = float(learner.loss)
    expected_loss = float(plain_loss.detach())
    if not abs(loss - expected_loss) <= TOLERANCE * abs(expected_loss):
        return f"its loss in step 1 is {loss:.8g}, not {expected_loss:.8g}"
    for name, parameter in named.items():
        expected = plain[name]
        assert parameter.grad is not None
        scale = max(float(expected.norm()), NEGLIGIBLE * norm)
        difference = float((parameter.grad - expected).norm()) / scale
        if not difference <= TOLERANCE:
            return f"the gradient of {name} in step 1 differs by {difference:.1e} of its norm"
    return None
