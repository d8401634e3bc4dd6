"""The suite's engines: one process for several runs, and processes for each."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatape.errors import UserError
from megatape.lab.study.execution.children import Children
from megatape.lab.study.execution.engines import EngineChoice
from megatape.lab.study.execution.one_process import worker
from megatape.lab.study.execution.pool import RunPool
from megatape.lab.study.execution.run import RunsFailed
from megatape.lab.study.execution.study import Study
from megatape.lab.study.suite.plan import parse_plan
from megatape.lab.study.suite.sizes import SIZES
from megatape.lab.study.suite.suite import suite
from megatape.registry import ENCODINGS
from tests.helpers.lab.capitals import QUICK
from tests.helpers.processes.command import Command, assert_refused


def run(out: Path, engine: EngineChoice, encodings: str = "rope,tape", seeds: int = 1) -> str:
    plan = parse_plan("tiny", "capitals", encodings, seeds, [1e-3, 1e-2])
    plan = replace(plan, tuning_seeds=1, fixed_rates=True)
    shown: list[str] = []
    suite(plan, Study(out, RunPool(1, None, engine), "typed", shown.append))
    return "\n".join(shown)


def results_of(out: Path) -> dict[str, dict[str, Any]]:
    """Return the content of scores.json by run directory."""
    return {str(path.parent.relative_to(out)): json.loads(path.read_text()) for path in sorted(out.rglob("scores.json"))}


class WithoutPretrain:
    """Replacement of `Children.run` that runs workers in this process, and lets `pretrain` fail.

    Attributes:
        groups: Run directories of each started worker.
        pretrained: Run directories that `pretrain` was started for.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups: list[list[str]] = []
        self.pretrained: list[str] = []

        def start(children: Children, words: list[str], environment: dict[str, str], log: Path) -> int:
            if "pretrain" in words:
                self.pretrained.append(log.parent.name)
                log.write_text("error: not here")
                return 1
            arguments = words[4:]  # python -P PROGRAM MODULE ARGUMENT ...
            self.groups.append([json.loads(argument)["directory"] for argument in arguments])
            return worker.main(arguments)

        monkeypatch.setattr(Children, "run", start)


@pytest.mark.usefixtures("capitals", "quick_children")
def test_engines_agree(tmp_path: Path) -> None:
    """Validation losses and scores are those of `pretrain`, and results name the engine."""
    run(tmp_path / "processes", "processes", "tape")
    run(tmp_path / "one_process", "one_process", "tape")

    expected = results_of(tmp_path / "processes")
    results = results_of(tmp_path / "one_process")
    assert list(results) == list(expected)
    for directory, result in results.items():
        assert result["validation_loss"] == pytest.approx(expected[directory]["validation_loss"], rel=1e-5)
        assert result["records"] == expected[directory]["records"]
        assert result["fingerprints"] == expected[directory]["fingerprints"]
        assert (result["engine"], expected[directory]["engine"]) == ("one_process", "processes")
    assert "Engine: 1 run by `one_process`" in (tmp_path / "one_process" / "suite.md").read_text()
    assert not list((tmp_path / "one_process").rglob("checkpoints"))


@pytest.mark.usefixtures("capitals")
def test_finished_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group holds the runs without a result, so an interrupted study loses the run at work alone."""
    children = WithoutPretrain(monkeypatch)
    run(tmp_path, "auto", "rope")
    searched, tested = children.groups
    assert len(searched) == 2 and len(tested) == 1
    Path(searched[1], "scores.json").unlink()

    run(tmp_path, "auto", "rope", seeds=3)

    assert children.groups[2] == [searched[1]]
    assert [Path(directory).name for directory in children.groups[3]] == ["seed-2", "seed-3"]
    assert not children.pretrained


@pytest.mark.usefixtures("capitals")
def test_encoding_that_disagrees_is_trained_by_pretrain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = replace(ENCODINGS["rope"], target="tests.helpers.lab.noisy_rope:NoisyRope")
    monkeypatch.setitem(ENCODINGS, "rope", entry)
    children = WithoutPretrain(monkeypatch)
    plan = parse_plan("tiny", "capitals", "rope", 1, [1e-3])
    lines: list[str] = []

    with pytest.raises(RunsFailed, match="1 of 1 run failed"):
        suite(plan, Study(tmp_path, RunPool(1, None, "auto"), "typed", lines.append))

    (warning,) = [line for line in lines if line.startswith("warning")]
    assert "seed 1: trained by processes of its own, because in one process its loss in step 1 is" in warning
    assert children.pretrained == ["seed-1"]


@pytest.mark.usefixtures("capitals")
def test_run_that_fails_does_not_stop_its_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is in the log of the failed run."""
    children = WithoutPretrain(monkeypatch)
    run_group = Children.run

    def damage(self: Children, words: list[str], environment: dict[str, str], log: Path) -> int:
        (log.parent / "one_process.json").write_text("{")
        return run_group(self, words, environment, log)

    monkeypatch.setattr(Children, "run", damage)

    with pytest.raises(RunsFailed, match="1 of 2 runs failed") as error:
        run(tmp_path, "one_process", "rope")

    assert "rate 0.001, seed 0: training exited with status 1" in str(error.value)
    assert "one_process.json" in str(error.value)
    assert list(results_of(tmp_path)) == ["capitals/rope/rate-0.01/seed-0"]
    assert len(children.groups) == 1


@pytest.mark.usefixtures("capitals")
def test_unsupported_run_is_trained_by_pretrain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` says why, and `one_process` refuses before any run."""
    monkeypatch.setitem(SIZES, "tiny", replace(QUICK, precision="bfloat16"))
    children = WithoutPretrain(monkeypatch)

    with pytest.raises(RunsFailed):
        run(tmp_path, "auto", "rope")
    assert len(children.pretrained) == 2

    with pytest.raises(UserError, match="is one_process, but capitals, rope.*: training.precision is bfloat16"):
        run(tmp_path, "one_process", "rope")
    assert not children.groups


def test_engine_without_a_launcher(command: Command) -> None:
    words = ("study", "suite", "--output", "none", "--engine", "one_process", "--launcher", "deepspeed")
    assert_refused(command(*words), "--engine is one_process, which trains on one device without a launcher")
