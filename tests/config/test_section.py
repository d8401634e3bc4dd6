"""The resume rule of every field."""

from collections.abc import Iterator

from pydantic import BaseModel

from megatape.config import Config
from megatape.config.fields.annotations import resume_rule_of, sections_in


def sections(section: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Return a section's subsections at any depth."""
    for field in section.model_fields.values():
        for inner in sections_in(field.annotation):
            yield inner
            yield from sections(inner)


def test_every_field_says_what_it_means_on_resume() -> None:
    silent = [
        f"{section.__name__}.{name}"
        for section in sections(Config)
        for name, field in section.model_fields.items()
        if resume_rule_of(field.metadata) is None and not sections_in(field.annotation)
    ]
    assert not silent, "annotate with Fixed, FixedSamples, Compared or Free (config/section.py)"
