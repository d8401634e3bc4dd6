"""Fields that differ between two configurations."""

from megatape.config import ResumeRule, differences
from tests.helpers.runs.raw_config import MIXTURE, parse


def test_differences() -> None:
    """Each difference has a path and a resume rule; a section whose field has a resume rule is compared as a whole."""
    scaling = {"kind": "linear", "factor": 2.0}
    ours = parse(model__scaling=scaling, data__path="other", training__seed=2, optimizer__learning_rate=2e-3)
    assert [(difference.path, difference.rule) for difference in differences(parse(), ours)] == [
        ("model.scaling", ResumeRule.FIXED),
        ("data.path", ResumeRule.LOCAL),
        ("training.seed", ResumeRule.SAMPLES),
        ("optimizer.learning_rate", ResumeRule.COMPARED),
    ]
    assert [(difference.theirs, difference.ours) for difference in differences(parse(), ours)][2:] == [(1234, 2), (1e-3, 2e-3)]
    assert not list(differences(ours, ours))
    mixed, more = (
        parse(data={"mixture": corpora, "sequence_length": 32}) for corpora in (MIXTURE, MIXTURE | {"c": {"path": "z"}})
    )
    assert [(difference.path, difference.theirs, difference.ours) for difference in differences(mixed, more)] == [
        ("data.mixture.c.path", None, "z")
    ]
