"""Builds the ZeRO stage of an engine."""

from deepspeed import DeepSpeedEngine

from megatape.distributed.mesh import Mesh
from megatape.zero.stages.stage import ZeroStage
from megatape.zero.stages.stage0 import Stage0
from megatape.zero.stages.stage3 import Stage3
from megatape.zero.stages.stage12 import Stage12

STAGES: dict[int, type[ZeroStage]] = {0: Stage0, 1: Stage12, 2: Stage12, 3: Stage3}


def build_stage(engine: DeepSpeedEngine, mesh: Mesh, gradient_clip: float) -> ZeroStage:
    """Return an engine's stage, see ZeroStage."""
    stage = STAGES[engine.zero_optimization_stage()]
    return stage(engine, mesh, gradient_clip)
