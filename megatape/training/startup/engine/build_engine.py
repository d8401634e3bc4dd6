"""Builds model and optimizer under DeepSpeed, with the kernels that work on all ranks."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from megatape.attention.attend import get_backend, select_backend
from megatape.attention.backend import AttentionRequirements
from megatape.config import Config
from megatape.distributed.mesh import Axis, Mesh
from megatape.distributed.topology import Topology
from megatape.model.build import build_model
from megatape.model.layout import Layout
from megatape.model.options import Kernels, ModelOptions, TrainingOptions
from megatape.model.requirements import attention_requirements
from megatape.model.trainable import check_trainable
from megatape.model.transformer import Transformer
from megatape.model.wrappers.compilation import prepare_compiler, reason_for_parts
from megatape.reliability.goodput.parts import TimePart
from megatape.reliability.goodput.process_clock import ProcessClock
from megatape.training.startup.engine.graph_recording import graph_recording
from megatape.training.startup.engine.split_sequence_check import check_split_sequences
from megatape.training.startup.engine.working_kernels import KernelTests, working_linear_function
from megatape.utils.pytorch.recorder import Recorder
from megatape.zero.engine import Engine
from megatape.zero.engine_options import engine_options
from megatape.zero.setup.compiler_import import import_compiler_on_use
from megatape.zero.setup.device import local_device

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class AttentionChoice:
    """Attention backend of the first layer.

    Attributes:
        name: Backend name.
        kernel: Name of its kernel on a GPU, or None if it has only one or runs on a CPU.
    """

    name: str
    kernel: str | None

    def __str__(self) -> str:
        if self.kernel is None:
            return self.name
        return f"{self.name} ({self.kernel})"


def build_engine(
    config: Config,
    topology: Topology,
    mesh: Mesh,
    clock: ProcessClock,
    make_recorder: Callable[[], Recorder] | None = None,
) -> tuple[Engine, AttentionChoice]:
    """Build model and optimizer under DeepSpeed, and select attention backends and kernels. Collective.

    Args:
        config: Configuration.
        topology: All ranks.
        mesh: Mesh of the ranks.
        clock: Clock of this process.
        make_recorder: Returns a recorder of passes, by default one for GPUs.

    Returns:
        The engine, and the attention backend of the first layer.

    Raises:
        UserError: The model cannot be built or computed as configured. Raised on all ranks.
    """
    import_compiler_on_use()
    device = local_device()
    training = config.training
    recording = graph_recording(config, topology.world_size, device, make_recorder)
    check_split_sequences(config.model, config.data, mesh, topology, device)
    requirements = attention_requirements(config, device.type)
    with clock.measure(TimePart.COMPILATION):
        kernels = _working_kernels(config, requirements, device, topology)
    options = TrainingOptions(
        trainable=training.trainable,
        frozen=training.frozen,
        z_loss=training.z_loss,
        num_shifted_groups=training.num_shifted_groups,
        activation_checkpointing=training.activation_checkpointing,
        chunk_tokens=training.chunk_tokens,
        gathers_blocks=training.compile and config.zero.stage == 3,
    )

    def build(tensor_axis: Axis) -> Transformer:
        layout = Layout(tensor_axis, mesh["sequence"], mesh["context"])
        model = build_model(config.model, layout, kernels, options)
        if training.compile and topology.is_main:
            reason = reason_for_parts(ModelOptions(layout, kernels, options))
            if reason is not None:
                LOG.info("training.compile compiles each block in two parts instead of one: %s", reason)
        check_trainable(model, training.trainable, training.frozen)
        return model

    name = select_backend(requirements[0], kernels.backends)
    kernel = None
    if device.type == "cuda":
        kernel = get_backend(name).kernel_name(requirements[0], device) or None
    engine = Engine(engine_options(config, topology.world_size), topology, mesh, build, recording)
    return engine, AttentionChoice(name, kernel)


def _working_kernels(
    config: Config, requirements: Sequence[AttentionRequirements], device: torch.device, topology: Topology
) -> Kernels:
    """Try attention backends and kernels, and select those that work on all ranks. Collective."""
    training = config.training
    dtype = getattr(torch, training.precision)
    kernel_tests = KernelTests(config.model, dtype, config.data.sequence_length, device, topology)
    rotation_by_kernel = kernel_tests.rotates_by_kernel()
    backends = kernel_tests.working_backends(requirements, training.attention, rotation_by_kernel)
    linear_function = working_linear_function(training.fp8, device, topology)
    update_by_kernel = kernel_tests.updates_by_kernel(config.parallel.tp)
    loss_by_kernel = kernel_tests.computes_loss_by_kernel(training.z_loss)
    compiler = None
    if training.compile:
        compiler = "inductor"
        # At stage 3, torch's compiler cannot be imported while the model is built: DeepSpeed replaces Tensor.__new__ meanwhile.
        prepare_compiler(compiler)
    return Kernels(
        backends=backends,
        rotation_by_kernel=rotation_by_kernel,
        deterministic=training.deterministic,
        update_by_kernel=update_by_kernel,
        loss_by_kernel=loss_by_kernel,
        linear_function=linear_function,
        compiler=compiler,
    )
