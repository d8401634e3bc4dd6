"""What all sections share: the resume rule of every field, and the differences of two configurations."""

from collections.abc import Iterator

from pydantic import BaseModel

from megatape.config import Config, ResumeRule, differences
from megatape.config.section import resume_rule_of, sections_in
from tests.helpers.raw_config import MIXTURE, parse


def sections(section: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Subsections of a section, at any depth."""
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


def test_differences() -> None:
    """Each difference has a path and a resume rule; a section whose field has a resume rule is compared as a whole."""
    scaling = {"kind": "linear", "factor": 2.0}
    ours = parse(model__scaling=scaling, data__path="other", training__seed=2, optimizer__learning_rate=2e-3)
    assert [(found.path, found.rule) for found in differences(parse(), ours)] == [
        ("model.scaling", ResumeRule.FIXED),
        ("data.path", ResumeRule.LOCAL),
        ("training.seed", ResumeRule.SAMPLES),
        ("optimizer.learning_rate", ResumeRule.COMPARED),
    ]
    assert [(found.theirs, found.ours) for found in differences(parse(), ours)][2:] == [(1234, 2), (1e-3, 2e-3)]
    assert not list(differences(ours, ours))
    mixed, more = (
        parse(data={"mixture": corpora, "sequence_length": 32}) for corpora in (MIXTURE, MIXTURE | {"c": {"path": "z"}})
    )
    assert [(found.path, found.theirs, found.ours) for found in differences(mixed, more)] == [
        ("data.mixture.c.path", None, "z")
    ]
