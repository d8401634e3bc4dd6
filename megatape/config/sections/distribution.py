"""The sections that distribute a run over ranks and machines."""

from math import lcm, prod
from typing import Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from megatape.config.section import Free, Section
from megatape.errors import ConfigError


class ZeroConfig(Section):
    """DeepSpeed ZeRO: sharding the training state across data-parallel ranks.

    Attributes:
        stage: sharded state: 0 nothing, 1 the optimizer state, 2 also the gradients, 3 also the
            weights; a higher stage saves memory, and `megatape plan` compares their speed
        offload_optimizer: keep master weights and optimizer state, the largest part of the training
            state, in host memory, and run the optimizer there, which is slower
        offload_parameters: keep the weights' shards in host memory (stage 3)
        overlap: reduce gradients while the backward pass is running (stages 1 to 3)
        bucket_size: maximum elements per gradient reduction or gather; two buckets are in memory, 8
            bytes per element; stage 3 gathers this many elements ahead of use, or the matrices of
            one block if these are more
        sub_group_size: elements that the stage 3 optimizer updates at a time
        hpz_ranks: ranks of a node that together keep a second copy of the weights (stage 3,
            parallel.tp 1), so only the first gather of a weight in a step crosses nodes; 1: no copy
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
    """Ranks that share one copy of the model or one sample. The other ranks train on different samples (docs/choose_ranks.md).

    Attributes:
        tp: T, tensor-parallel ranks, for models too large for a GPU: each holds 1/T of the heads,
            the MLP, the vocabulary, and the tokens in both residual streams; keep them in one node
        sp: S, sequence-parallel ranks, for long samples: each holds 1/S of a sample's tokens, and in
            attention all tokens of 1/S of the heads
        cp: P, context-parallel ranks, for samples that need more ranks than sp can use: each holds
            1/P of a sample's tokens, in attention as well, where keys and values pass around a ring
            of ranks
    """

    tp: Free[PositiveInt] = 1
    sp: Free[PositiveInt] = 1
    cp: Free[PositiveInt] = 1

    @property
    def axes(self) -> dict[str, int]:
        """Sizes of the mesh axes that share samples."""
        return {"context": self.cp, "sequence": self.sp, "tensor": self.tp}

    def named_sizes(self) -> dict[str, int]:
        """Return parallel.tp and all other sizes above 1, by setting."""
        sizes = {"parallel.tp": self.tp}
        if self.sp > 1:
            sizes["parallel.sp"] = self.sp
        if self.cp > 1:
            sizes["parallel.cp"] = self.cp
        return sizes

    @property
    def sample_ranks(self) -> int:
        """Ranks that share the same samples."""
        return prod(self.axes.values())

    @property
    def sample_replicas(self) -> int:
        """Replicas of the model that the ranks of a sample hold together."""
        return self.sp * self.cp

    @property
    def parts_of_chunk(self) -> int:
        """Equal parts of a context-parallel rank's tokens: two chunks, split across its tensor and sequence ranks."""
        return lcm(2, self.tp * self.sp)


class ClusterConfig(Section):
    """Machines to plan for. Only the planner (docs/choose_ranks.md) reads this section.

    Attributes:
        nodes: machines
        gpus_per_node: GPUs per machine
        gpu: GPU type: a name that `megatape plan --help` lists, or a JSON file
        host_gib: GiB of host memory per machine, which must hold everything offloaded
    """

    nodes: Free[PositiveInt] = Field(le=100_000)
    gpus_per_node: Free[PositiveInt] = Field(le=1_024)
    gpu: Free[str] = Field(min_length=1)
    host_gib: Free[PositiveFloat | None] = None

    @property
    def world_size(self) -> int:
        """GPUs in total, with one rank each."""
        return self.nodes * self.gpus_per_node
