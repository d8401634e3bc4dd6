"""Differences between ranks that must be started alike, in words."""

import json
from collections.abc import Mapping, Sequence

from megatape.distributed.topology import name_ranks


def find_disagreement(hosts: Sequence[str], faults: Sequence[str], values: Sequence[Mapping[str, object]]) -> str:
    """Return the reason why ranks cannot train together, or "".

    Args:
        hosts: Host of each rank.
        faults: Fault of each rank, "" for none.
        values: Values of each rank by name. A value must be equal on all ranks that have it.
    """
    shared_fault = faults[0]
    if shared_fault and len(set(faults)) == 1:
        # A fault of all ranks is not about any of them.
        return shared_fault

    reasons = []
    for fault, ranks in ranks_by_text(faults).items():
        if fault:
            reasons.append(f"{describe_ranks(ranks, hosts)}: {fault}")
    for name, difference in differing_values(hosts, values).items():
        reasons.append(f"{name} is {difference}")
    if not reasons:
        return ""
    return f"the ranks cannot train together: {'; '.join(reasons)}. Give all of them the same command, code and data"


def differing_values(hosts: Sequence[str], values: Sequence[Mapping[str, object]]) -> dict[str, str]:
    """Describe the values that differ between ranks, by name, such as `4 on ranks 0, 2 (n0), 7 on rank 1 (n1)`.

    Args:
        hosts: Host of each rank.
        values: JSON values of each rank by name. Ranks without a value are not compared.
    """
    names = dict.fromkeys(name for of_rank in values for name in of_rank)
    differences = {}
    for name in names:
        texts: list[str | None] = []
        for of_rank in values:
            text = None
            if name in of_rank:
                text = json.dumps(of_rank[name])
            texts.append(text)
        groups = ranks_by_text(texts)
        if len(groups) > 1:
            parts = [f"{text} on {describe_ranks(ranks, hosts)}" for text, ranks in groups.items()]
            differences[name] = ", ".join(parts)
    return differences


def ranks_by_text(texts: Sequence[str | None]) -> dict[str, list[int]]:
    """Group the ranks by their text, in the order of ranks. Ranks without a text (None) are skipped."""
    ranks: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        if text is not None:
            ranks.setdefault(text, []).append(rank)
    return ranks


def describe_ranks(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Name ranks and the host of the first one, such as `ranks 0-1, 4 (n1, ...)`.

    Args:
        ranks: Numbers of the ranks, ascending.
        hosts: Host of each rank.
    """
    first_host = hosts[ranks[0]]
    more = ""
    if any(hosts[rank] != first_host for rank in ranks):
        more = ", ..."
    return f"{name_ranks(ranks)} ({first_host}{more})"
