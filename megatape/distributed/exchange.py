"""The exchange of small values between all ranks."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.distributed.serialization import STRANGER, Failure, decode, encode
from megatape.distributed.topology import Topology, name_ranks
from megatape.errors import UserError

Result = TypeVar("Result")
Value = TypeVar("Value")

# Maximum size of a rank's value. Real values have a few megabytes at most.
MAX_BYTES = 2**30


def gather_values(value: Value, topology: Topology, group: dist.ProcessGroup | None = None) -> list[Value]:
    """Return the values of all ranks, in order, on every rank. Collective.

    Values are sent as JSON: torch's all_gather_object would unpickle data from other processes, which can run code.

    Args:
        value: This rank's value, of a type that `encode` supports.
        topology: All ranks.
        group: Process group of all ranks, by default the one that training uses.

    Returns:
        The values by rank.

    Raises:
        TypeError: The value has an unsupported type.
        UserError: Another process sent data that is not a value.
    """
    if topology.world_size == 1:
        # A single rank needs no process group.
        return [value]
    texts = _gather(encode(value), topology.world_size, group)
    return [decode(text) for text in texts]


def _gather(text: bytes, world_size: int, group: dist.ProcessGroup | None) -> list[bytes]:
    """Return the texts of all ranks, by rank. Collective."""
    device = torch.device("cpu")
    if "gloo" not in dist.get_backend(group):
        device = torch.device("cuda", torch.cuda.current_device())
    own_size = torch.tensor([len(text)], dtype=torch.int64, device=device)
    gathered_sizes = torch.empty(world_size, dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(gathered_sizes, own_size, group)
    sizes = gathered_sizes.tolist()
    longest = max(sizes)
    if min(sizes) < 1 or longest > MAX_BYTES:
        raise UserError(f"ranks announce values of {sizes} bytes: {STRANGER}")

    # All-gather needs texts of equal length, so pad each to the longest.
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    gathered = torch.empty(world_size * longest, dtype=torch.uint8, device=device)
    dist.all_gather_into_tensor(gathered, padded.to(device), group)
    rows: list[Tensor] = list(gathered.cpu().view(world_size, longest))
    texts: list[bytes] = []
    for row, size in zip(rows, sizes, strict=True):
        texts.append(row[:size].numpy().tobytes())
    return texts


def on_main(work: Callable[[], Result], topology: Topology, group: dist.ProcessGroup | None = None) -> Result:
    """Do some work on the main rank, and return its result on every rank. Collective.

    Args:
        work: Work of the main rank. It must not be collective. Its result has a type that `encode` supports.
        topology: All ranks.
        group: Process group of all ranks, by default the one that training uses.

    Returns:
        The result.

    Raises:
        UserError: The main rank raised it. Raised on all ranks.
        OSError: The main rank raised it. Raised on all ranks.
    """

    def work_of_rank() -> Result | None:
        if not topology.is_main:
            return None
        return work()

    results = on_all(work_of_rank, topology, group, names=False)
    return results[0]  # type: ignore[return-value]


def on_all(
    work: Callable[[], Result],
    topology: Topology,
    group: dist.ProcessGroup | None = None,
    context: str = "",
    names: bool = True,
) -> list[Result]:
    """Do some work on every rank, and return the results of all ranks on every rank. Collective.

    A UserError or an OSError of a rank is raised on all ranks, with the type and the errno of the first rank that raised one.
    Other errors stay on their rank.

    Args:
        work: Work of each rank. It must not be collective, because it may fail on one rank alone. Its result has a type that
            `encode` supports.
        topology: All ranks.
        group: Process group of all ranks, by default the one that training uses.
        context: Text in front of an error's message.
        names: Whether the message names the ranks that raised the error, unless all did.

    Returns:
        The results by rank.

    Raises:
        UserError: A rank raised it. Raised on all ranks.
        OSError: A rank raised it. Raised on all ranks.
    """
    value: Result | None = None
    own_error: Failure | None = None
    try:
        value = work()
    except (UserError, OSError) as error:
        own_error = error

    outcomes = gather_values((value, own_error), topology, group)
    errors: dict[int, Failure] = {}
    for rank, (_, rank_error) in enumerate(outcomes):
        if rank_error is not None:
            errors[rank] = rank_error
    if not errors:
        return [result for result, _ in outcomes]  # type: ignore[misc]

    first = next(iter(errors.values()))
    failure = type(first)(context + _message(errors, topology, names))
    if isinstance(failure, OSError) and isinstance(first, OSError):
        failure.errno = first.errno
    # Python's own errors have no such attribute; commands read it of any error.
    failure.everywhere = True  # type: ignore[union-attr]
    raise failure from own_error


def _message(errors: Mapping[int, Failure], topology: Topology, names: bool) -> str:
    """Return the message of the error that all ranks raise.

    Args:
        errors: Errors by rank.
        topology: All ranks.
        names: Whether to name the ranks, unless all raised the same error.
    """
    ranks_of: dict[str, list[int]] = {}
    for rank, error in errors.items():
        ranks_of.setdefault(str(error), []).append(rank)
    is_common = len(ranks_of) == 1 and len(errors) == topology.world_size
    if is_common or not names:
        return "; ".join(ranks_of)
    return "; ".join(f"{name_ranks(ranks)}: {text}" for text, ranks in ranks_of.items())
