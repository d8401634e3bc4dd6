"""The sections that distribute a run over ranks and machines."""

from math import lcm, prod
from typing import Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from megatape.config.section import Free, Section
from megatape.errors import ConfigError


class ZeroConfig(Section):
    """Sharding of the training state over data-parallel ranks by DeepSpeed ZeRO.

    Attributes:
        stage: sharded state: 0 nothing, 1 the optimizer state, 2 also the gradients, 3 also the
            weights
        offload_optimizer: keep master weights and optimizer state in host memory, and run the
            optimizer there
        offload_parameters: keep the weights' shards in host memory (stage 3)
        overlap: overlap the reduction of gradients with the backward pass (stages 1 to 3)
        bucket_size: maximum number of elements in a gradient reduction or gather; stage 3 gathers
            this many elements ahead of use, or the matrices of one block if these are more
        sub_group_size: number of elements that the stage 3 optimizer updates at a time
        hpz_ranks: number of ranks of a node that together keep a second copy of the weights
            (stage 3, parallel.tp 1): only the first gather of a weight in a step crosses nodes; 1:
            no copy
    """

    stage: Free[Literal[0, 1, 2, 3]] = 3
    offload_optimizer: Free[bool] = False
    offload_parameters: Free[bool] = False
    overlap: Free[bool] = True
    bucket_size: Free[PositiveInt] = 50_000_000
    sub_group_size: Free[PositiveInt] = 1_000_000_000
    hpz_ranks: Free[PositiveInt] = 1

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.offload_optimizer and self.stage == 0:
            raise ConfigError(f"offload_optimizer needs stage 1, 2 or 3; stage is {self.stage}")
        if self.offload_parameters and self.stage != 3:
            raise ConfigError(f"offload_parameters needs stage 3; stage is {self.stage}")
        if self.hpz_ranks > 1 and self.stage != 3:
            raise ConfigError(f"hpz_ranks {self.hpz_ranks} needs stage 3; stage is {self.stage}")
        return self


class ParallelConfig(Section):
    """Numbers of ranks that share a copy of the model, or a sample. Copies divide the data.

    Attributes:
        tp: T, tensor-parallel ranks: each holds 1/T of the heads, of the MLP, of the vocabulary,
            and of the tokens of both residual streams
        sp: S, sequence-parallel ranks: each holds 1/S of a sample's tokens, and in attention all
            tokens of 1/S of the heads
        cp: P, context-parallel ranks: each holds 1/P of a sample's tokens, in attention as well,
            where keys and values pass around a ring of ranks
    """

    tp: Free[PositiveInt] = 1
    sp: Free[PositiveInt] = 1
    cp: Free[PositiveInt] = 1

    @property
    def axes(self) -> dict[str, int]:
        """Sizes of the axes of the mesh that divide samples."""
        return {"context": self.cp, "sequence": self.sp, "tensor": self.tp}

    def named_sizes(self) -> dict[str, int]:
        """Return parallel.tp, and the other sizes above 1, by setting."""
        sizes = {"parallel.tp": self.tp}
        if self.sp > 1:
            sizes["parallel.sp"] = self.sp
        if self.cp > 1:
            sizes["parallel.cp"] = self.cp
        return sizes

    @property
    def sample_ranks(self) -> int:
        """Number of ranks that divide the tokens of the same samples."""
        return prod(self.axes.values())

    @property
    def sample_replicas(self) -> int:
        """Number of replicas of the model that these ranks have together."""
        return self.sp * self.cp

    @property
    def parts_of_chunk(self) -> int:
        """Number of equal parts that a context-parallel rank's tokens must have: two chunks, divided by its other ranks."""
        return lcm(2, self.tp * self.sp)


class ClusterConfig(Section):
    """Machines to plan for. Only the planner (docs/choose_ranks.md) reads this section.

    Attributes:
        nodes: number of machines
        gpus_per_node: GPUs per machine
        gpu: GPU type: a name that `megatape plan --help` lists, or a JSON file
        host_gib: GiB of host memory per machine, which offloading must fit
    """

    nodes: Free[PositiveInt] = Field(le=100_000)
    gpus_per_node: Free[PositiveInt] = Field(le=1_024)
    gpu: Free[str] = Field(min_length=1)
    host_gib: Free[PositiveFloat | None] = None

    @property
    def world_size(self) -> int:
        """Number of GPUs, each with one rank."""
        return self.nodes * self.gpus_per_node
