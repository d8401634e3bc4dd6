"""One rank's share of a model, built without other processes."""

from megatape.accounting.workload import Workload
from megatape.attention.attend import backends_by_priority
from megatape.attention.backend import AttentionRequirements
from megatape.config import ParallelConfig
from megatape.distributed.mesh import Axis, fake_axis
from megatape.model.build import build_model
from megatape.model.layout import Layout
from megatape.model.options import Kernels, TrainingOptions
from megatape.model.requirements import layer_requirements
from megatape.model.transformer import Transformer


def fake_axes(parallel: ParallelConfig) -> dict[str, Axis]:
    """Return the axes along which the model communicates, by name. Their other ranks do not exist."""
    return {name: fake_axis(name, size) for name, size in parallel.axes.items()}


def build_rank_model(workload: Workload, num_layers: int) -> Transformer:
    """Return one rank's share of a model with this number of layers. On the meta device it uses a GPU's attention."""
    axes = fake_axes(workload.parallel)
    layout = Layout(axes["tensor"], axes["sequence"], axes["context"])
    kernels = Kernels(
        backends=backends_by_priority(workload.attention, requirements_on_gpu(workload)),
        rotation_by_kernel=True,
        deterministic=workload.deterministic,
        update_by_kernel=True,
    )
    training = TrainingOptions(
        trainable=workload.trainable,
        frozen=workload.frozen,
        num_shifted_groups=workload.num_shifted_groups,
        activation_checkpointing=workload.activation_checkpointing,
        chunk_tokens=workload.chunk_tokens,
    )
    return build_model(workload.with_model(num_layers=num_layers).model, layout, kernels, training)


def requirements_on_gpu(workload: Workload) -> AttentionRequirements:
    """Return the requirements of the most demanding attention layers on a GPU."""
    most_demanding, *_ = layer_requirements(
        workload.model,
        "cuda",
        workload.precision,
        length=workload.sequence_length,
        masked=workload.mask_documents,
        ring=workload.parallel.cp > 1,
        deterministic=workload.deterministic,
    )
    return most_demanding
