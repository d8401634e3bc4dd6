"""What a run starts from: initial weights, those of another model, or a checkpoint; and the state of its folder then."""

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from megatape import imports
from megatape.checkpoint.compatibility import changed_settings, check_annealing, check_end_token, check_same_run
from megatape.checkpoint.environment import RunEnvironment
from megatape.checkpoint.initial_weights import InitialWeights
from megatape.checkpoint.manifest import describe
from megatape.checkpoint.reader import CheckpointReader
from megatape.checkpoint.tensors import FileRecord, StoredWeights
from megatape.config import Config, ModelConfig, differences
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.mixture import RunData
from megatape.data.training.selection import EARLIER_SELECTION, NEW_SELECTION
from megatape.distributed.exchange import on_all
from megatape.errors import UserError, path_errors
from megatape.model.init import initial_block
from megatape.nn.parameters import spec_of
from megatape.optim.schedules import check_new_run
from megatape.registry import EXPORT_CHECK, INITIAL_WEIGHTS
from megatape.run_folder import read_metrics
from megatape.training.ledger import check_order
from megatape.training.step import NUMBERS, StepMetrics
from megatape.utils.units import plural
from megatape.zero.state import EMA, WEIGHT, Reader


class InitialState:
    """State of a run at step 0.

    Attributes:
        step: Number of steps of the run: 0.
        updates: Number of steps that the optimizer has taken: 0.
        base: Frozen weights that checkpoints leave out because the files of training.init_from have them, None for none.

    Args:
        fresh: Reads the state of a new model.
        weights: Weights to start with, None for a new model.
        taken: Names of the parameters that start with `weights`.
        base: See above.
    """

    step = 0
    updates = 0

    def __init__(
        self,
        fresh: Reader,
        weights: InitialWeights | None = None,
        taken: Collection[str] = (),
        base: StoredWeights | None = None,
    ) -> None:
        self._fresh = fresh
        self._weights = weights
        self._taken = taken
        self.base = base

    def read(self, kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice) -> Tensor:
        """Read some rows and columns of a tensor (megatape.zero.state.Reader). A moving average starts with the weights."""
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
        environment.log.say("\n".join(_summary(weights, config.model, num_fresh, tokenizer)))
    return InitialState(fresh, weights, taken, base)


def fresh_state(config: Config, parameters: Mapping[str, nn.Parameter]) -> Reader:
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
    """Opened and checked by all ranks, each hashing its share of the files; and the frozen weights that its files hold."""
    source = None
    base = None
    topology = environment.topology

    def verify() -> dict[str, dict[str, Any]]:
        nonlocal source, base
        source = INITIAL_WEIGHTS.load()(directory, environment.base)
        taken = source.check_fits(model)
        stored = source.stored()
        source.verify(topology.rank, topology.world_size)
        base = stored.restricted(sorted(stored.tensors.keys() & frozen & taken))
        used = {record.file for record in base.tensors.values()}
        unhashed = sorted(used - base.files.keys())[topology.rank :: topology.world_size]  # those of an export
        return {name: describe(base.directory / name) for name in unhashed}

    shares = on_all(path_errors()(verify), topology, context="training.init_from: ")
    assert source is not None and base is not None
    base.files = {**base.files, **{name: FileRecord(**entry) for share in shares for name, entry in share.items()}}
    return source, base if base.tensors else None


def _summary(source: InitialWeights, model: ModelConfig, num_fresh: int, tokenizer: Tokenizer) -> Iterator[str]:
    """Lines about what a run starts from."""
    yield f"starting from the weights in {source.directory}"
    for change in differences(source.model, model):
        yield f"  model.{change.path}: {change.theirs} -> {change.ours}"
    if num_fresh:
        verb = "starts" if num_fresh == 1 else "start"
        yield f"  {plural(num_fresh, 'tensor')} that it lacks {verb} as in a new model"
    if _differs(tokenizer, source.directory):
        yield (
            f"warning: the tokenizer of the data ({tokenizer.origin}) gives a text other ids than that of the weights "
            f"({source.directory}): re-tokenize the data with the model's tokenizer, unless you retrain the embeddings"
        )


def _differs(tokenizer: Tokenizer, directory: Path) -> bool:
    """Whether the tokenizer in the folder of the weights, as far as there is one, gives a text other ids."""
    try:
        theirs = load_tokenizer(directory)
    except (UserError, OSError):
        return False
    text = Path(__file__).read_text(encoding="utf-8")
    ids, expected = (one.encode_documents([text])[0] for one in (tokenizer, theirs))
    return not np.array_equal(ids, expected)


def check_continues(
    reader: CheckpointReader, config: Config, data: RunData, attention: str, allow_changes: bool, environment: RunEnvironment
) -> None:
    """Check that a run may continue from a checkpoint, and report it with each change of the recipe. Collective.

    Args:
        reader: the checkpoint.
        config: of the run.
        data: of the run.
        attention: backend of the run.
        allow_changes: let the run change settings that must be confirmed (`confirmed` in docs/config.md).
        environment: of the run.

    Raises:
        UserError: it would train another model, see other samples or change what needs confirmation.
    """
    origin = reader.directory
    theirs = reader.config
    check_same_run(origin, theirs, reader.state["fingerprints"], config, data.fingerprints)
    check_end_token(origin, reader.tokenizer(), data.tokenizer)
    environment.on_main(lambda: check_order(origin, reader.state, data.train.order))
    check_annealing(origin, theirs, config, reader.tokens)
    changed = changed_settings(origin, theirs, config, allow_changes)
    before = reader.state.get("attention", attention)  # older checkpoints do not tell
    if before != attention:
        changed.append(f"attention by {before} -> {attention}, which rounds differently")
    environment.log.say(f"resumed from {origin}: {plural(reader.samples, 'sample')} and {plural(reader.tokens, 'token')} seen")
    if average := reader.state.get("average"):
        environment.log.say(f"its weights are the average of those after steps {', '.join(map(str, average['steps']))}")
    if reader.state.get("validation_selection", EARLIER_SELECTION) != NEW_SELECTION:
        environment.log.say(
            "the run is still evaluated on the first evaluation.samples validation samples, as it began; new runs are "
            "evaluated on samples from the whole split"
        )
    for line in changed:
        environment.log.say(f"changed since then: {line}")


def restart(environment: RunEnvironment) -> None:
    """Let a run with --resume auto and without checkpoints start from step 0. Collective.

    Raises UserError if a checkpoint may have been lost.
    """
    if recorded := environment.on_main(environment.folder.check_restart):
        kept = environment.on_main(lambda: str(environment.folder.set_metrics_aside()))
        environment.log.say(
            f"no checkpoint was written before the run ended after step {recorded}: starting again from step 0; its metrics "
            f"are kept in {kept}"
        )


def export_warning(config: Config) -> str:
    """Return the reason why a model with the user's own modules cannot be exported or evaluated, or "" if it can.

    The model can still be trained: only exports contain the code of the modules, and you can change it until then.
    """
    if not imports.given():
        return ""
    # Imports transformers, which training does not need otherwise.
    obstacle = EXPORT_CHECK.load()(config)
    if obstacle is None:
        return ""
    return f"this model can be trained, but not exported or evaluated: {obstacle}"


def recorded_steps(environment: RunEnvironment) -> dict[int, str]:
    """The lines of metrics.jsonl, by step; none if it cannot be read."""
    recorded: dict[int, str] = {}
    environment.log.attempt(lambda: recorded.update(read_metrics(environment.folder.metrics)))
    return recorded


def unevaluated_step(environment: RunEnvironment, step: int) -> StepMetrics | None:
    """The metrics of `step`, if they were recorded without a validation: a stop kept it from its evaluation. Collective."""
    record = json.loads(environment.on_main(lambda: recorded_steps(environment).get(step, "{}")))
    return StepMetrics.parse(record) if record.keys() >= set(NUMBERS) and "validation_loss" not in record else None
