"""Starting point of a run: random weights, another model's weights, or a checkpoint; and the run's folder at that time."""

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from megatape import imports
from megatape.checkpoint.compatibility import (
    check_annealing,
    check_end_token,
    check_order,
    check_same_data,
    check_same_settings,
    recipe_changes,
)
from megatape.checkpoint.environment import RunEnvironment
from megatape.checkpoint.fresh_start import check_restart, set_metrics_aside
from megatape.checkpoint.hashed_files import hash_file
from megatape.checkpoint.initial_weights import InitialWeights
from megatape.checkpoint.reader import CheckpointReader
from megatape.checkpoint.records import FileRecord
from megatape.checkpoint.tensors import StoredWeights
from megatape.config import Config, ModelConfig, differences
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.run_data import RunData
from megatape.data.training.selection import NEW_SELECTION
from megatape.distributed.exchange import on_all
from megatape.errors import UserError, path_errors
from megatape.model.init import initial_block
from megatape.nn.parameters import spec_of
from megatape.optim.schedules import check_new_run
from megatape.registry import EXPORT_CHECK, INITIAL_WEIGHTS
from megatape.run_folder import read_metrics
from megatape.training.steps.step import NUMBERS, StepMetrics
from megatape.utils.units import plural
from megatape.zero.kinds import EMA, WEIGHT
from megatape.zero.tensors import ReadBlock


class InitialState:
    """State of a run at step 0.

    Attributes:
        step: Number of steps of the run: 0.
        updates: Number of steps that the optimizer has taken: 0.
        base: Frozen weights that checkpoints leave out because the files of training.init_from have them, None for none.

    Args:
        fresh: Reader of the state of a new model.
        weights: Weights to start with, None for a new model.
        taken: Names of the parameters that start with `weights`.
        base: Frozen weights that checkpoints leave out, None for none.
    """

    step = 0
    updates = 0

    def __init__(
        self,
        fresh: ReadBlock,
        weights: InitialWeights | None = None,
        taken: Collection[str] = (),
        base: StoredWeights | None = None,
    ) -> None:
        self._fresh = fresh
        self._weights = weights
        self._taken = taken
        self.base = base

    def read(self, kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice) -> Tensor:
        """Read some rows and columns of a tensor (zero/tensors.py). A moving average starts with the weights."""
        if self._weights is not None and name in self._taken and kind in (WEIGHT, EMA):
            return self._weights.read(WEIGHT, name, shape, rows, columns)
        return self._fresh(kind, name, shape, rows, columns)


def initial_state(
    config: Config, parameters: Mapping[str, nn.Parameter], environment: RunEnvironment, tokenizer: Tokenizer
) -> InitialState:
    """Return the state of a run at step 0. Collective over all ranks.

    Args:
        config: Configuration of the run.
        parameters: Name -> parameter of the model.
        environment: Environment of the run.
        tokenizer: Tokenizer of the data.

    Raises:
        UserError: On every rank, a new run may not have this schedule, or the weights of training.init_from are missing,
            corrupted or another model's.
    """
    check_new_run(config.schedule)
    fresh = fresh_state(config, parameters)
    if config.training.init_from is None:
        if environment.base is not None:
            raise UserError("base belongs to a checkpoint: add `resume` or training.init_from, or leave it out")
        return InitialState(fresh)

    frozen = {name for name, parameter in parameters.items() if not parameter.requires_grad}
    weights, base = _open_verified(Path(config.training.init_from), config.model, frozen, environment)
    taken = weights.check_fits(config.model)
    if environment.topology.is_main:
        num_fresh = len(parameters) - len(taken)
        environment.log.info("\n".join(_summary(weights, config.model, num_fresh, tokenizer)))
    return InitialState(fresh, weights, taken, base)


def fresh_state(config: Config, parameters: Mapping[str, nn.Parameter]) -> ReadBlock:
    """Reads the state of a new model: initial weights as the parameters declare them, and zeros for the optimizer."""

    def read(kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice) -> Tensor:
        if kind not in (WEIGHT, EMA):
            return torch.zeros(rows.stop - rows.start, columns.stop - columns.start)
        init = spec_of(parameters[name]).init
        return initial_block(name, shape, init, rows, columns, config.model.init_std, config.training.seed)

    return read


def _open_verified(
    directory: Path, model: ModelConfig, frozen: set[str], environment: RunEnvironment
) -> tuple[InitialWeights, StoredWeights | None]:
    """Open and verify the weights to start from. Each rank hashes its share of the files. Collective.

    Args:
        directory: Folder of the weights.
        model: Model section of the run.
        frozen: Names of the frozen parameters.
        environment: Environment of the run.

    Returns:
        The weights, and those of them that are frozen: the base of the run's checkpoints, None if there are none.
    """
    weights = None
    base = None
    topology = environment.topology

    def verify() -> dict[str, dict[str, Any]]:
        nonlocal weights, base
        weights = INITIAL_WEIGHTS.load()(directory, environment.base)
        taken = weights.check_fits(model)
        stored = weights.stored()
        weights.verify(topology.rank, topology.world_size)
        base = stored.restricted(sorted(stored.tensors.keys() & frozen & taken))

        # An export has no record of hashes, so hash its files now.
        used = {record.file for record in base.tensors.values()}
        unhashed = sorted(used - base.files.keys())
        return {name: hash_file(base.directory / name).model_dump() for name in unhashed[topology.rank :: topology.world_size]}

    shares = on_all(path_errors()(verify), topology, context="training.init_from: ")
    assert weights is not None and base is not None
    files = dict(base.files)
    for share in shares:
        for name, entry in share.items():
            files[name] = FileRecord(**entry)
    base.files = files
    if not base.tensors:
        return weights, None
    return weights, base


def _summary(weights: InitialWeights, model: ModelConfig, num_fresh: int, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield lines about the starting point of a run.

    Args:
        weights: Weights to start from.
        model: Model section of the run.
        num_fresh: Number of parameters that the weights lack.
        tokenizer: Tokenizer of the data.
    """
    yield f"starting from the weights in {weights.directory}"
    for change in differences(weights.model, model):
        yield f"  model.{change.path}: {change.theirs} -> {change.ours}"
    if num_fresh:
        verb = "start"
        if num_fresh == 1:
            verb = "starts"
        yield f"  {plural(num_fresh, 'tensor')} that it lacks {verb} as in a new model"
    if _has_other_tokenizer(weights.directory, tokenizer):
        yield (
            f"warning: the tokenizer of the data ({tokenizer.origin}) gives a text other ids than that of the weights "
            f"({weights.directory}): re-tokenize the data with the model's tokenizer, unless you retrain the embeddings"
        )


def _has_other_tokenizer(directory: Path, tokenizer: Tokenizer) -> bool:
    """Whether the folder has a tokenizer that encodes a text differently."""
    try:
        theirs = load_tokenizer(directory)
    except (UserError, OSError):
        return False
    text = Path(__file__).read_text(encoding="utf-8")
    (ids,) = tokenizer.encode_documents([text])
    (expected,) = theirs.encode_documents([text])
    return not np.array_equal(ids, expected)


def check_continues(
    reader: CheckpointReader,
    config: Config,
    data: RunData,
    attention: str,
    allow_changes: bool,
    environment: RunEnvironment,
) -> None:
    """Check that a run may continue from a checkpoint, and report it with each change of the recipe. Collective.

    Args:
        reader: The checkpoint.
        config: Configuration of the run.
        data: Data of the run.
        attention: Name of the run's attention backend.
        allow_changes: Whether settings that must be confirmed may change (`confirmed` in docs/config.md).
        environment: Environment of the run.

    Raises:
        UserError: The run would train another model, see other samples, or change a setting that must be confirmed.
    """
    origin = reader.directory
    state = reader.state
    theirs = reader.config
    changed = list(differences(theirs, config))
    check_same_settings(origin, changed)
    check_same_data(origin, state.fingerprints, data.fingerprints, config.data)
    check_end_token(origin, reader.tokenizer(), data.tokenizer)
    environment.on_main(lambda: check_order(origin, state.last_step, data.train.order))
    check_annealing(origin, theirs.data.annealing, config.data.annealing, reader.tokens)
    lines = recipe_changes(origin, changed, allow_changes)
    # Checkpoints of earlier versions do not record the backend.
    before = state.attention or attention
    if before != attention:
        lines.append(f"attention by {before} -> {attention}, which rounds differently")

    samples = plural(reader.samples, "sample")
    tokens = plural(reader.tokens, "token")
    environment.log.info(f"resumed from {origin}: {samples} and {tokens} seen")
    if state.average is not None:
        steps = ", ".join(str(step) for step in state.average.steps)
        environment.log.info(f"its weights are the average of those after steps {steps}")
    if state.validation_selection != NEW_SELECTION:
        environment.log.info(
            "the run is still evaluated on the first evaluation.samples validation samples, as it began; new runs are "
            "evaluated on samples from the whole split"
        )
    for line in lines:
        environment.log.info(f"changed since then: {line}")


def restart(environment: RunEnvironment) -> None:
    """Let a run with --resume auto and without checkpoints start from step 0. Collective.

    Raises:
        UserError: A checkpoint may have been lost.
    """
    num_recorded = environment.on_main(lambda: check_restart(environment.folder))
    if num_recorded == 0:
        return
    kept = environment.on_main(lambda: str(set_metrics_aside(environment.folder)))
    environment.log.info(
        f"no checkpoint was written before the run ended after step {num_recorded}: starting again from step 0; its metrics "
        f"are kept in {kept}"
    )


def export_warning(config: Config) -> str:
    """Return the reason why a model with the user's own modules cannot be exported or evaluated, or "" if it can.

    The model can still be trained: only exports contain the code of the modules, and you can change it until then.
    """
    if not imports.given():
        return ""
    # Imports transformers, which training does not need otherwise.
    obstacle = EXPORT_CHECK.load()(config.model, config.export.family)
    if obstacle is None:
        return ""
    return f"this model can be trained, but not exported or evaluated: {obstacle}"


def recorded_steps(environment: RunEnvironment) -> dict[int, str]:
    """Read metrics.jsonl: step -> line. Returns no lines if it cannot be read."""
    recorded: dict[int, str] = {}
    environment.log.attempt(lambda: recorded.update(read_metrics(environment.folder.metrics)))
    return recorded


def unevaluated_step(environment: RunEnvironment, step: int) -> StepMetrics | None:
    """Return the metrics of a step that a stop kept from its evaluation. Collective.

    Returns:
        The recorded metrics, or None if the step has none or was evaluated.
    """
    line = environment.on_main(lambda: recorded_steps(environment).get(step, "{}"))
    record = json.loads(line)
    if "validation_loss" in record or not record.keys() >= set(NUMBERS):
        return None
    return StepMetrics.parse(record)
