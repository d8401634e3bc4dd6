"""Base class of results, which reads and writes their files."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter, ValidationError

from megatape.config import Config
from megatape.errors import UserError
from megatape.utils.files.atomic import write_atomically
from megatape.utils.files.json_files import json_content, read_json
from megatape.utils.values.validation import first_mismatch


@dataclass(frozen=True)
class RunResult:
    """Base class for measurements of a run, with the fields of its JSON file.

    Attributes:
        config: Resolved training configuration.
        fingerprints: Hashes of data and tokenizer.
    """

    config: Config
    fingerprints: dict[str, str]

    @property
    def summary(self) -> str:
        """The measurements in one line."""
        raise NotImplementedError

    def write(self, path: Path) -> None:
        """Write the file atomically: if it exists, it is complete."""
        content = TypeAdapter(type(self)).dump_python(self, mode="json", by_alias=True)
        write_atomically(path, json_content(content, str(path), indent=2) + b"\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that `write` wrote.

        Raises:
            UserError: The file is corrupted.
        """
        try:
            return TypeAdapter(cls).validate_json(json.dumps(read_json(path)))
        except ValidationError as error:
            reason = first_mismatch(error)
        except ValueError as error:
            reason = str(error)
        raise UserError(f"{path} is corrupted ({reason}): remove it and run the command again")
