"""Documents that are too short or too long."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from megatape.data.cleaning.rule import DocumentDropped, TextRule


@dataclass(frozen=True)
class Length(TextRule):
    """Characters of a document: at least `minimum`, at most `maximum` (None: any number)."""

    minimum: Annotated[int, Field(ge=0)] = 0
    maximum: Annotated[int, Field(ge=1)] | None = None

    def apply(self, text: str) -> str:
        if len(text) < self.minimum:
            raise DocumentDropped(f"shorter than {self.minimum:,} characters")
        if self.maximum is not None and len(text) > self.maximum:
            raise DocumentDropped(f"longer than {self.maximum:,} characters")
        return text
