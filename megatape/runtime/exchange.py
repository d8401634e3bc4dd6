"""The exchange of small values between all ranks."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from megatape.errors import UserError
from megatape.runtime.topology import Topology, name_ranks

Result = TypeVar("Result")


def exchange(value: Any, topology: Topology, group: dist.ProcessGroup | None = None) -> list[Any]:
    """The values of all ranks, in order, on every rank. Collective.

    group: of all ranks, by default the one that training uses.
    """
    if topology.world_size == 1:  # which needs no process group
        return [value]
    values: list[Any] = [None] * topology.world_size
    dist.all_gather_object(values, value, group)
    return values


def on_main(work: Callable[[], Result], topology: Topology, group: dist.ProcessGroup | None = None) -> Result:
    """What `work` returns on the main rank, on every rank. Collective, over `group` as in `exchange`.

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
    """What `work` returns on every rank, in order, on every rank. Collective, over `group` as in `exchange`.

    Args:
        work: must not be collective: it may fail on one rank alone.
        topology: all ranks.
        group: of all ranks, by default the one that training uses.
        context: of an error, before its text.
        names: whether the error names the ranks that met it, unless all did.

    Raises on all ranks:
        UserError, OSError: if a rank met one, the first rank's, with its type and errno. Others keep to their rank.
    """
    value, met = None, None
    try:
        value = work()
    except (UserError, OSError) as error:
        met = error
    described = met and (type(met), str(met), getattr(met, "errno", None))
    outcomes = exchange([value, described], topology, group)
    errors = {rank: error for rank, (_, error) in enumerate(outcomes) if error}
    if not errors:
        return [value for value, _ in outcomes]
    ranks: dict[str, list[int]] = {}
    for rank, (_, text, _) in errors.items():
        ranks.setdefault(text, []).append(rank)
    everyone = len(ranks) == 1 and len(errors) == topology.world_size
    texts = [text if everyone or not names else f"{name_ranks(found)}: {text}" for text, found in ranks.items()]
    kind, _, number = next(iter(errors.values()))
    raised = kind(context + "; ".join(texts))
    raised.everywhere = True
    if isinstance(raised, OSError):
        raised.errno = number
    raise raised from met
