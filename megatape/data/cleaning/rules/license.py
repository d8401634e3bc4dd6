"""Drops documents by license."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field

from megatape.data.cleaning.rule import DocumentDropped, DocumentRule
from megatape.data.sources.document import Document


@dataclass(frozen=True)
class License(DocumentRule):
    """Drops documents with other licenses. If the field is a list of licenses, all of them must be allowed.

    Attributes:
        allow: Names or patterns such as `cc-by-*`, ignoring case.
        field: License field, such as `license`, or `metadata.license` inside another field.
    """

    allow: Annotated[tuple[str, ...], Field(min_length=1)]
    field: str = "license"

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.field,)

    def clean(self, document: Document) -> str:
        values = document.fields.get(self.field)
        if not isinstance(values, list):
            values = [values]
        names = [str(value or "").strip().lower() for value in values]
        if not names or not all(names):
            raise DocumentDropped(f"no {self.field}")
        if not all(map(self._allows, names)):
            raise DocumentDropped("not allowed")
        return document.text

    def _allows(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern.lower()) for pattern in self.allow)
