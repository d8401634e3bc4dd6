"""The exchange of small values between all ranks."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from megatape.errors import UserError
from megatape.runtime.topology import Topology

Result = TypeVar("Result")


def exchange(value: Any, topology: Topology, group: dist.ProcessGroup | None = None) -> list[Any]:
    """The JSON values of all ranks, in order, on every rank. Collective; nothing is pickled.

    group: of all ranks, by default the one that training uses."""
    device = device_of(group)
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(device)
    sizes = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(topology.world_size)]
    dist.all_gather(sizes, torch.tensor([text.numel()], device=device), group)
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8, device=device)
    padded[: text.numel()] = text
    texts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(texts, padded, group)
    return [json.loads(bytes(text[: int(size)].cpu().tolist())) for text, size in zip(texts, sizes, strict=True)]


def device_of(group: dist.ProcessGroup | None) -> str:
    """The kind of device whose tensors the group exchanges."""
    return "cuda" if dist.get_backend(group) == "nccl" else "cpu"


def on_main(work: Callable[[], Result], topology: Topology, group: dist.ProcessGroup | None = None) -> Result:
    """What `work` returns (JSON) on the main rank, on every rank. Collective, over `group` as in `exchange`.

    Raises its UserError or OSError on all ranks."""
    value, refused, failed = None, "", ""
    if topology.is_main:
        try:
            value = work()
        except ValueError as error:
            refused = str(error)
        except OSError as error:
            failed = str(error)
    value, refused, failed = exchange([value, refused, failed], topology, group)[0]
    if refused:
        raise UserError(refused)
    if failed:
        raise OSError(failed)
    return value  # type: ignore[return-value]  # JSON of what the main rank's work returned
