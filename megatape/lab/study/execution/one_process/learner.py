"""Model, samples and optimizer of one run on one device."""

from typing import NamedTuple

import torch
from torch import Tensor

from megatape.config import Config, ModelConfig
from megatape.data.training.batches.batch import Batch
from megatape.data.training.run_data import RunData
from megatape.data.training.selection import NEW_SELECTION
from megatape.distributed.mesh import SINGLE
from megatape.encodings import encoding_of
from megatape.errors import DataError
from megatape.lab.study.execution.one_process.answer_tokens import loss_sum, target_places
from megatape.lab.study.execution.one_process.flat_weights import FlatWeights
from megatape.lab.study.execution.one_process.packing import packed, reads_positions_in_bias
from megatape.lab.study.execution.one_process.short_attention import ShortBlock
from megatape.model.build import build_model
from megatape.model.init import initialize
from megatape.model.transformer import Transformer
from megatape.nn.forward_context import changed_context
from megatape.optim.adamw import AdamWOptions, adamw
from megatape.optim.learning_rate import LearningRate
from megatape.training.startup.build_loader import build_loader
from megatape.training.validation.reader import ValidationReader


class StepInputs(NamedTuple):
    """A step's inputs on the host.

    Attributes:
        batch: Samples.
        places: Places of the tokens with a target, [n]; None for all tokens.
        num_targets: Number of targets.
        learning_rate: Scheduled rate.
    """

    batch: Batch
    places: Tensor | None
    num_targets: int
    learning_rate: float


class Learner:
    """A run being trained on one device.

    `begin_step` makes the inputs available on the device, and `compute` reads and writes tensors on the device alone, so a CUDA
    graph can repeat it (step_graph.py).

    Args:
        config: Configuration of the run.
        data: Its data.
        device: Device to run on.

    Attributes:
        config, data, device: See Args.
        model: Model in training.
        weights: Its weights and gradients.
        loss: Mean loss over the targets of the last step in nats, a tensor without dimensions.
        grad_norm: Gradient norm of the last step before clipping, likewise.
        is_skipped: 1 if the last step changed nothing, because loss or gradient norm were not finite, else 0; likewise.
        longest_skip: Largest number of consecutive skipped steps so far, likewise.
    """

    def __init__(self, config: Config, data: RunData, device: torch.device) -> None:
        self.config = config
        self.data = data
        self.device = device
        # Users' encodings may draw numbers, as in `pretrain`.
        torch.manual_seed(config.training.seed)
        self.model = _build(config.model, device)
        initialize(self.model, config.model.init_std, config.training.seed)
        self.model.to(device)
        self.weights = FlatWeights(self.model.named_parameters(), config.optimizer)
        self.loss = torch.zeros((), device=device)
        self.grad_norm = torch.zeros((), device=device)
        self.is_skipped = torch.zeros((), device=device)
        self.longest_skip = torch.zeros((), device=device)
        self._num_skipped = torch.zeros((), device=device)
        self._loader = build_loader(config.data, config.model, config.training, config.batches, data.train, SINGLE)
        self._rate = LearningRate.of_run(config)
        self._optimizer = self._build_optimizer()
        self._weight = torch.zeros((), device=device)
        # Set by `begin_step`.
        self._inputs: StepInputs

    def read_samples(self, step: int) -> Batch:
        """Read the samples of a step, counted from 0, as `pretrain` does."""
        (batch,) = self._loader.step(self.config.batches.consumed(step))
        return batch

    def read(self, step: int) -> StepInputs:
        """Read the inputs of a step, counted from 0.

        Raises:
            DataError: The samples cannot be read, or have no targets.
        """
        batch = self.read_samples(step)
        num_targets = batch.num_targets
        if not num_targets:
            raise DataError(f"step {step + 1}: its samples have no targets")
        places = None
        if self.device.type == "cpu":
            # Graphs of GPUs need tensors of one size, so there a step computes all tokens.
            batch = self._packed(batch)
            places = target_places(batch.targets)
        return StepInputs(batch, places, num_targets, self._rate.of_step(step))

    def begin_step(self, inputs: StepInputs, batch: Batch) -> None:
        """Set everything that differs from step to step.

        Args:
            inputs: Inputs of the step.
            batch: Its batch on the device.
        """
        self._inputs = inputs._replace(batch=batch)
        self._weight.fill_(1 / inputs.num_targets)
        for group in self._optimizer.param_groups:
            group["lr"].fill_(inputs.learning_rate * group["scale"])

    def compute(self) -> None:
        """Compute loss and gradients, clip, and update the weights."""
        self.compute_gradients()
        norm = self.weights.gradient_norm()
        self.grad_norm.copy_(norm)
        is_finite = torch.isfinite(self.loss) & torch.isfinite(norm)
        self.is_skipped.copy_(~is_finite)
        self._num_skipped.add_(1).mul_(self.is_skipped)
        torch.maximum(self.longest_skip, self._num_skipped, out=self.longest_skip)
        self.weights.clip(norm, self.config.training.gradient_clip)
        self._optimizer.step()
        self.weights.keep_within_bounds()

    def compute_gradients(self) -> None:
        """Compute the mean loss over the targets, and its gradients."""
        self.model.train()
        self.weights.zero_gradients()
        with changed_context(saves_everything=True):
            loss = self._loss_sum(self._inputs.batch, self._inputs.places) * self._weight
            loss.backward()
        self.loss.copy_(loss.detach())

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Return the mean loss on the validation samples in nats, which may not be finite.

        Raises:
            DataError: The samples cannot be read, or have no targets.
        """
        self.model.eval()
        training = self.config.training
        positions = encoding_of(self.config.model).positions(self.config.data.random_offset)
        reader = ValidationReader(
            self.data,
            positions,
            training.micro_batch_size,
            training.seed,
            SINGLE,
            has_view=False,
        )
        read = reader.read(NEW_SELECTION)
        if read.error is not None:
            raise DataError(read.error)
        mean = 0.0
        for corpus, split in read.splits.items():
            total = torch.zeros((), dtype=torch.float64, device=self.device)
            num_targets = 0
            for _, batch in split.batches:
                on_device = self._packed(batch).mapped(lambda tensor: tensor.to(self.device))
                total += self._loss_sum(on_device, target_places(on_device.targets))
                num_targets += batch.num_targets
            if not num_targets:
                raise DataError("the validation samples have no targets: raise evaluation.samples")
            mean += self.data.train.shares[corpus] * float(total) / num_targets
        return mean

    def _packed(self, batch: Batch) -> Batch:
        """Return a batch in fewer rows, unless the encoding's bias depends on positions: it would be computed for each row."""
        if reads_positions_in_bias(self.model.encoding):
            return batch
        return packed(batch)

    def _loss_sum(self, batch: Batch, places: Tensor | None) -> Tensor:
        if places is None:
            loss: Tensor = self.model(batch.tokens, batch.position_ids, batch.document_starts, batch.targets)
            return loss
        return loss_sum(self.model, batch.tokens, batch.targets, batch.position_ids, batch.document_starts, places)

    def _build_optimizer(self) -> torch.optim.Optimizer:
        """Build AdamW over the flat weights. It skips the step if `is_skipped` is 1."""
        options = self.config.optimizer
        assert isinstance(options, AdamWOptions)
        groups = []
        for group in self.weights.groups:
            rate = torch.zeros((), device=self.device)
            groups.append({**group, "lr": rate})
        optimizer = adamw(groups, options)
        # Fused AdamW skips its update while this tensor is 1. torch's GradScaler sets the same attribute.
        optimizer.found_inf = self.is_skipped  # type: ignore[attr-defined]
        return optimizer


def _build(config: ModelConfig, device: torch.device) -> Transformer:
    """Return a model whose weights are uninitialized."""
    if device.type == "cuda":
        return build_model(config)
    return Transformer(config, block_class=ShortBlock)
