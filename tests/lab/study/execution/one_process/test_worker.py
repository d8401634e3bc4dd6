"""Process that trains several runs, of which some fail."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from megatape.config import parse_config, save_config
from megatape.data.synthetic.folder import write_task
from megatape.data.synthetic.task import TRAIN, VALIDATION
from megatape.lab.study.execution.one_process import worker
from megatape.lab.study.execution.one_process.training import TrainedModel
from megatape.lab.study.execution.one_process.worker import Assignment
from tests.helpers.lab.capitals import QUICK, Capitals

STEPS = 2


class Measured(NamedTuple):
    """Replacement of a result."""

    loss: float

    def write(self, path: Path) -> None:
        path.write_text(str(self.loss))

    @property
    def summary(self) -> str:
        return f"measured {self.loss:.4g}"


def measure(model: TrainedModel, fails: bool) -> Measured:
    """Measure a model, or fail."""
    if fails:
        raise ValueError("cannot be measured")
    return Measured(model.validation_loss)


@pytest.fixture
def raw(tmp_path: Path) -> dict[str, Any]:
    """Return the configuration for a run of two steps."""
    data = tmp_path / "data"
    task = Capitals("capitals", "tiny")
    write_task(task, {TRAIN: QUICK.batch * STEPS, VALIDATION: 4}, data)
    raw = QUICK.config(task, str(data), 9)
    raw["training"] |= {"steps": STEPS}
    raw["evaluation"] = {"interval": STEPS, "samples": 4}
    return raw


def assign(raw: dict[str, Any], folder: Path, fails: bool) -> Assignment:
    """Prepare a run directory."""
    folder.mkdir()
    config = folder / "one_process.json"
    save_config(parse_config(raw | {"run": {"directory": str(folder)}}, "here"), config)
    return Assignment(str(folder), str(config), str(folder / "result"), f"{__name__}:measure", [fails])


def test_a_run_that_fails_does_not_stop_those_trained_with_it(
    raw: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, runs with the same model are trained together. One of them cannot start, and one cannot be measured."""
    no_data = raw | {"data": raw["data"] | {"path": str(tmp_path / "none")}}
    assignments = [
        assign(no_data, tmp_path / "not_started", fails=False),
        assign(raw, tmp_path / "not_measured", fails=True),
        assign(raw, tmp_path / "finished", fails=False),
    ]
    monkeypatch.setattr(worker, "_split", lambda assignments, device: [assignments])

    assert worker.main([assignment.as_word() for assignment in assignments]) == 1

    assert [Path(assignment.result).exists() for assignment in assignments] == [False, False, True]
    not_started, not_measured, finished = [assignment.folder.log.read_text() for assignment in assignments]
    assert "error: " in not_started
    assert not_measured.endswith("error: ValueError: cannot be measured\n")
    assert "error" not in finished
    assert finished.splitlines()[-1].startswith("measured ")
