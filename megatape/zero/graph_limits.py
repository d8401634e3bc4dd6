"""Settings that CUDA graphs of forward and backward pass (training.cuda_graphs) do not support."""

from dataclasses import replace

from megatape.config import Config
from megatape.config.limits import Incompatibility, Limit
from megatape.registry import AUTO

_SETTING = "training.cuda_graphs true"
_OR_AUTO = "or set training.cuda_graphs to auto"

# Cases in which passes cannot be recorded, whatever training.cuda_graphs is.
CASES: tuple[Incompatibility[Config], ...] = (
    Incompatibility[Config](
        setting=_SETTING,
        case="zero.stage 3",
        when=lambda config: config.zero.stage == 3,
        because="which gathers weights within the passes, to other memory each time",
        remedy=f"choose stage 2, {_OR_AUTO}",
    ),
    Incompatibility[Config](
        setting=_SETTING,
        case="parallel.tp, parallel.sp or parallel.cp above 1",
        when=lambda config: config.parallel.sample_ranks > 1,
        because="whose ranks exchange tensors within the passes",
        remedy=f"choose 1, {_OR_AUTO}",
    ),
    Incompatibility[Config](
        setting=_SETTING,
        case="data.mask_documents",
        when=lambda config: config.data.mask_documents,
        because="since the documents of a sample decide which kernels run",
        remedy=f"remove it, {_OR_AUTO}",
    ),
    Incompatibility[Config](
        setting=_SETTING,
        case="training.activation_checkpointing offload",
        when=lambda config: config.training.activation_checkpointing == "offload",
        because="which allocates host memory within the passes",
        remedy=f"choose full, {_OR_AUTO}",
    ),
)


def _if_required(case: Incompatibility[Config]) -> Incompatibility[Config]:
    """Return the limit of a configuration that requires graphs."""
    return replace(case, when=lambda config: config.training.cuda_graphs is True and case.when(config))


LIMITS: tuple[Limit[Config], ...] = tuple(_if_required(case) for case in CASES)


def records_passes(config: Config, world_size: int) -> bool:
    """Whether a run on GPUs records its passes.

    With "auto" it does if they can be recorded, and if no transfer of gradients would have to wait: gradients arrive after the
    whole backward pass is launched, instead of one after the other. So the optimizer state must be on one GPU.

    Args:
        config: Configuration of the run.
        world_size: Number of ranks.
    """
    setting = config.training.cuda_graphs
    if setting != AUTO:
        return setting is True
    is_supported = not any(case.when(config) for case in CASES)
    return is_supported and world_size == 1 and not config.zero.offload_optimizer
