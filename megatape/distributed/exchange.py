"""The exchange of small values between all ranks."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.distributed.serialization import STRANGER, Failure, decode, encode
from megatape.distributed.topology import Topology, name_ranks
from megatape.errors import UserError

Result = TypeVar("Result")

MAX_BYTES = 2**30  # Maximum size of a rank's value. Real ones have a few megabytes at most.


def gather_values(value: Any, topology: Topology, group: dist.ProcessGroup | None = None) -> list[Any]:
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
    if topology.world_size == 1:  # needs no process group
        return [value]
    return [decode(text) for text in _gather(encode(value), topology.world_size, group)]


def _gather(text: bytes, world_size: int, group: dist.ProcessGroup | None) -> list[bytes]:
    """Return the texts of all ranks, by rank. Collective."""
    device = torch.device("cpu")
    if "gloo" not in dist.get_backend(group):
        device = torch.device("cuda", torch.cuda.current_device())
    own_size = torch.tensor([len(text)], dtype=torch.int64, device=device)
    sizes = torch.empty(world_size, dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(sizes, own_size, group)
    numbers = sizes.tolist()
    longest = max(numbers)
    if min(numbers) < 1 or longest > MAX_BYTES:
        raise UserError(f"ranks announce values of {numbers} bytes: {STRANGER}")
    own = torch.zeros(longest, dtype=torch.uint8)
    own[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    gathered = torch.empty(world_size * longest, dtype=torch.uint8, device=device)
    dist.all_gather_into_tensor(gathered, own.to(device), group)
    rows: list[Tensor] = list(gathered.cpu().view(world_size, longest))
    return [row[:number].numpy().tobytes() for row, number in zip(rows, numbers, strict=True)]


def on_main(work: Callable[[], Result], topology: Topology, group: dist.ProcessGroup | None = None) -> Result:
    """What `work` returns on the main rank, on every rank. Collective, over `group` as in `gather_values`.

    Raises on all ranks:
        UserError, OSError: that of the main rank, as `on_all` does.
    """
    return on_all(lambda: work() if topology.is_main else None, topology, group, names=False)[0]  # type: ignore[return-value]


def on_all(
    work: Callable[[], Result],
    topology: Topology,
    group: dist.ProcessGroup | None = None,
    context: str = "",
    names: bool = True,
) -> list[Result]:
    """What `work` returns on every rank, in order, on every rank. Collective, over `group` as in `gather_values`.

    Args:
        work: must not be collective: it may fail on one rank alone. It returns a value of a type that `encode` supports.
        topology: all ranks.
        group: of all ranks, by default the one that training uses.
        context: of an error, before its text.
        names: whether the error names the ranks that met it, unless all did.

    Raises on all ranks:
        UserError, OSError: if a rank met one, the first rank's, with its type and errno. Others keep to their rank.
    """
    value = None
    met = None
    try:
        value = work()
    except (UserError, OSError) as error:
        met = error
    outcomes: list[list[Any]] = gather_values([value, met], topology, group)
    errors: dict[int, Failure] = {rank: error for rank, (_, error) in enumerate(outcomes) if error}
    if not errors:
        return [value for value, _ in outcomes]
    ranks: dict[str, list[int]] = {}
    for rank, found in errors.items():
        ranks.setdefault(str(found), []).append(rank)
    everyone = len(ranks) == 1 and len(errors) == topology.world_size
    texts = [text if everyone or not names else f"{name_ranks(numbers)}: {text}" for text, numbers in ranks.items()]
    first: Any = next(iter(errors.values()))
    raised: Any = type(first)(context + "; ".join(texts))
    raised.everywhere = True
    if isinstance(raised, OSError):
        raised.errno = first.errno
    raise raised from met
