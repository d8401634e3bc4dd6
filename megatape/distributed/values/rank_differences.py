"""Comparing what ranks of a run were started with, and describing the differences for messages."""

import json
from collections.abc import Mapping, Sequence

from megatape.distributed.topology import name_ranks


def find_disagreement(
    hosts: Sequence[str], reasons: Sequence[str | None], values: Sequence[Mapping[str, object]]
) -> str | None:
    """Return the reason why ranks cannot train together, or None if they can.

    Args:
        hosts: Host of each rank.
        reasons: Reason why each rank alone cannot train, or None.
        values: Values of each rank by name. A value must be equal on all ranks that have it.
    """
    common_reason = reasons[0]
    if common_reason is not None and len(set(reasons)) == 1:
        # Naming all ranks would say nothing.
        return common_reason

    disagreements = []
    for reason, ranks in ranks_by_text(reasons).items():
        disagreements.append(f"{describe_ranks(ranks, hosts)}: {reason}")
    for name, difference in differing_values(hosts, values).items():
        disagreements.append(f"{name} is {difference}")
    if not disagreements:
        return None
    return f"the ranks cannot train together: {'; '.join(disagreements)}. Give all of them the same command, code and data"


def differing_values(hosts: Sequence[str], values: Sequence[Mapping[str, object]]) -> dict[str, str]:
    """Describe the values that differ between ranks, by name: for example `4 on ranks 0, 2 (n0), 7 on rank 1 (n1)`.

    Args:
        hosts: Host of each rank.
        values: JSON values of each rank by name. Ranks without a value are not compared.
    """
    names: dict[str, None] = {}
    for rank_values in values:
        names |= dict.fromkeys(rank_values)
    differences = {}
    for name in names:
        texts: list[str | None] = []
        for rank_values in values:
            text = json.dumps(rank_values[name]) if name in rank_values else None
            texts.append(text)
        groups = ranks_by_text(texts)
        if len(groups) > 1:
            parts = [f"{text} on {describe_ranks(ranks, hosts)}" for text, ranks in groups.items()]
            differences[name] = ", ".join(parts)
    return differences


def ranks_by_text(texts: Sequence[str | None]) -> dict[str, list[int]]:
    """Group ranks by their text, in the order of ranks. Ranks with None are skipped."""
    ranks: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        if text is not None:
            ranks.setdefault(text, []).append(rank)
    return ranks


def describe_ranks(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Name ranks and the first one's host, for example `ranks 0-1, 4 (n1, ...)`.

    Args:
        ranks: Ranks in ascending order.
        hosts: Host of each rank.
    """
    first_host = hosts[ranks[0]]
    more = ", ..." if any(hosts[rank] != first_host for rank in ranks) else ""
    return f"{name_ranks(ranks)} ({first_host}{more})"
