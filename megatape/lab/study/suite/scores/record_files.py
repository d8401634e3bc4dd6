"""Files of records: results.jsonl, and baselines/TASK.jsonl."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from megatape.errors import UserError
from megatape.lab.study.suite.scores.record import Identity, Record
from megatape.utils.files.atomic import write_atomically
from megatape.utils.files.files import read_regular
from megatape.utils.values.validation import first_mismatch


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Replace the file. Its lines are sorted by task, split, kind, contender and seed."""
    ordered = sorted(records, key=lambda record: record.identity)
    text = "".join(f"{record.model_dump_json(by_alias=True)}\n" for record in ordered)
    write_atomically(path, text.encode())


def read_records(path: Path) -> list[Record]:
    """Read a file that `write_records` wrote.

    Raises:
        UserError: The file is corrupted. The message has the line number.
        OSError: The file cannot be read.
    """
    records: dict[Identity, Record] = {}
    for number, line in enumerate(read_regular(path).splitlines(), start=1):
        place = f"{path}, line {number}"
        try:
            record = Record.model_validate_json(line)
        except ValidationError as error:
            reason = first_mismatch(error)
            raise UserError(f"{place} is corrupted ({reason}): remove the file and run the command again") from None
        if record.identity in records:
            raise UserError(
                f"{place} repeats {record.task}, {record.split}, {record.contender}, seed {record.seed}: remove one"
            )
        records[record.identity] = record
    return list(records.values())
