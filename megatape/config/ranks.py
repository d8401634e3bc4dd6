"""The sections that spread a run over ranks: zero, parallel, and the cluster that the planner assumes."""

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from megatape.config.section import Free, Section


class ZeroConfig(Section):
    """How DeepSpeed ZeRO spreads the training state over the data-parallel ranks."""

    stage: Free[Literal[0, 1, 2, 3]] = Field(3, description="0 nothing, 1 optimizer state, 2 and gradients, 3 and weights")
    offload_optimizer: Free[bool] = Field(False, description="keep masters and moments, and step, in host memory")
    offload_parameters: Free[bool] = Field(False, description="keep the weights' partitions in host memory (stage 3)")
    bucket_size: Free[PositiveInt] = Field(
        50_000_000, description="elements that one gradient reduction or gather moves at most"
    )
    sub_group_size: Free[PositiveInt] = Field(1_000_000_000, description="elements that the stage 3 optimizer steps at a time")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.offload_optimizer and self.stage == 0:
            raise ValueError("offload_optimizer needs stage 1, 2 or 3; the stage is 0")
        if self.offload_parameters and self.stage != 3:
            raise ValueError(f"offload_parameters needs stage 3; the stage is {self.stage}")
        return self


class ParallelConfig(Section):
    """How ranks divide the model; all others divide the data."""

    tp: Free[PositiveInt] = Field(
        1,
        description="T, tensor-parallel ranks: each holds 1/T of the heads, of the MLP, of the vocabulary and of both streams' tokens",
    )


class ClusterConfig(Section):
    """The machines that the settings are meant for. The planner (docs/planning.md) reads it; training takes the ranks it is given."""

    nodes: Free[PositiveInt] = Field(description="machines")
    gpus_per_node: Free[PositiveInt] = Field(description="GPUs of each")
    gpu: Free[str] = Field(min_length=1, description="what they are: a name that `megatape plan --help` lists, or a JSON file")

    @property
    def world_size(self) -> int:
        """GPUs in all, each with one rank."""
        return self.nodes * self.gpus_per_node
