"""Builds model and optimizer under DeepSpeed, with the kernels that work on all ranks."""

import torch

from megatape.attention.attend import get_backend, select_backend
from megatape.config import Config
from megatape.distributed.mesh import Axis, Mesh
from megatape.distributed.topology import Topology
from megatape.model.build import build_model
from megatape.model.layout import Layout
from megatape.model.options import Kernels, TrainingOptions
from megatape.model.requirements import attention_requirements
from megatape.model.trainable import check_trainable
from megatape.model.transformer import Transformer
from megatape.training.startup.attention_choice import AttentionChoice
from megatape.training.startup.split_sequence_check import check_split_sequences
from megatape.training.startup.working_kernels import KernelTests, working_product
from megatape.zero.distributed import local_device
from megatape.zero.engine import Engine
from megatape.zero.engine_options import engine_options


def build_engine(config: Config, topology: Topology, mesh: Mesh) -> tuple[Engine, AttentionChoice]:
    """Build model and optimizer under DeepSpeed, and select attention backends and kernels. Collective.

    Args:
        config: Configuration.
        topology: All ranks.
        mesh: Mesh of the ranks.

    Returns:
        The engine, and the attention backend of the first layer.

    Raises:
        UserError: The model cannot be built or computed as configured. Raised on all ranks.
    """
    device = local_device()
    training = config.training
    check_split_sequences(config.model, config.data, mesh, topology, device)
    requirements = attention_requirements(config, device.type)
    dtype = getattr(torch, training.precision)
    kernel_tests = KernelTests(config.model, dtype, config.data.sequence_length, device, topology)
    rotation_by_kernel = kernel_tests.rotates_by_kernel()
    backends = kernel_tests.working_backends(requirements, training.attention, rotation_by_kernel)
    fp8 = working_product(training.fp8, device, topology)
    update_by_kernel = kernel_tests.updates_by_kernel(config.parallel.tp)
    loss_by_kernel = kernel_tests.computes_loss_by_kernel(training.z_loss)
    compiler = None
    if training.compile:
        compiler = "inductor"
    kernels = Kernels(
        backends=backends,
        rotation_by_kernel=rotation_by_kernel,
        update_by_kernel=update_by_kernel,
        loss_by_kernel=loss_by_kernel,
        fp8=fp8,
        compiler=compiler,
    )
    options = TrainingOptions(
        trainable=training.trainable,
        frozen=training.frozen,
        z_loss=training.z_loss,
        num_shifted_groups=training.num_shifted_groups,
        activation_checkpointing=training.activation_checkpointing,
        chunk_tokens=training.chunk_tokens,
    )

    def build(tensor_axis: Axis) -> Transformer:
        layout = Layout(tensor_axis, mesh["sequence"], mesh["context"])
        model = build_model(config.model, layout, kernels, options)
        check_trainable(model, training.trainable, training.frozen)
        return model

    name = select_backend(requirements[0], backends)
    kernel = None
    if device.type == "cuda":
        kernel = get_backend(name).kernel_name(requirements[0], device) or None
    return Engine(engine_options(config, topology.world_size), topology, mesh, build), AttentionChoice(name, kernel)
