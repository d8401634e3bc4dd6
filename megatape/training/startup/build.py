"""Builds the parts of a run from its configuration and ranks: loader, evaluator and engine."""

from megatape.attention.attend import Backends
from megatape.config import Config
from megatape.data.training.loader import Loader
from megatape.data.training.run_data import RunData
from megatape.distributed.mesh import Axis, Mesh
from megatape.distributed.topology import Topology
from megatape.encodings import encoding_of
from megatape.model.build import build_model
from megatape.model.division_check import check_division
from megatape.model.trainable import check_trainable
from megatape.model.transformer import Transformer
from megatape.training.startup.working_kernels import loss_by_kernel, updates_by_kernel, working_backends, working_product
from megatape.training.validation.evaluator import Evaluator
from megatape.zero.distributed import own_device
from megatape.zero.engine import Engine
from megatape.zero.engine_options import engine_options


def build_loader(config: Config, data: RunData, axis: Axis) -> Loader:
    """Build the reader of this rank's training samples.

    Args:
        config: Configuration of the run.
        data: Data opened by this rank.
        axis: Ranks that read different samples.

    Raises:
        ConfigError: The number of ranks does not divide the global batch.
    """
    config.accumulation(axis.size * config.parallel.sample_ranks)
    warmup = {}
    for stage in config.data.length_warmup:
        warmup[stage.length] = -(-stage.tokens // config.data.sequence_length)
    return Loader(
        data.train,
        batches=config.batches,
        micro_batch_size=config.training.micro_batch_size,
        rank=axis.rank,
        world_size=axis.size,
        positions=encoding_of(config.model).positions(config.data.random_offset),
        warmup=warmup,
    )


def build_evaluator(config: Config, data: RunData, engine: Engine) -> Evaluator:
    """Build the evaluator of a run.

    Args:
        config: Configuration of the run.
        data: Data opened by this rank.
        engine: Engine of the run.
    """
    encoding = encoding_of(config.model)
    return Evaluator(
        engine,
        data,
        positions=encoding.positions(config.data.random_offset),
        micro_batch_size=config.training.micro_batch_size,
        seed=config.training.seed,
        views_positions=encoding.carries_state,
    )


def build_engine(config: Config, topology: Topology, mesh: Mesh) -> tuple[Engine, Backends]:
    """Build model and optimizer under DeepSpeed, and select the attention backends of the model. Collective.

    Args:
        config: Configuration of the run.
        topology: All ranks.
        mesh: Mesh of the ranks.

    Raises:
        UserError: The model cannot be built or computed here as configured. Raised on all ranks.
    """
    device = own_device()
    training = config.training
    check_division(config.model, config.data, mesh, topology, device)
    backends = working_backends(config, device, topology)
    fp8 = working_product(training.fp8, device, topology)
    update_by_kernel = updates_by_kernel(config, device, topology)
    by_kernel = loss_by_kernel(config, device, topology)

    compiler = None
    if training.compile:
        compiler = "inductor"

    def build(axis: Axis) -> Transformer:
        model = build_model(
            config.model,
            axis,
            sequence_axis=mesh["sequence"],
            context_axis=mesh["context"],
            trainable=training.trainable,
            frozen=training.frozen,
            fp8=fp8,
            backends=backends,
            update_by_kernel=update_by_kernel,
            z_loss=training.z_loss,
            loss_by_kernel=by_kernel,
            num_shifted_groups=training.num_shifted_groups,
            activation_checkpointing=training.activation_checkpointing,
            chunk_tokens=training.chunk_tokens,
            compiler=compiler,
        )
        check_trainable(model, training.trainable, training.frozen)
        return model

    return Engine(engine_options(config, topology.world_size), topology, mesh, build), backends
