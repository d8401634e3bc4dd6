"""Builds the ZeRO stage of an engine."""

from deepspeed import DeepSpeedEngine

from megatape.distributed.mesh import Mesh
from megatape.zero.stages.stage import ZeroStage
from megatape.zero.stages.stage0 import Stage0
from megatape.zero.stages.stage3 import Stage3
from megatape.zero.stages.stage12 import Stage12

# Stages that shard something.
SHARDED_STAGES: dict[int, type[ZeroStage]] = {1: Stage12, 2: Stage12, 3: Stage3}


def build_stage(engine: DeepSpeedEngine, mesh: Mesh, gradient_clip: float) -> ZeroStage:
    """Return an engine's stage.

    Args:
        engine: DeepSpeed's engine.
        mesh: Mesh over all ranks.
        gradient_clip: Maximum gradient norm, 0 for no clipping. Used at stage 0: from stage 1 on, DeepSpeed clips.
    """
    number = engine.zero_optimization_stage()
    if number == 0:
        return Stage0(engine, mesh, gradient_clip)
    return SHARDED_STAGES[number](engine)
