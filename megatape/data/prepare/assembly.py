"""Assembles the data directory from finished units."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from megatape.data.counts import CorpusCounts, DocumentCounts
from megatape.data.prepare.part_summary import Part, PartFile, PartTotals
from megatape.data.prepare.passes.documents import describe_documents
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.shared_folder.plan import Plan
from megatape.data.printable import printable
from megatape.data.shards.entries import Index, Split, check_filled
from megatape.data.shards.index import build_index, load_index
from megatape.data.sources.kept_documents import SUFFIX
from megatape.data.sources.reading import check_bad, check_not_empty
from megatape.data.sources.source import Source
from megatape.errors import UserError, flag
from megatape.utils.files.atomic import check_absent, rename


class Prepared(NamedTuple):
    """Result of a preparation.

    Attributes:
        index: Index of the data directory.
        counts: Sum of all units' counts, or None if another process or an earlier attempt has summed them up.
    """

    # The name hides a method of tuples.
    index: Index  # type: ignore[assignment]
    counts: CorpusCounts | None


def finish(folder: PartialFolder, source: Source, plan: Plan, heartbeat: Callable[[], None]) -> Prepared:
    """Assemble the data directory from all units, which must be finished. Resumes an interrupted attempt.

    Args:
        folder: Unfinished preparation, removed at the end.
        source: Document source.
        plan: Stored plan.
        heartbeat: Called for each unit and file.

    Raises:
        UserError: Too many records are bad. Or the source has no documents, or a split no tokens; this removes the folder.
    """
    counts = None
    if not folder.is_final():
        counts = assemble(folder, source, plan, heartbeat)
    index = load_index(folder.final)
    # Remove units first, so that a later preparation does not take emptied units for finished ones.
    folder.remove_units()
    check_absent(folder.output)
    rename(folder.final, folder.output)
    folder.remove()
    return Prepared(index, counts)


def assemble(folder: PartialFolder, source: Source, plan: Plan, heartbeat: Callable[[], None]) -> CorpusCounts:
    """Move all units' files into one folder, and write its index. One unit is in memory at a time. Returns all counts."""
    units = [folder.unit_folder(number) for number in range(len(plan.units))]
    total = PartTotals()
    for unit in units:
        heartbeat()
        total.add(Part.load(unit))
    check_bad(source, total.counts)
    try:
        check_not_empty(source, total.counts)
        splits = total.splits()
        _check_filled(splits, source, plan, total.counts.total.written)
    except UserError:
        folder.remove()
        raise
    for name, skipped in plan.skipped.items():
        ledger_entry = total.counts.inputs.setdefault(printable(name), DocumentCounts())
        ledger_entry.add(DocumentCounts(skipped_files=skipped.files, skipped_bytes=skipped.bytes))
    _move_files(units, total, folder.final, heartbeat)
    build_index(
        folder.final,
        folder.tokenizer(plan),
        source=plan.source,
        validation_share=plan.validation_share,
        splits=splits,
        counts=total.counts.total.dropped,
        document_tables=total.tables,
        ledger=total.counts.inputs,
        rules=plan.rules,
        document_files=total.document_files,
    )
    return total.counts


def _check_filled(splits: dict[str, Split], source: Source, plan: Plan, num_written: int) -> None:
    if source.validation:
        reason = f"no documents of its own: give other {flag('input')} or {flag('validation_input')}"
    else:
        share = plan.validation_share
        reason = (
            f"none of the {num_written} documents at {flag('validation_share')} {share}: change the share or give more "
            "documents"
        )
    check_filled(splits, reason)


def _move_files(units: list[Path], total: PartTotals, final: Path, heartbeat: Callable[[], None]) -> None:
    """Move all units' files into one folder, and list document files that the units do not list."""
    final.mkdir(exist_ok=True)
    files = list(total.files)
    for number, unit in enumerate(units):
        files += [PartFile(number, path.name) for path in sorted(unit.glob(f"*{SUFFIX}"))]
    for file in files:
        heartbeat()
        # An earlier attempt may have moved it.
        if not (final / file.name).exists():
            rename(units[file.part] / file.name, final / file.name)
    listed = {entry.file for entry in total.document_files}
    for path in sorted(final.glob(f"*{SUFFIX}")):
        # Units finished by an earlier version do not list their document files.
        if path.name not in listed:
            heartbeat()
            total.document_files.append(describe_documents(path))
