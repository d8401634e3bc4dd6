"""megatape study compare: training, evaluation, resumption and errors."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatape.data.synthetic.addition_problems import ALPHABET, AdditionTask, longest_document, prepare_addition
from megatape.data.tokenizers.sentencepiece import character_tokenizer
from megatape.lab.study.comparison.compare import compare
from megatape.lab.study.execution.pool import RunPool
from megatape.lab.study.execution.run import RunsFailed
from megatape.lab.study.execution.study import Study
from megatape.lab.study.results.text_result import TextResult
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.processes.load import scaled


def run(file: Path, out: Path, encodings: str, seeds: int, *settings: str, jobs: int = 1, launcher: str | None = None) -> str:
    """Output of the command."""
    return "\n".join(compare(str(file), settings, encodings, seeds, Study(out, RunPool(jobs, launcher), "typed")))


def steps(run: Path) -> list[dict[str, float]]:
    """Metrics of a run; none if it has not started."""
    metrics = run / "metrics.jsonl"
    return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} took more than {seconds} s"
        time.sleep(0.1)


@pytest.mark.numerics
@pytest.mark.slow
@pytest.mark.usefixtures("measured_here")
def test_resumes_after_an_interruption(raw_config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATAPE_THREADS", "1")  # in a model this small, more threads only wait
    raw_config["training"]["steps"] = 30
    file = tmp_path / "config.json"
    out = tmp_path / "out"
    file.write_text(json.dumps(raw_config))
    first = out / "rope" / "seed-1234"
    other = out / "rope" / "seed-1235"
    command = [sys.executable, "-m", "megatape", "study", "compare", "--config", str(file), "--out", str(out)]
    with subprocess.Popen(
        [*command, "--encodings", "rope", "--seeds", "2"], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as stopped:
        wait_for(lambda: stopped.poll() is not None or len(steps(first)) > 2, "training's start")
        with pytest.raises(ValueError, match="is in use by another study"):
            run(file, out, "rope", 2)
        stopped.send_signal(signal.SIGTERM)  # only the command itself tells its children
        _, errors = stopped.communicate(timeout=scaled(100))
    assert stopped.returncode == 130 and "run the same command again to continue" in errors, errors
    saved = max(int(path.name[5:]) for path in (first / "checkpoints").glob("step-*"))
    assert 3 <= saved < 30
    assert len(steps(first)) == saved
    assert not other.exists()
    assert not (out / "comparison.md").exists()

    printed = run(file, out, "rope", 1, launcher=f"env OMP_NUM_THREADS=1 {sys.executable}")
    assert "1 run, 1 of them to do" in printed
    assert (out / "comparison.md").exists()
    assert "resumed from" in (first / "log.txt").read_text()
    assert [entry["step"] for entry in steps(first)] == list(range(1, 31))


@pytest.mark.slow
@pytest.mark.usefixtures("quick_children")
def test_encodings_and_scalings(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["training"]["steps"] = 20
    raw_config["model"]["max_positions"] = 128
    file = tmp_path / "config.json"
    out = tmp_path / "out"
    file.write_text(json.dumps(raw_config))
    rope = out / "rope" / "seed-1234"
    tape = out / "tape" / "seed-1234"
    printed = run(file, out, "rope,tape,tape+linear", 1)
    assert "2 runs, 2 of them to do" in printed
    # Same samples and initial weights: until its gains learn, TAPE equals RoPE.
    assert_close([steps(rope)[0]["loss"]], [steps(tape)[0]["loss"]], bounds.TRAINED)
    assert steps(rope)[-1]["loss"] != pytest.approx(steps(tape)[-1]["loss"], rel=10 * bounds.TRAINED.limit)
    results = [TextResult.read(path) for path in (tape / "outcome.json", tape / "outcome+linear.json")]
    assert [list(result.curve) for result in results] == [[128], [128]]
    assert results[0].curve != results[1].curve
    assert all("`tape+linear`" in printed and f"{result.curve[128]:.4g}" in printed for result in results)
    assert results[0].figures.validation_loss == steps(tape)[-1]["validation_loss"]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_children")
def test_adds_a_seed(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Existing results are kept, even without checkpoints. The new run sees other samples. Other settings are refused."""
    file = tmp_path / "config.json"
    out = tmp_path / "out"
    file.write_text(json.dumps(raw_config))
    first, second = (out / "rope" / f"seed-{seed}" for seed in (1234, 1235))
    assert "1 run, 1 of them to do" in run(file, out, "rope", 1)
    shutil.rmtree(first / "checkpoints")
    before = (first / "outcome.json").stat().st_mtime_ns
    printed = run(file, out, "rope", 2)
    assert "2 runs, 1 of them to do" in printed
    assert (first / "outcome.json").stat().st_mtime_ns == before
    assert steps(second)[0]["loss"] != pytest.approx(steps(first)[0]["loss"], rel=1e-4)

    with pytest.raises(ValueError, match="was trained with optimizer.learning_rate 0.01, now it is 0.5"):
        run(file, out, "rope", 1, "optimizer.learning_rate=0.5")
    with pytest.raises(ValueError, match="was trained with model.norm_eps 1e-05, the configuration says 0.1"):
        run(file, out, "rope", 1, "model.norm_eps=0.1")


@pytest.mark.usefixtures("quick_children")
def test_addition(raw_config: dict[str, Any], tmp_path: Path) -> None:
    data = tmp_path / "addition"
    prepare_addition(AdditionTask(digits=2, per_cell=20, seed=3), data, lambda tokens: None)
    raw_config["data"] = {"path": str(data), "samples": "documents", "sequence_length": longest_document(2), "prompt_end": "="}
    raw_config["model"] |= {"vocab_size": character_tokenizer(ALPHABET).vocab_size, "encoding": "randpe"}
    file = tmp_path / "config.json"
    out = tmp_path / "out"
    file.write_text(json.dumps(raw_config))
    printed = run(file, out, "rope+yarn", 1)
    result = TextResult.read(out / "rope" / "seed-1234" / "outcome+yarn.json")
    assert list(result.figures.columns()) == ["trained lengths (%)", "beyond (%)", "all (%)"]
    assert list(result.curve) == [1, 2, 3, 4]
    assert "`rope+yarn`" in printed
    assert (out / "comparison.png").exists()

    with pytest.raises(ValueError, match="need 16 positions, but model.max_positions is 15: raise it"):
        run(file, tmp_path / "none", "rope", 1, "model.max_positions=15")


@pytest.mark.numerics
def test_bad_input(raw_config: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    out = tmp_path / "out"
    file.write_text(json.dumps(raw_config))
    with pytest.raises(RunsFailed, match="2 of 2 runs failed") as failed:
        run(file, out, "rope", 2, launcher="false")
    for seed in (1234, 1235):
        assert f"rope, seed {seed}: training exited with status 1" in str(failed.value)
        assert str(out / "rope" / f"seed-{seed}" / "log.txt") in str(failed.value)

    def refused(encodings: str, *settings: str) -> str:
        with pytest.raises(ValueError) as error:
            run(file, tmp_path / "none", encodings, 1, *settings)
        return str(error.value)

    assert "'ropes' is not an encoding" in refused("ropes")
    assert "model.position_siz: unknown key; did you mean position_size" in refused("rope,tape:position_siz=3")
    assert "head_dim 5 is not a multiple of 2" in refused("nope,rope:head_dim=5")
    assert "model.scaling is set" in refused("rope", 'model.scaling={"kind": "linear", "factor": 2.0}', "model.encoding=rope")
    assert "set data.samples to packed" in refused("rope", "data.samples=documents", "data.sequence_length=32")
    assert "set data.samples to packed" in refused("rope", "data.mask_documents=true")
    assert "tape and tape:position_size=6 are the same model" in refused("tape,tape:position_size=6")
    assert "tape+yarn: no test is longer than the 32 tokens of training" in refused("tape+yarn")
    with pytest.raises(ValueError, match="jobs is 2, but a run started by `launcher`"):
        run(file, tmp_path / "none", "rope", 1, jobs=2, launcher="mpirun")
    assert not (tmp_path / "none").exists()
