"""What came out of one run of a comparison, as a file that stands for it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from megatape.config import Config, parse_config
from megatape.files import parse_json, temporary_name


@dataclass(frozen=True)
class Outcome:
    """A trained and measured model.

    config, fingerprints  of its training: the resolved configuration, and hashes of data and tokenizer
    scaling   kind of model.scaling that it was measured with, or None
    figures   by name, a column of the table each
    losses    mean training loss (nats) of equal parts of the run, by the last step of each
    curve     a figure by length (tokens, or digits); axes: the names of both"""

    config: Config
    fingerprints: dict[str, str]
    scaling: str | None
    figures: dict[str, float]
    losses: dict[int, float]
    curve: dict[int, float]
    axes: tuple[str, str]

    @property
    def seed(self) -> int:
        """Its training.seed."""
        return self.config.training.seed

    def write(self, path: Path) -> None:
        """All or nothing: a file that is there is complete."""
        partial = temporary_name(path)
        content = asdict(self) | {"config": self.config.model_dump()}
        partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        partial.rename(path)

    @classmethod
    def read(cls, path: Path) -> Self:
        """What `write` wrote. Raises ValueError if it is corrupted."""
        try:
            content = parse_json(path.read_text(encoding="utf-8"))
            for name in ("losses", "curve"):
                content[name] = {int(key): value for key, value in content[name].items()}
            content["axes"] = tuple(content["axes"])
            return cls(**content | {"config": parse_config(content["config"], str(path))})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} is corrupted ({error}): remove it, and the same command measures again") from None
