"""Search results as text."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from megatape.accounting.memory.rank_memory import MARGIN
from megatape.config import Config, SettingValues, set_options, value_text
from megatape.errors import UserError, flag
from megatape.tools.planner.planned_cluster import PlannedCluster
from megatape.tools.planner.report.speed_rows import cost_rows
from megatape.tools.planner.search.search import SEARCH_SECONDS, Search
from megatape.tools.planner.search.search_space import SearchSpace
from megatape.tools.planner.search.value_grids import SettingIndex
from megatape.tools.planner.step_time.measured import nearest_step
from megatape.tools.planner.step_time.speed import TOLERANCE
from megatape.utils.text.tables import columns
from megatape.utils.text.units import format_bytes, format_range

# Maximum number of settings in the table.
MAX_SHOWN = 5


def search_report(
    config: Config,
    measured: Path | None = None,
    price: float | None = None,
    limit: float | None = SEARCH_SECONDS,
) -> str:
    """Return a text about the fastest settings that fit a run's cluster, and about changes if the file's own do not fit.

    Args:
        config: Configuration with a cluster.
        measured: results.jsonl of a benchmark, for correcting the step time.
        price: Price of a GPU-hour, in any currency.
        limit: Limit of processor time in seconds, None for no limit.

    Raises:
        UserError: The cluster is missing, or nothing was measured.
    """
    machines = config.cluster
    if machines is None:
        raise UserError(
            f"{flag('search')} needs a cluster: add {flag('nodes')}, {flag('gpus_per_node')} and {flag('gpu')}, or a cluster "
            "section to the file"
        )
    cluster = PlannedCluster.load(machines)
    if measured is not None:
        cluster = replace(cluster, correction=nearest_step(measured, config).correction)

    space = SearchSpace(config, cluster)
    unchanged = space.unchanged
    needs_change = unchanged is not None and not unchanged.requirements.fits
    search_limit = limit
    if limit is not None and needs_change:
        # The other half is for the smallest change.
        search_limit = limit / 2
    lines = _found_lines(space, search_limit, config.tokens, price)
    if unchanged is None:
        lines.append("the file's own settings do not divide evenly: megatape plan without --search says what to change")
    elif needs_change:
        lines.append(f"the file's own need {unchanged.requirements.gpu.describe()}")
        lines += smallest_change_advice(space, search_limit)
    else:
        seconds = format_range(*unchanged.seconds)
        needed = format_bytes(unchanged.requirements.gpu.bytes)
        lines.append(f"the file's own: {seconds} seconds per step, {needed}: fits")
    return "\n".join(lines)


def _found_lines(space: SearchSpace, limit: float | None, tokens: int, price: float | None) -> list[str]:
    """Search, and return a table of the fastest settings with the advice that follows from it.

    Args:
        space: Settings of the run.
        limit: Limit of processor time in seconds, None for no limit.
        tokens: Tokens in the whole run.
        price: Price of a GPU-hour.
    """
    search = Search(space, limit)
    candidates, preferred = search.advise()
    lines = []
    if preferred is not None:
        lines += [_table(space, candidates[:MAX_SHOWN]), ""]
        lines += _advised_lines(space, preferred, len(candidates))
        lines += _cost_lines(space, preferred, tokens, price)
    if search.timed_out:
        lines.append(_limit_line(limit))
    return lines


def _limit_line(limit: float | None) -> str:
    """Return the line about a search that ended early. limit: Limit of processor time in seconds."""
    return f"the search ended at its limit of {limit:g} seconds of processor time: there may be faster settings"


def smallest_change_advice(space: SearchSpace, limit: float | None) -> list[str]:
    """Return the smallest change that makes a run fit, as report lines.

    Args:
        space: Settings of the run.
        limit: Limit of processor time in seconds, None for no limit.
    """
    search = Search(space, limit)
    index = search.smallest_change()
    if index is None:
        if search.timed_out:
            return ["the search for a change that makes it fit ran out of time: use more nodes or larger GPUs"]
        return ["nothing that the settings can save makes it fit: use more nodes, or GPUs and nodes with more memory"]
    needed = []
    for device, requirement in space.valid_candidate(index).requirements.by_device.items():
        needed.append(f"{format_bytes(requirement.bytes)} {device}")
    lines = ["the smallest change that makes it fit:", f"  {_options(space.changes(index))}: {', '.join(needed)}"]
    if search.timed_out:
        lines.append(f"{_limit_line(limit)} with as few changes")
    return lines


def _options(changes: SettingValues) -> str:
    """Return changes as command-line options."""
    if not changes:
        return "the settings of the file"
    return set_options(changes)


def _table(space: SearchSpace, indices: Sequence[SettingIndex]) -> str:
    """Return a table of settings with speed and memory."""
    header = []
    for grid in space.grids.all:
        header += [key.rpartition(".")[2] for key in grid.keys]
    header += ["seconds per step", "memory of a GPU", "of a node's host"]

    rows = []
    for index in indices:
        candidate = space.valid_candidate(index)
        row = [value_text(value) for value in space.grids.settings(index).values()]
        row.append(format_range(*candidate.seconds))
        row.append(format_bytes(candidate.requirements.gpu.bytes))
        host = candidate.requirements.host
        row.append("none" if host is None else format_bytes(host.bytes))
        rows.append(row)
    return columns(rows, header)


def _advised_lines(space: SearchSpace, index: SettingIndex, num_equal: int) -> list[str]:
    """Return the options for the advised settings, and the reason for the advice."""
    if num_equal == 1:
        reason = f"the search found no other setting within {TOLERANCE:.0%} of it"
    else:
        reason = (
            f"the simplest of {num_equal} settings within {TOLERANCE:.0%} of the fastest: the estimate cannot tell them apart"
        )
    return [f"advised: {_options(space.changes(index))}", f"  {reason}; it leaves {MARGIN:.0%} of the memory free"]


def _cost_lines(space: SearchSpace, index: SettingIndex, tokens: int, price: float | None) -> list[str]:
    """Return the GPU-hours of the advised settings and their price."""
    candidate = space.valid_candidate(index)
    rows = cost_rows(tokens, candidate.layout, candidate.seconds, price)
    return [f"  {name.strip()}: {value}" for name, value in rows]
