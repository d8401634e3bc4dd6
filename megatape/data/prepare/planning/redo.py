"""Prepares units again whose files have changed since they were read."""

from collections.abc import Callable, Collection, Sequence

from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.shared_folder.plan import Plan, files_of
from megatape.errors import UserError, flag
from megatape.errors.suggestions import did_you_mean


def discard_changed(
    folder: PartialFolder, options: PreparationOptions, plan: Plan, names: Sequence[str], warn: Callable[[str], None]
) -> Plan:
    """Remove the results of units with changed files.

    If documents of all units are compared, finished units are prepared again as well: their first-pass results are gone, so the
    changed documents could not be compared with them. First-pass results of other units stay.

    Args:
        folder: Unfinished preparation.
        options: Options of the preparation.
        plan: Stored plan.
        names: Changed files.
        warn: Shows a line to the user.

    Returns:
        Plan with the present versions of these files.

    Raises:
        UserError: A name matches no file or several, or another process is still running.
    """
    changed_files = {_find_file(name, files_of(plan.units)) for name in names}
    updated = plan.with_present_files(changed_files)
    if updated.plan == plan:
        # An earlier command has removed the results.
        return plan
    for name in sorted(folder.leases.leased()):
        with folder.leases.hold(name) as lease:
            if lease is None:
                raise UserError(
                    f"{flag('redo')}: another process is still running ({folder.leases.holder(name)}): end it first"
                )
    finished = folder.finished(len(plan.units))
    discarded = updated.numbers & (finished | folder.first_passes())
    files = ", ".join(sorted(changed_files))
    message = f"{len(discarded):,} of {len(plan.units):,} units have read {files} and are prepared again"
    others = finished - updated.numbers
    if plan.compares_units and others:
        message += f", and {len(others):,} finished units, whose documents are compared with theirs"
        discarded |= finished
    folder.discard(discarded)
    folder.store_plan(updated.plan, folder.tokenizer(plan))
    warn(message)
    return updated.plan


def _find_file(name: str, files: Collection[str]) -> str:
    """Return the file with this path, or with a path ending in it. Raises UserError if there is none, or several."""
    matches = [file for file in files if file == name or file.endswith(f"/{name}")]
    if len(matches) == 1:
        return matches[0]
    if matches:
        reason = f"{len(matches)} inputs have this name"
    else:
        reason = f"no input has this name; {did_you_mean(name, files)}".rstrip("; ")
    raise UserError(f"{flag('redo')} {name}: {reason}: name it as the error about it does")
