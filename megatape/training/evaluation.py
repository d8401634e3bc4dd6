"""What is measured on the validation split while training."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist

from megatape.config import Config
from megatape.data.training.loader import Batch, evaluation_batches
from megatape.data.training.mixture import RunData, named
from megatape.data.training.positions import Positions
from megatape.data.training.selection import NEW_SELECTION, Selection
from megatape.distributed.layout import local_tokens
from megatape.distributed.mesh import Axis
from megatape.encodings import encoding_of
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


def read_validation(config: Config, data: RunData, axis: Axis, selection: Selection) -> ValidationBatches:
    """Read this rank's share of evaluation.samples samples of each validation split, before any of it is used.

    Args:
        config: Configuration of the run.
        data: Data opened by this rank.
        axis: Ranks that read different samples.
        selection: Selection of the samples.
    """
    seed = config.training.seed
    positions = positions_of(config)
    size = config.training.micro_batch_size
    splits: dict[str, SplitBatches] = {}
    viewed: list[Batch] = []
    try:
        for name, split in data.validation.items():
            if not viewed:
                viewed = [batch for _, batch in evaluation_batches(split, {"": [0]}, 1, 0, 1, positions, seed)]
            groups = data.evaluated[selection][name]
            batches = evaluation_batches(split, groups, size, axis.rank, axis.size, positions, seed)
            splits[name] = SplitBatches(list(groups), list(batches))
    except (UserError, OSError) as error:
        return ValidationBatches(selection, {}, [], str(error))
    return ValidationBatches(selection, splits, viewed)


def evaluate(config: Config, engine: Engine, data: RunData, batches: ValidationBatches) -> Validation | None:
    """Compute the loss on the validation splits of all ranks, and the position view. Collective.

    Returns:
        The result, or None if the samples of a split have no targets.
    """
    evaluated = _evaluate_splits(engine, batches)
    if not all(of_split.groups for of_split in evaluated.values()):
        return None
    ema_loss = None
    if engine.state.ema_decay:
        with engine.state.ema_weights():
            ema_loss = _mean(_evaluate_splits(engine, batches), data)
    loss = _mean(evaluated, data)
    views = None
    if math.isfinite(loss) and encoding_of(config.model).carries_state:
        views = view_positions(engine, on_device(batches.viewed[0], engine.device), data.tokenizer.decode)
    corpora = {corpus: of_split.mean for corpus, of_split in evaluated.items()}
    return Validation(loss, views, named(corpora), _input_losses(evaluated), ema_loss, batches.selection)


def _evaluate_splits(engine: Engine, batches: ValidationBatches) -> dict[str, EvaluationLosses]:
    """Compute the losses on each split, by corpus. Collective."""
    losses = {}
    for corpus, split in batches.splits.items():
        num_targets = dict.fromkeys(split.groups, 0)
        for group, batch in split.batches:
            num_targets[group] += batch.num_targets
        inputs = ((group, on_device(batch, engine.device)) for group, batch in split.batches)
        losses[corpus] = engine.evaluate(inputs, num_targets)
    return losses


def _input_losses(evaluated: Mapping[str, EvaluationLosses]) -> dict[str, float]:
    """Return the losses on the inputs of data directories that have several, by name."""
    losses: dict[str, float] = {}
    for corpus, of_split in evaluated.items():
        if len(of_split.groups) > 1:
            prefix = ""
            if corpus:
                prefix = f"{corpus}: "
            losses |= {f"{prefix}{group}": loss for group, loss in of_split.groups.items()}
    return losses


def _mean(losses: Mapping[str, EvaluationLosses], data: RunData) -> float:
    """Return the mean of the corpora's losses by their first shares."""
    return sum(data.train.shares[corpus] * of_split.mean for corpus, of_split in losses.items())


def positions_of(config: Config) -> Positions:
    """The positions that the encoding gives the tokens of samples."""
    return encoding_of(config.model).positions(config.data.random_offset)


def on_device(batch: Batch, device: torch.device) -> Inputs:
    """The batch on a device; the host does not wait until it is there."""
    return vars(batch.mapped(lambda tensor: tensor.to(device, non_blocking=True)))


@torch.no_grad()
def view_positions(engine: Engine, text: Inputs, decode: Callable[[list[int]], str]) -> PositionView | None:
    """The position view of a text, the same sample on all ranks; None but on the main rank. decode: ids to text. Collective."""
    module = engine.deepspeed.module
    axis = engine.mesh["sample"]
    ids = text["tokens"]
    assert ids is not None and ids.shape[0] == 1
    engine.deepspeed.eval()
    first: list[torch.Tensor | None] = []
    hook = module.blocks[0].register_forward_pre_hook(lambda _, args: first.append(local_state(module, args[0].state)))
    with hook, recorded_streams(module) as streams:
        engine.deepspeed(**text)
    # Input of each layer for this rank's tokens; the last layer's update is never used.
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
        for share in (selected, squares):
            dist.all_reduce(share, group=axis.group)

    names = [name for name in engine.state.parameters if name.endswith(".position.gain")]  # blocks.LAYER.position.gain
    gathered = {int(name.split(".")[1]): engine.state.gather(name, WEIGHT, 0) for name in names}
    if not engine.topology.is_main:
        return None
    gains = {layer: gain.flatten().numpy(force=True) for layer, gain in gathered.items() if gain is not None}
    zeros = np.zeros_like(next(iter(gains.values()), np.zeros(0, np.float32)))
    # A plane is two numbers of e: its mean squared modulus is twice the mean square of e.
    products = 2 * selected.flatten(2) @ selected.flatten(2).mT / selected[0, 0].numel()
    limit = torch.finfo(torch.float16).max
    return PositionView(
        tokens=[decode([token]) for token in ids[0, places].tolist()],
        places=places.to(torch.int32).numpy(force=True),
        products=products.clamp(-limit, limit).half().numpy(force=True),
        norms=(2 * squares).sqrt().numpy(force=True),
        # The first row only gives a model of one layer, which has no rows, their width and type.
        gains=np.stack([zeros, *(gains.get(layer, zeros) for layer in range(len(read) - 1))])[1:],
    )
