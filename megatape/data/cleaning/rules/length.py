"""Drops documents by length."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from megatape.data.cleaning.rule import DocumentDropped, TextRule
from megatape.errors import UserError


@dataclass(frozen=True)
class Length(TextRule):
    """Drops documents with fewer than `minimum` or more than `maximum` characters.

    Attributes:
        minimum: Minimum number of characters.
        maximum: Maximum number of characters. None: no limit.
    """

    minimum: Annotated[int, Field(ge=0)] = 0
    maximum: Annotated[int, Field(ge=1)] | None = None

    def __post_init__(self) -> None:
        if self.maximum is not None and self.maximum < self.minimum:
            raise UserError(f"maximum {self.maximum} is below minimum {self.minimum}, so no document is kept: exchange them")

    def apply(self, text: str) -> str:
        if len(text) < self.minimum:
            raise DocumentDropped(f"shorter than {self.minimum:,} characters")
        if self.maximum is not None and len(text) > self.maximum:
            raise DocumentDropped(f"longer than {self.maximum:,} characters")
        return text
