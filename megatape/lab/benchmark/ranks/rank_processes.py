"""Ranks of a benchmark, a process each, started without a launcher."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from subprocess import PIPE
from typing import Any

from megatape.config import Config
from megatape.distributed.launch.launchers import set_up_ranks
from megatape.distributed.launch.network import free_port
from megatape.distributed.mesh import Axis, Mesh, make_mesh
from megatape.distributed.topology import Topology
from megatape.lab.processes import child, finish
from megatape.model.build import build_model
from megatape.model.layout import Layout
from megatape.model.transformer import Transformer
from megatape.training.startup.state.new_run_state import fresh_state
from megatape.utils.processes.python_process import python_command
from megatape.zero.engine import Engine
from megatape.zero.engine_options import engine_options
from megatape.zero.setup.compiler_import import import_compiler_on_use
from megatape.zero.setup.process_group import initialize_distributed

# Columns of a table for RankLayout.cells.
RANK_HEADER = ["ZeRO stage", "data x tensor"]


@dataclass(frozen=True)
class RankLayout:
    """Ranks of a run.

    Attributes:
        stage: ZeRO stage.
        world_size: Number of ranks.
        tensor_size: Tensor-parallel ranks.
    """

    stage: int
    world_size: int
    tensor_size: int = 1

    @property
    def data_size(self) -> int:
        """Data-parallel ranks."""
        return self.world_size // self.tensor_size

    @property
    def cells(self) -> list[str]:
        """Cells of a table, see RANK_HEADER."""
        return [str(self.stage), f"{self.data_size} x {self.tensor_size}"]


def run_ranks(module: str, words: Sequence[str], world_size: int) -> list[dict[str, Any]]:
    """Run a module's `main` on each rank, in processes.

    Args:
        module: Module whose `main(words)` calls `send_result`.
        words: Arguments of `main`.
        world_size: Number of ranks.

    Returns:
        The result of each rank.

    Raises:
        ChildProcessError: A process failed.
    """
    command = python_command(module, *words)
    shared = {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    with ExitStack() as stack:
        processes = []
        for rank in range(world_size):
            environment = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(stack.enter_context(child(command, env=environment, stderr=PIPE)))
        outputs = [finish(process) for process in processes]
    # Libraries may print before the last line.
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def send_result(result: Mapping[str, Any]) -> None:
    """Send this rank's result to `run_ranks`."""
    sys.stdout.write(json.dumps(result))


def join_ranks() -> Topology:
    """Join the process group, in a process started by `run_ranks`."""
    import_compiler_on_use()
    topology = set_up_ranks()
    initialize_distributed(topology)
    return topology


def build_engine(config: Config, topology: Topology) -> tuple[Engine, Mesh]:
    """Build the engine of a run, and the mesh of its ranks. The weights are not initialized."""
    mesh = make_mesh(topology, config.parallel.axes)

    def build(tensor_axis: Axis) -> Transformer:
        return build_model(config.model, Layout(tensor_axis))

    return Engine(engine_options(config, topology.world_size), topology, mesh, build), mesh


def initialize(engine: Engine, config: Config) -> None:
    """Fill in the weights and the optimizer state of a new run."""
    state = fresh_state(engine.state.parameters, config.model.init_std, config.training.seed)
    engine.state.load(state, step=0)
