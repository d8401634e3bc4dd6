"""Time that training waits for saves, and time and bytes of restoring on other ranks."""

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from torch import Tensor

from megatape.checkpoint.load.reader import CheckpointReader
from megatape.checkpoint.manager import CheckpointManager
from megatape.config import CheckpointConfig, Config, parse_config
from megatape.distributed.topology import Topology
from megatape.distributed.values.exchange import gather_values
from megatape.lab.benchmark.models.shapes import SHAPES
from megatape.lab.benchmark.ranks.rank_processes import (
    RANK_HEADER,
    RankLayout,
    build_engine,
    initialize,
    join_ranks,
    run_ranks,
    send_result,
)
from megatape.reliability.lease import Lease
from megatape.reliability.run_log import RunLog
from megatape.reliability.watch.pace import Pace
from megatape.run_environment import RunEnvironment
from megatape.run_folder import RunFolder
from megatape.training.callbacks.collection import Callbacks
from megatape.training.progress import Progress
from megatape.training.run_state import RunFacts, RunState
from megatape.training.steps.spike_policy import SpikePolicy
from megatape.utils.text.paragraphs import Show
from megatape.utils.text.tables import markdown
from megatape.zero.engine import Engine
from megatape.zero.setup.process_group import shut_down

# This module, whose `main` runs on each rank.
MODULE = "megatape.lab.benchmark.ranks.saves"
SHAPE = replace(SHAPES["155m"], batch=1, length=128)
# Ranks that write the checkpoint.
NUM_RANKS = 2
# Ranks that restore it.
RESTORING = (RankLayout(1, 2, 1), RankLayout(3, 2, 1), RankLayout(1, 2, 2), RankLayout(0, 1, 1))


@dataclass(frozen=True)
class SaveTimes:
    """Seconds of a rank's saves.

    Attributes:
        state_bytes: Bytes of the rank's share of the state.
        copy: Copying this share in memory.
        foreground: Save for which training waits.
        stall: Time that training waits for a save in the background to start.
        background: Time from then to the end of this save.
    """

    state_bytes: int
    copy: float
    foreground: float
    stall: float
    background: float


@dataclass(frozen=True)
class RestoreTimes:
    """Restoring on a rank.

    Attributes:
        seconds: Seconds of reading and copying weights and optimizer state.
        bytes_read: Bytes that the rank asks for.
        bytes_needed: Bytes of its share.
    """

    seconds: float
    bytes_read: int
    bytes_needed: int


def config_of(ranks: RankLayout, num_layers: int, directory: Path) -> Config:
    """Return the configuration of a run on these ranks."""
    raw = SHAPE.with_layers(num_layers).config("tape", "float32").model_dump()
    raw["run"]["directory"] = str(directory)
    raw["zero"]["stage"] = ranks.stage
    raw["parallel"]["tp"] = ranks.tensor_size
    raw["training"]["global_batch_size"] = ranks.data_size
    raw["checkpoint"] |= {"keep": 1}
    return parse_config(raw, "benchmark")


def measure_saves(config: Config, topology: Topology) -> SaveTimes:
    """Save in the foreground, then twice in the background. The second save uses the memory of the first."""
    engine, _ = build_engine(config, topology)
    initialize(engine, config)
    pieces = _pieces(engine)
    copy = _copy_seconds(pieces, topology)
    run, environment = _run_of(config, topology)

    foreground_manager = CheckpointManager(environment, _saving(config, background=False), engine, run)
    _make_step(run)
    foreground = _timed(foreground_manager.save, topology)

    background_manager = CheckpointManager(environment, _saving(config, background=True), engine, run)
    _make_step(run)
    background_manager.save()
    background_manager.ensure_saved()
    _make_step(run)
    stall = _timed(background_manager.save, topology)
    background = _timed(background_manager.ensure_saved, topology)
    num_bytes = sum(piece.nbytes for piece in pieces)
    return SaveTimes(num_bytes, copy, foreground, stall, background)


def measure_restore(config: Config, topology: Topology, checkpoint: Path) -> RestoreTimes:
    """Load a checkpoint, and count the bytes that this rank reads."""
    engine, _ = build_engine(config, topology)
    reader = CheckpointReader(checkpoint)
    num_read = 0

    def read(kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice) -> Tensor:
        nonlocal num_read
        block = reader.read(kind, name, shape, rows, columns)
        num_read += block.nbytes
        return block

    seconds = _timed(partial(engine.state.load, read, 0), topology)
    num_needed = sum(piece.nbytes for piece in _pieces(engine))
    return RestoreTimes(seconds, num_read, num_needed)


def _pieces(engine: Engine) -> list[Tensor]:
    """Return this rank's share of weights and optimizer state."""
    state = engine.state
    pieces = []
    for kind, names in state.names_by_kind.items():
        pieces += [state.piece(name, kind).values for name in names]
    return pieces


def _copy_seconds(tensors: list[Tensor], topology: Topology) -> float:
    """Return the seconds of copying tensors to memory that has been used before."""
    copies = [tensor.clone() for tensor in tensors]

    def copy() -> None:
        for target, tensor in zip(copies, tensors, strict=True):
            target.copy_(tensor)

    return _timed(copy, topology)


def _saving(config: Config, background: bool) -> CheckpointConfig:
    return config.checkpoint.model_copy(update={"background": background})


def _run_of(config: Config, topology: Topology) -> tuple[RunState, RunEnvironment]:
    """Return the state of a run beside the weights, and its environment."""
    folder = RunFolder(Path(config.run.directory))
    lease = Lease(folder.lease)
    log = RunLog(folder, lease, topology)
    environment = RunEnvironment(folder, lease, topology, log, Pace())
    facts = RunFacts(topology.world_size, {}, "sdpa", config.model_dump(), {})
    policy = SpikePolicy(config.training, config.batches)
    return RunState(Progress(config.data.sequence_length), policy, Callbacks({}, log), facts), environment


def _make_step(run: RunState) -> None:
    """Count a step, because a step is saved once."""
    samples = run.progress.samples
    run.progress.advance(range(samples, samples + 1), 0, updated=True)


def _timed(work: Callable[[], object], topology: Topology) -> float:
    """Return the seconds of work that all ranks begin at the same time."""
    gather_values(None, topology)
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def report(show: Show, num_layers: int) -> None:
    """Measure saves and restoring, and show a description and two tables.

    Args:
        show: Shows paragraphs.
        num_layers: Layers of the measured model.
    """
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder, "run")
        directory.mkdir()
        writing = RankLayout(1, NUM_RANKS, 1)
        saving = config_of(writing, num_layers, directory)
        saves = [SaveTimes(**values) for values in run_ranks(MODULE, ["save", saving.model_dump_json()], NUM_RANKS)]
        gigabytes = sum(times.state_bytes for times in saves) / 1e9
        show(f"Weights and optimizer state of {gigabytes:.2f} GB, {NUM_RANKS} CPU ranks at ZeRO stage 1, slowest rank")
        show(save_table(saves))
        (checkpoint,) = RunFolder(directory).list_checkpoints()
        restored = {}
        for ranks in RESTORING:
            config = config_of(ranks, num_layers, directory)
            results = run_ranks(MODULE, ["restore", config.model_dump_json(), str(checkpoint)], ranks.world_size)
            restored[ranks] = [RestoreTimes(**values) for values in results]
        show("Restoring this checkpoint, without its verification, slowest rank")
        show(restore_table(restored))


def save_table(ranks: Sequence[SaveTimes]) -> str:
    """Return a table of the time that training waits for a save."""
    copy = max(times.copy for times in ranks)
    foreground = max(times.foreground for times in ranks)
    stall = max(times.stall for times in ranks)
    background = max(times.background for times in ranks)
    megabytes = sum(times.state_bytes for times in ranks) / 1e6
    rows = [
        ["one copy of the state in memory", f"{copy:.2f}", "1.0", ""],
        ["training waits, save in the background", f"{stall:.2f}", f"{stall / copy:.1f}", ""],
        ["the rest of this save, while training continues", f"{background:.2f}", f"{background / copy:.1f}", ""],
        [
            "training waits, save in the foreground",
            f"{foreground:.2f}",
            f"{foreground / copy:.1f}",
            f"{megabytes / foreground:.0f}",
        ],
    ]
    return markdown(["", "seconds", "copies", "MB/s"], rows)


def restore_table(restored: dict[RankLayout, list[RestoreTimes]]) -> str:
    """Return a table of restoring on several ranks."""
    rows = []
    for ranks, times in restored.items():
        seconds = max(time.seconds for time in times)
        num_read = max(time.bytes_read for time in times)
        num_needed = max(time.bytes_needed for time in times)
        rows.append(
            [
                *ranks.cells,
                f"{seconds:.2f}",
                f"{num_read / 1e6:.0f}",
                f"{num_needed / 1e6:.0f}",
                f"{num_read / num_needed:.3f}",
            ]
        )
    header = [*RANK_HEADER, "seconds", "MB read per rank", "least possible", "ratio"]
    return markdown(header, rows)


def main(words: Sequence[str]) -> None:
    """Run an action on one rank, and send its result. `words`: "save" or "restore", configuration as JSON, checkpoint."""
    topology = join_ranks()
    action, config_text, *checkpoints = words
    config = parse_config(json.loads(config_text), "benchmark")
    result: SaveTimes | RestoreTimes
    if action == "save":
        result = measure_saves(config, topology)
    else:
        (checkpoint,) = checkpoints
        result = measure_restore(config, topology, Path(checkpoint))
    shut_down()
    send_result(asdict(result))
