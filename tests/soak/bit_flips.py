"""python -m tests.soak.bit_flips --flips 20: flip a bit on one of two ranks, and see what notices it within some steps.

Each flip starts from the same checkpoint of a small model, hits one kind of memory on rank 1 in one step, and is followed by
some steps, in each of which all checks are made. The table counts flips by kind of memory and ZeRO stage.
"""

import argparse
import json
import math
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatape.checkpoint.load.reader import CheckpointReader, verified_checkpoint
from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.errors import TrainingDiverged
from megatape.training.trainer import Trainer
from megatape.utils.text.tables import markdown
from megatape.zero.passes.pass_result import GradientSums
from megatape.zero.state.kinds import WEIGHT
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.small_run import prepare_words, small_config
from tests.helpers.runs.trainers import trainer_without_lease

FAULTY_RANK = 1
# Steps before the flips. Spikes are noticed after 64 steps.
WARM_UP = 80
# Relative change in the loss that counts as an effect
EFFECT = 1e-3
# Kind of memory -> number of bits to flip: all in a float32, and those in a token keeping it below the vocabulary's size
NUM_BITS = {"weight": 32, "master weight": 32, "moment": 32, "gradient": 32, "activation": 32, "backward pass": 32, "sample": 8}
# Kinds of memory that are wrong in every pass, as if computed by a broken unit. The others are flipped once.
LASTING = {"activation, each time": "activation", "backward pass, each time": "backward pass"}
KINDS = (*NUM_BITS, *LASTING)
REPLICAS = "replicas differ"
MEMORY = "memory changed"
COMPUTATION = "computations differ"
SPIKE = "spike"
NOT_FINITE = "not finite"
NOTHING = "nothing"
# Distance between the bits in two flips. Being odd, it reaches all bits.
BIT_STRIDE = 5
FOUND_BY = (MEMORY, COMPUTATION, REPLICAS, SPIKE, NOT_FINITE)


@dataclass(frozen=True)
class Outcome:
    """Outcome after flipping a bit.

    Attributes:
        kind: Kind of memory.
        bit: Number of the bit, 31 for the sign of a float32.
        found_by: MEMORY, COMPUTATION, REPLICAS, SPIKE, NOT_FINITE or NOTHING.
        steps: Steps until it was found, the one with the flip included. The number of steps made if it was not.
        changed_loss: Whether the loss of any step differed from the undisturbed one's by more than EFFECT.
    """

    kind: str
    bit: int
    found_by: str
    steps: int
    changed_loss: bool


class Flips:
    """Flips bits in a trainer's memory. All ranks draw alike, and the faulty one changes its memory.

    Args:
        run: Trainer.
        checkpoint: State before each flip.
        steps: Number of steps after which a flip counts as missed.
        bit: Bit to flip, None for all in turn.
    """

    def __init__(self, run: Trainer, checkpoint: CheckpointReader, steps: int, bit: int | None = None) -> None:
        self._bit = bit
        self._run = run
        self._checkpoint = checkpoint
        self._steps = steps
        self._is_faulty = run.environment.topology.rank == FAULTY_RANK
        run.resume(checkpoint)
        self._losses = [run.train_step().loss for _ in range(steps + 1)][1:]

    def outcome(self, kind: str, seed: int) -> Outcome:
        """Flip a bit in the second step after the checkpoint. Memory is only checked after an update."""
        run = self._run
        run.resume(self._checkpoint)
        run.train_step()
        run.engine.check_replicas()
        run.stepper.check_computation(run.progress)
        draw = random.Random(f"{kind} {seed}")
        bit = self._bit
        num_bits = NUM_BITS[LASTING.get(kind, kind)]
        if bit is None or bit >= num_bits:
            # Every bit is flipped equally often, and few flips are spread over all bits.
            bit = seed * BIT_STRIDE % num_bits
        found_by = NOTHING
        step = 0
        changed = False
        with ExitStack() as stack:
            stack.enter_context(self._flipped(kind, bit, draw))
            while found_by == NOTHING and step < self._steps:
                step += 1
                try:
                    output = run.train_step()
                except TrainingDiverged:
                    found_by = MEMORY
                    self._release_gradients()
                    break
                if kind not in LASTING:
                    stack.close()
                expected = self._losses[step - 1]
                changed |= not abs(output.loss - expected) <= EFFECT * expected
                found_by = self._found_by(output)
        return Outcome(kind, bit, found_by, step, changed)

    def _found_by(self, output: Any) -> str:
        if output.anomaly:
            return SPIKE
        if not output.is_applied:
            return NOT_FINITE
        try:
            self._run.engine.check_replicas()
        except TrainingDiverged:
            return REPLICAS
        try:
            self._run.stepper.check_computation(self._run.progress)
        except TrainingDiverged:
            return COMPUTATION
        return NOTHING

    def _release_gradients(self) -> None:
        """Drop gradients left by a step that ended before its update, which a run would not continue."""
        self._run.engine.update(0.0, math.nan, GradientSums())

    @contextmanager
    def _flipped(self, kind: str, bit: int, draw: random.Random) -> Iterator[None]:
        """Flip a bit, or let it be flipped in the step inside the block."""
        engine = self._run.engine
        name = draw.choice(sorted(engine.state.parameters))
        place = draw.random()
        handle = None
        flip = once(bit, place)
        if kind in LASTING:
            flip = always(bit, place)
            kind = LASTING[kind]
        if self._is_faulty and kind in ("weight", "master weight", "moment"):
            self._flip_memory(kind, name, bit, place, draw)
        elif self._is_faulty and kind == "gradient":
            handle = engine.state.parameters[name].register_hook(flip)
        elif self._is_faulty and kind == "activation":
            block = draw.choice(list(engine.deepspeed_engine.module.blocks))
            handle = block.register_forward_hook(in_output(flip))
        elif self._is_faulty and kind == "backward pass":
            block = draw.choice(list(engine.deepspeed_engine.module.blocks))
            handle = block.register_forward_hook(in_gradient(flip))
        elif self._is_faulty:
            modules = engine.deepspeed_engine.module.modules()
            embedding = next(module for module in modules if "Embedding" in type(module).__name__)
            handle = embedding.register_forward_pre_hook(in_tokens(flip))
        try:
            yield
        finally:
            if handle is not None:
                handle.remove()

    def _flip_memory(self, kind: str, name: str, bit: int, place: float, draw: random.Random) -> None:
        state = self._run.engine.state
        if kind == "weight":
            values = state.compute_weight(name)
        else:
            stored = WEIGHT
            if kind == "moment":
                stored = "exp_avg"
            pieces = [state.piece(other, stored).values for other in sorted(state.parameters)]
            # The other rank holds some parameters' sharded state.
            values = draw.choice([piece for piece in pieces if piece.numel()])
        with torch.no_grad():
            values.copy_(flipped(values, bit, place))


def flipped(tensor: Tensor, bit: int, place: float) -> Tensor:
    """Return a copy after flipping a bit in one element, chosen by a share of the size, 0 to 1."""
    flat = tensor.detach().clone().reshape(-1)
    index = int(place * flat.numel())
    if flat.is_floating_point():
        bits = flat.view(torch.int32)
        bits[index] ^= torch.tensor(1 << bit, dtype=torch.int64).to(torch.int32)
    else:
        flat[index] ^= 1 << bit
    return flat.reshape(tensor.shape)


def once(bit: int, place: float) -> Callable[[Tensor], Tensor | None]:
    """Return a function flipping a bit in its first tensor, leaving later ones unchanged."""
    calls: list[int] = []

    def flip(tensor: Tensor) -> Tensor | None:
        calls.append(1)
        if len(calls) > 1:
            return None
        return flipped(tensor, bit, place)

    return flip


def always(bit: int, place: float) -> Callable[[Tensor], Tensor | None]:
    """Return a function flipping a bit in each tensor."""
    return partial(flipped, bit=bit, place=place)


def in_gradient(flip: Callable[[Tensor], Tensor | None]) -> Callable[[Any, Any, Any], None]:
    """Return a forward hook flipping a bit in the first output's gradient."""

    def hook(module: Any, inputs: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        if first.requires_grad:
            first.register_hook(flip)

    return hook


def in_output(flip: Callable[[Tensor], Tensor | None]) -> Callable[[Any, Any, Any], Any]:
    """Return a forward hook flipping a bit in the first output, passing gradients unchanged."""

    def hook(module: Any, inputs: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        changed = flip(first)
        if changed is None:
            return output
        with torch.no_grad():
            first.data.copy_(changed)
        return output

    return hook


def in_tokens(flip: Callable[[Tensor], Tensor | None]) -> Callable[[Any, Any], Any]:
    """Return a forward pre-hook flipping a bit in a token, staying within the vocabulary."""

    def hook(module: Any, inputs: Any) -> Any:
        changed = flip(inputs[0])
        if changed is None:
            return inputs
        changed.clamp_(0, module.weight.shape[0] - 1)
        return (changed, *inputs[1:])

    return hook


def inject(payload: dict[str, Any], topology: Topology) -> list[dict[str, Any]]:
    """Train until the checkpoint, and return each flip's outcome. Runs on each rank."""
    run = trainer_without_lease(parse_config(payload["config"], "bit flips"), topology)
    for _ in range(WARM_UP):
        run.train_step()
    flips = Flips(run, verified_checkpoint(run.checkpoints.ensure_saved()), payload["steps"], payload["bit"])
    outcomes = []
    for kind in KINDS:
        for seed in range(payload["flips"]):
            outcomes.append(asdict(flips.outcome(kind, seed)))
        print(f"{kind}: {Counter(outcome['found_by'] for outcome in outcomes if outcome['kind'] == kind)}", flush=True)
    run.stepper.__exit__(None, None, None)
    return outcomes


def measure(stage: int, num_flips: int, steps: int, data: Path, folder: Path, bit: int | None = None) -> list[Outcome]:
    """Return the outcomes at a ZeRO stage, after `num_flips` of each kind."""
    config = small_config(data, folder / "run")
    config["training"] |= {"steps": 10_000, "micro_batch_size": 2, "memory_check_interval": 1}
    config["optimizer"]["learning_rate"] = 1e-3
    config["zero"] = {"stage": stage}
    config["logging"] = {"sinks": ["jsonl"]}
    payload = {"config": config, "flips": num_flips, "steps": steps, "bit": bit}
    results = run_workers("tests.soak.bit_flips:inject", 2, payload, folder / "workers", timeout=3600)
    return [Outcome(**outcome) for outcome in results[0]]


def table(outcomes: dict[int, list[Outcome]]) -> str:
    """Return a Markdown table with a row for each stage and kind."""
    rows = []
    for stage, flips in outcomes.items():
        for kind in KINDS:
            of_kind = [outcome for outcome in flips if outcome.kind == kind]
            counts = Counter(outcome.found_by for outcome in of_kind)
            missed = [outcome for outcome in of_kind if outcome.found_by == NOTHING]
            num_changed = sum(outcome.changed_loss for outcome in missed)
            found = [str(counts[name]) for name in FOUND_BY]
            rows.append([str(stage), kind, str(len(of_kind)), *found, str(len(missed)), str(num_changed)])
    header = ["stage", "flipped", "flips", *FOUND_BY, "not found", "of these the loss changed"]
    return markdown(header, rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.bit_flips", description=__doc__)
    parser.add_argument("--flips", type=int, default=32, help="of each kind and stage, a multiple of 32 to flip each bit")
    parser.add_argument("--within", type=int, default=4, help="steps after which a flip counts as not found")
    parser.add_argument("--bit", type=int, help="bit to flip, such as 30, the highest of the exponent; all in turn by default")
    parser.add_argument("--stages", default="0,1,2,3", help="ZeRO stages")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="flips-"))
    data = prepare_words(folder)
    outcomes = {}
    for stage in map(int, args.stages.split(",")):
        outcomes[stage] = measure(stage, args.flips, args.within, data, folder / f"stage-{stage}", args.bit)
        (folder / f"stage-{stage}.json").write_text(json.dumps([asdict(outcome) for outcome in outcomes[stage]]))
    print(table(outcomes))


if __name__ == "__main__":
    main()
