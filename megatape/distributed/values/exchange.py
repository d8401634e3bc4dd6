"""Gathering small Python values from all ranks, and running work so that its errors are raised on every rank."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.distributed.topology import Topology, name_ranks
from megatape.distributed.values.serialization import STRANGER, Failure, decode, encode
from megatape.errors import UserError, marked_message

Result = TypeVar("Result")
Value = TypeVar("Value")

# Maximum size of a rank's value. Real ones take a few megabytes at most.
MAX_BYTES = 2**30


def gather_values(value: Value, topology: Topology, group: dist.ProcessGroup | None = None) -> list[Value]:
    """Return the values of all ranks, on every rank. Collective.

    torch's all_gather_object would unpickle data from other processes, which can run code. This sends JSON.

    Args:
        value: This rank's value, of a type supported by `encode`.
        topology: Ranks of this process.
        group: Process group of all ranks, by default the one used in training.

    Returns:
        Values by rank.

    Raises:
        TypeError: The value has an unsupported type.
        UserError: The received data is not from a rank of this run.
    """
    if topology.world_size == 1:
        # A single rank needs no process group.
        return [value]
    texts = _gather(encode(value), topology.world_size, group)
    return [decode(text) for text in texts]


def _gather(text: bytes, world_size: int, group: dist.ProcessGroup | None) -> list[bytes]:
    """Return the texts of all ranks. Collective."""
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
    """Call a function on the main rank, and return its result on every rank. Collective.

    Args:
        work: Function to call. It must not be collective. Its result has a type supported by `encode`.
        topology: Ranks of this process.
        group: Process group of all ranks, by default the one used in training.

    Raises:
        UserError: The main rank raised it. All ranks raise it.
        OSError: The main rank raised it. All ranks raise it, with the errno.
    """

    def work_of_rank() -> Result | None:
        if not topology.is_main:
            return None
        return work()

    results = on_all(work_of_rank, topology, group, names_ranks=False)
    return results[0]  # type: ignore[return-value]


def on_all(
    work: Callable[[], Result],
    topology: Topology,
    group: dist.ProcessGroup | None = None,
    context: str = "",
    names_ranks: bool = True,
) -> list[Result]:
    """Call a function on every rank, and return the results of all ranks on every rank. Collective.

    Args:
        work: Function to call. It must not be collective, because it may fail on one rank alone. Its result has a type
            supported by `encode`.
        topology: Ranks of this process.
        group: Process group of all ranks, by default the one used in training.
        context: Text in front of the error message.
        names_ranks: Whether the message names the failing ranks, unless all ranks failed.

    Returns:
        Results by rank.

    Raises:
        UserError: A rank raised it. All ranks raise it, of the first failing rank's type. Other errors stay on their rank.
        OSError: A rank raised it. All ranks raise it, with the errno.
    """
    value, local_error = _attempt(work)
    outcomes = gather_values((value, local_error), topology, group)
    _raise_common([error for _, error in outcomes], local_error, topology, context, names_ranks)
    return [result for result, _ in outcomes]  # type: ignore[misc]


def on_each(work: Callable[[], Result], topology: Topology, context: str = "") -> Result:
    """Call a function on every rank, and return this rank's own result. Collective.

    Args:
        work: Function to call, as in `on_all`, with a result of any type.
        topology: Ranks of this process.
        context: Text in front of the error message.

    Raises:
        UserError: A rank raised it. All ranks raise it, as in `on_all`.
        OSError: A rank raised it. All ranks raise it, as in `on_all`.
    """
    value, local_error = _attempt(work)
    outcomes = gather_values((None, local_error), topology)
    _raise_common([error for _, error in outcomes], local_error, topology, context)
    return value  # type: ignore[return-value]


def _attempt(work: Callable[[], Result]) -> tuple[Result | None, Failure | None]:
    """Return the result of a function, or the error to share with the other ranks."""
    try:
        return work(), None
    except (UserError, OSError) as error:
        return None, error


def _raise_common(
    error_of_rank: Sequence[Failure | None],
    local_error: Failure | None,
    topology: Topology,
    context: str,
    names_ranks: bool = True,
) -> None:
    """Raise an error if a rank failed, the same one on all ranks. Its cause is this rank's error, if any."""
    errors: dict[int, Failure] = {}
    for rank, rank_error in enumerate(error_of_rank):
        if rank_error is not None:
            errors[rank] = rank_error
    if not errors:
        return

    first = next(iter(errors.values()))
    common_error = type(first)(context + _message(errors, topology, names_ranks))
    if isinstance(common_error, OSError) and isinstance(first, OSError):
        common_error.errno = first.errno
    # Commands read this attribute of any error. Python's own errors do not declare it.
    common_error.everywhere = True  # type: ignore[union-attr]
    raise common_error from local_error


def _message(errors: Mapping[int, Failure], topology: Topology, names_ranks: bool) -> str:
    """Return the message of the error that all ranks raise, see `on_all`."""
    ranks_by_text: dict[str, list[int]] = {}
    for rank, error in errors.items():
        ranks_by_text.setdefault(marked_message(error), []).append(rank)
    is_common = len(ranks_by_text) == 1 and len(errors) == topology.world_size
    if is_common or not names_ranks:
        return "; ".join(ranks_by_text)
    return "; ".join(f"{name_ranks(ranks)}: {text}" for text, ranks in ranks_by_text.items())
