"""Evaluation during training: the loss on the validation splits."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist

from megatape.data.training.loader import Batch, evaluation_batches
from megatape.data.training.mixture import RunData, named
from megatape.data.training.positions import Positions
from megatape.data.training.selection import NEW_SELECTION, Selection
from megatape.distributed.layout import local_tokens
from megatape.errors import UserError
from megatape.model.transformer import local_state, recorded_streams
from megatape.training.position_view import MAX_TOKENS, PositionView
from megatape.zero.engine import Engine, EvaluationLosses, Inputs
from megatape.zero.state import WEIGHT


@dataclass(frozen=True)
class Validation:
    """Losses in nats per target, and the position view.

    Attributes:
        loss: Mean loss; of a mixture, the mean of the corpora's losses by their first shares.
        positions: Position view on the main rank. None elsewhere, and for an encoding whose blocks change no position tensor.
        corpora: Loss on each corpus of a mixture.
        inputs: Loss on each input of a data directory that has several. Of a mixture, the name begins with the corpus.
        ema_loss: Loss of the average of the weights; None if the run keeps no average.
        selection: Selection of the samples (data/training/selection.py).
    """

    loss: float
    positions: PositionView | None
    corpora: dict[str, float] = field(default_factory=dict)
    inputs: dict[str, float] = field(default_factory=dict)
    ema_loss: float | None = None
    selection: Selection = NEW_SELECTION

    @property
    def parts(self) -> dict[str, float]:
        """Losses on the corpora and inputs, by name."""
        return self.corpora | self.inputs


@dataclass(frozen=True)
class SplitBatches:
    """This rank's share of the samples of one validation split.

    Attributes:
        groups: Names of the inputs of all samples; one empty name if the samples are not divided.
        batches: Micro-batches, each with the name of its input.
    """

    groups: list[str]
    batches: list[tuple[str, Batch]]


@dataclass(frozen=True)
class ValidationBatches:
    """This rank's share of the validation data.

    Attributes:
        selection: Selection of the samples.
        splits: Share of each corpus's samples, by name of the corpus.
        viewed: First sample of the first corpus, the same on all ranks.
        error: Reason why the data cannot be read, or "".
    """

    selection: Selection
    splits: dict[str, SplitBatches]
    viewed: list[Batch]
    error: str = ""


class Evaluator:
    """Measures the loss of a run on its validation splits.

    Args:
        engine: Engine of the run.
        data: Data opened by this rank.
        positions: Position ids that the encoding gives the tokens of samples.
        micro_batch_size: Number of samples in a micro-batch.
        seed: Seed of the run.
        views_positions: Whether to view position tensors, because the encoding's blocks change them.
    """

    def __init__(
        self,
        engine: Engine,
        data: RunData,
        positions: Positions,
        micro_batch_size: int,
        seed: int,
        views_positions: bool,
    ) -> None:
        self._engine = engine
        self._data = data
        self._positions = positions
        self._micro_batch_size = micro_batch_size
        self._seed = seed
        self._views_positions = views_positions

    def read(self, selection: Selection) -> ValidationBatches:
        """Read this rank's share of evaluation.samples samples of each validation split, before any of it is used."""
        # Ranks that read different samples.
        axis = self._engine.mesh["batch"]
        splits: dict[str, SplitBatches] = {}
        viewed: list[Batch] = []
        try:
            for name, split in self._data.validation.items():
                if not viewed:
                    first = evaluation_batches(split, {"": [0]}, 1, 0, 1, self._positions, self._seed)
                    viewed = [batch for _, batch in first]
                groups = self._data.evaluated[selection][name]
                batches = evaluation_batches(
                    split,
                    groups,
                    self._micro_batch_size,
                    axis.rank,
                    axis.size,
                    self._positions,
                    self._seed,
                )
                splits[name] = SplitBatches(list(groups), list(batches))
        except (UserError, OSError) as error:
            return ValidationBatches(selection, {}, [], str(error))
        return ValidationBatches(selection, splits, viewed)

    def evaluate(self, batches: ValidationBatches) -> Validation | None:
        """Compute the loss on the validation splits of all ranks, and the position view. Collective.

        Returns:
            The result, or None if the samples of a split have no targets.
        """
        engine = self._engine
        losses = self._losses(batches)
        if not all(of_split.groups for of_split in losses.values()):
            return None
        ema_loss = None
        if engine.state.ema_decay:
            with engine.state.ema_weights():
                ema_loss = self._mean(self._losses(batches))
        loss = self._mean(losses)
        view = None
        if self._views_positions and math.isfinite(loss):
            text = on_device(batches.viewed[0], engine.device)
            view = view_positions(engine, text, self._data.tokenizer.decode)
        corpora = {corpus: of_split.mean for corpus, of_split in losses.items()}
        return Validation(loss, view, named(corpora), _input_losses(losses), ema_loss, batches.selection)

    def _losses(self, batches: ValidationBatches) -> dict[str, EvaluationLosses]:
        """Compute the losses on each split, by corpus. Collective."""
        losses = {}
        for corpus, split in batches.splits.items():
            num_targets = dict.fromkeys(split.groups, 0)
            for group, batch in split.batches:
                num_targets[group] += batch.num_targets
            inputs = ((group, on_device(batch, self._engine.device)) for group, batch in split.batches)
            losses[corpus] = self._engine.evaluate(inputs, num_targets)
        return losses

    def _mean(self, losses: Mapping[str, EvaluationLosses]) -> float:
        """Return the mean of the corpora's losses by their first shares."""
        shares = self._data.train.shares
        return sum(shares[corpus] * of_split.mean for corpus, of_split in losses.items())


def _input_losses(losses: Mapping[str, EvaluationLosses]) -> dict[str, float]:
    """Return the losses on the inputs of data directories that have several, by name."""
    by_input: dict[str, float] = {}
    for corpus, of_split in losses.items():
        if len(of_split.groups) == 1:
            continue
        prefix = ""
        if corpus:
            prefix = f"{corpus}: "
        for group, loss in of_split.groups.items():
            by_input[f"{prefix}{group}"] = loss
    return by_input


def on_device(batch: Batch, device: torch.device) -> Inputs:
    """Return the batch on a device, without waiting for the copy."""
    return vars(batch.mapped(lambda tensor: tensor.to(device, non_blocking=True)))


@torch.no_grad()
def view_positions(engine: Engine, text: Inputs, decode: Callable[[list[int]], str]) -> PositionView | None:
    """Compute the position view of a text. Collective.

    Args:
        engine: Engine of the run.
        text: One sample, the same on all ranks.
        decode: Returns the text of token ids.

    Returns:
        The view on the main rank, None on the others.
    """
    module = engine.deepspeed.module
    axis = engine.mesh["sample"]
    ids = text["tokens"]
    assert ids is not None and ids.shape[0] == 1
    engine.deepspeed.eval()
    first: list[torch.Tensor | None] = []
    hook = module.blocks[0].register_forward_pre_hook(lambda _, args: first.append(local_state(module, args[0].state)))
    with hook, recorded_streams(module) as streams:
        engine.deepspeed(**text)
    # Input of each layer for this rank's tokens. Nothing reads the last layer's update.
    states = [*first, *(e for _, e in streams[:-1])]
    read = [e for e in states if e is not None]

    tokens = torch.arange(ids.shape[1], device=engine.device)
    stride = -(-ids.shape[1] // MAX_TOKENS)
    places = tokens[::stride]
    here = local_tokens(module.local(tokens[None]), module.tensor_axis)[0]
    is_selected = here % stride == 0
    selected = torch.zeros(len(read), len(places), *read[0].shape[2:], device=engine.device)
    for layer, e in enumerate(read):
        selected[layer, here[is_selected] // stride] = e[0, is_selected]
    squares = torch.stack([e.square().mean() for e in read]) / axis.size
    if axis.size > 1:
        dist.all_reduce(selected, group=axis.group)
        dist.all_reduce(squares, group=axis.group)

    gains = _gather_gains(engine)
    if not engine.topology.is_main:
        return None
    # A plane is two numbers of e: its mean squared modulus is twice the mean square of e.
    products = 2 * selected.flatten(2) @ selected.flatten(2).mT / selected[0, 0].numel()
    limit = torch.finfo(torch.float16).max
    return PositionView(
        tokens=[decode([token]) for token in ids[0, places].tolist()],
        places=places.to(torch.int32).numpy(force=True),
        products=products.clamp(-limit, limit).half().numpy(force=True),
        norms=(2 * squares).sqrt().numpy(force=True),
        gains=_stack_gains(gains, num_rows=len(read) - 1),
    )


def _gather_gains(engine: Engine) -> dict[int, np.ndarray]:
    """Gather the gains of attention's updates on the main rank, by layer. Returns {} on other ranks. Collective."""
    gains = {}
    for name in engine.state.parameters:
        # Names are blocks.LAYER.position.gain.
        if not name.endswith(".position.gain"):
            continue
        gain = engine.state.gather(name, WEIGHT, 0)
        if gain is not None:
            layer = int(name.split(".")[1])
            gains[layer] = gain.flatten().numpy(force=True)
    return gains


def _stack_gains(gains: Mapping[int, np.ndarray], num_rows: int) -> np.ndarray:
    """Return the gains as rows of a matrix [num_rows, K], with zeros for layers without gains."""
    empty = np.zeros(0, np.float32)
    zeros = np.zeros_like(next(iter(gains.values()), empty))
    # The first row is dropped. It gives a matrix without rows its width and type.
    rows = [zeros]
    for layer in range(num_rows):
        rows.append(gains.get(layer, zeros))
    return np.stack(rows)[1:]
