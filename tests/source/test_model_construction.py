"""Only build_model and the learner of the suite call the constructor of the model."""

import re

from tests.helpers.checks.pages import ROOT


def test_build_model_makes_every_model() -> None:
    """A module calling the constructor directly would skip a step of build_model.

    A learner of the suite has blocks for short sequences instead, and tests compare it with a run of `pretrain`.
    """
    package = ROOT / "megatape"
    call = re.compile(r"(?<!class )\bTransformer\(")
    callers = [path.relative_to(package).as_posix() for path in package.rglob("*.py") if call.search(path.read_text())]
    assert sorted(callers) == ["lab/study/execution/one_process/learner.py", "model/build.py"]
