"""megatape study compare: training, evaluation, resumption and errors."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from megatape.data.synthetic.addition_problems import ALPHABET, AdditionTask, longest_document, prepare_addition
from megatape.data.tokenizers.sentencepiece import character_tokenizer
from megatape.lab.study.comparison.compare import compare
from megatape.lab.study.execution.pool import RunPool
from megatape.lab.study.execution.run import RunsFailed
from megatape.lab.study.execution.study import Study
from megatape.lab.study.execution.task_evaluation import TaskCommand
from megatape.lab.study.results.text_result import TextResult
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.checks.cells import cells
from tests.helpers.processes.load import scaled
from tests.helpers.processes.waiting import wait_until


@pytest.fixture
def file(raw_config: dict[str, Any], tmp_path: Path) -> Path:
    """Write the configuration file for a run of 4 steps."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw_config))
    return path


def change_config(file: Path, section: str, **changes: Any) -> None:
    """Edit values in a section of a configuration file."""
    raw = json.loads(file.read_text())
    raw[section] |= changes
    file.write_text(json.dumps(raw))


def run(
    file: Path,
    out: Path,
    encodings: str,
    seeds: int,
    *settings: str,
    jobs: int = 1,
    launcher: str | None = None,
    tasks: tuple[TaskCommand, ...] = (),
) -> str:
    """Return what the command prints."""
    shown: list[str] = []
    study = Study(out, RunPool(jobs, launcher), "typed", shown.append)
    compare(str(file), settings, encodings, seeds, study, tasks)
    return "\n".join(shown)


def steps(run_directory: Path) -> list[dict[str, float]]:
    """Return a run's metrics by step, none if it has not started."""
    metrics = run_directory / "metrics.jsonl"
    if not metrics.exists():
        return []
    return [json.loads(line) for line in metrics.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("measured_here")
def test_resumes_after_an_interruption(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In a model this small, more threads only wait.
    monkeypatch.setenv("MEGATAPE_THREADS", "1")
    change_config(file, "training", steps=30)
    out = tmp_path / "out"
    first = out / "rope" / "seed-1234"
    second = out / "rope" / "seed-1235"
    command = [sys.executable, "-m", "megatape", "study", "compare", "--config", str(file), "--output", str(out)]
    command += ["--encodings", "rope", "--seeds", "2"]

    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as stopped:
        wait_until(lambda: len(steps(first)) > 2, "the third step", timeout=200, process=stopped, interval=0.1)
        with pytest.raises(ValueError, match="is in use by another study"):
            run(file, out, "rope", 2)
        # Only the command gets the signal. It has to stop its children.
        stopped.send_signal(signal.SIGTERM)
        _, errors = stopped.communicate(timeout=scaled(100))
    assert stopped.returncode == 130, errors
    assert "run the same command again to continue" in errors
    saved_steps = [int(path.name.removeprefix("step-")) for path in (first / "checkpoints").glob("step-*")]
    assert 3 <= max(saved_steps) < 30
    assert len(steps(first)) == max(saved_steps)
    assert not second.exists()
    assert not (out / "comparison.md").exists()

    printed = run(file, out, "rope", 1, launcher=f"env OMP_NUM_THREADS=1 {sys.executable}")
    assert "1 run, 1 of them to do" in printed
    assert (out / "comparison.md").exists()
    assert "resumed from" in (first / "log.txt").read_text()
    assert [entry["step"] for entry in steps(first)] == list(range(1, 31))


@pytest.mark.numerics
@pytest.mark.slow
@pytest.mark.usefixtures("quick_children")
def test_encodings_and_scalings(file: Path, tmp_path: Path) -> None:
    """Encodings see the same samples, starting from the same weights. Scaling an encoding reuses its run."""
    change_config(file, "training", steps=20)
    change_config(file, "model", max_positions=128)
    out = tmp_path / "out"

    printed = run(file, out, "rope,tape,tape+linear", 1)

    assert "2 runs, 2 of them to do" in printed
    rope_steps = steps(out / "rope" / "seed-1234")
    tape_steps = steps(out / "tape" / "seed-1234")
    # TAPE equals RoPE until its gains learn.
    assert_close([rope_steps[0]["loss"]], [tape_steps[0]["loss"]], bounds.TRAINED)
    assert rope_steps[-1]["loss"] != pytest.approx(tape_steps[-1]["loss"], rel=10 * bounds.TRAINED.limit)

    plain = TextResult.read(out / "tape" / "seed-1234" / "outcome.json")
    linear = TextResult.read(out / "tape" / "seed-1234" / "outcome+linear.json")
    assert list(plain.curve) == [128]
    assert list(linear.curve) == [128]
    assert plain.curve != linear.curve
    assert "`tape+linear`" in printed
    assert f"{plain.curve[128]:.4g}" in printed
    assert f"{linear.curve[128]:.4g}" in printed
    assert plain.figures.validation_loss == tape_steps[-1]["validation_loss"]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_children")
def test_adds_a_seed(file: Path, tmp_path: Path) -> None:
    """Existing results are kept, even without checkpoints. The new run sees other samples. Other settings are refused."""
    out = tmp_path / "out"
    first = out / "rope" / "seed-1234"
    second = out / "rope" / "seed-1235"
    assert "1 run, 1 of them to do" in run(file, out, "rope", 1)
    shutil.rmtree(first / "checkpoints")
    written = (first / "outcome.json").stat().st_mtime_ns

    printed = run(file, out, "rope", 2)

    assert "2 runs, 1 of them to do" in printed
    assert (first / "outcome.json").stat().st_mtime_ns == written
    assert steps(second)[0]["loss"] != pytest.approx(steps(first)[0]["loss"], rel=1e-4)
    with pytest.raises(ValueError, match="was trained with optimizer.learning_rate 0.01, now it is 0.5"):
        run(file, out, "rope", 1, "optimizer.learning_rate=0.5")
    with pytest.raises(ValueError, match="was trained with model.norm_eps 1e-05, the configuration says 0.1"):
        run(file, out, "rope", 1, "model.norm_eps=0.1")


@pytest.mark.slow
@pytest.mark.usefixtures("quick_children")
def test_models_are_evaluated_by_tasks(file: Path, tmp_path: Path) -> None:
    """A task added later needs no training. Tasks evaluate models as they were trained, without scaling."""
    change_config(file, "model", max_positions=128)
    out = tmp_path / "out"
    data = json.loads(file.read_text())["data"]["path"]
    short = TaskCommand.parse(f"perplexity --data {data} --lengths 16 --max-tokens 64")
    long = TaskCommand.parse(f"perplexity --data {data} --lengths 32 --max-tokens 64")
    run(file, out, "rope,tape", 1, tasks=(short,))
    metrics = out / "tape" / "seed-1234" / "metrics.jsonl"
    trained = metrics.stat().st_mtime_ns

    printed = run(file, out, "rope,tape,tape+linear", 1, tasks=(short, long))

    assert "2 runs, 2 of them to do" in printed
    assert metrics.stat().st_mtime_ns == trained
    _, tables = printed.split(f"Evaluated by `megatape evaluate {long.title}`:")
    header, *rows = [cells(line) for line in tables.splitlines() if line.startswith("|") and "---" not in line]
    assert header == ["encoding", "parameters", "seeds", "perplexity at 32", "nats per byte at 32"]
    assert [row[0] for row in rows[:2]] == ["`rope`", "`tape`"]
    (results,) = (out / "tape" / "seed-1234" / "evaluations" / long.folder_name).rglob("results.json")
    (perplexity, _) = json.loads(results.read_text())["measures"]
    assert rows[1][3].startswith(f"{perplexity['value']:.4g} (")
    difference = rows[-1]
    assert difference[0] == "`tape`"
    rope_perplexity = float(rows[0][3].split()[0])
    assert float(difference[3].split()[0]) == pytest.approx(perplexity["value"] - rope_perplexity, abs=0.1)


@pytest.fixture
def addition_file(raw_config: dict[str, Any], tmp_path: Path) -> Path:
    """Write the configuration file for adding two-digit numbers."""
    data = tmp_path / "addition"
    prepare_addition(AdditionTask(digits=2, per_cell=20, seed=3), data, lambda tokens: None)
    raw_config["data"] = {
        "path": str(data),
        "samples": "documents",
        "sequence_length": longest_document(2),
        "prompt_end": "=",
    }
    raw_config["model"] |= {"vocab_size": character_tokenizer(ALPHABET).vocab_size, "encoding": "randpe"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw_config))
    return path


@pytest.mark.usefixtures("quick_children")
def test_addition(addition_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    printed = run(addition_file, out, "rope+yarn", 1)

    assert "`rope+yarn`" in printed
    assert (out / "comparison.png").exists()
    result = TextResult.read(out / "rope" / "seed-1234" / "outcome+yarn.json")
    assert list(result.figures.columns()) == ["trained lengths (%)", "beyond (%)", "all (%)"]
    assert list(result.curve) == [1, 2, 3, 4]


def test_addition_without_enough_positions_is_refused(addition_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="need 16 positions, but model.max_positions is 15: raise it"):
        run(addition_file, tmp_path / "none", "rope", 1, "model.max_positions=15")


def test_failed_runs_are_reported_with_their_logs(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    with pytest.raises(RunsFailed, match="2 of 2 runs failed") as failed:
        run(file, out, "rope", 2, launcher="false")

    message = str(failed.value)
    for seed in (1234, 1235):
        assert f"rope, seed {seed}: training exited with status 1" in message
        assert str(out / "rope" / f"seed-{seed}" / "log.txt") in message


def test_a_failed_training_beside_a_corrupted_checkpoint_is_reported(file: Path, tmp_path: Path) -> None:
    """The checkpoint is trained again. Its folder is no proof that training succeeded."""
    out = tmp_path / "out"
    (out / "rope" / "seed-1234" / "checkpoints" / "step-00000004").mkdir(parents=True)

    with pytest.raises(RunsFailed, match="rope, seed 1234: training exited with status 1"):
        run(file, out, "rope", 1, launcher="false")


def test_a_diverged_run_is_not_trained_again(file: Path, tmp_path: Path) -> None:
    """Another learning rate trains the run again, and so does removing its mark."""
    out = tmp_path / "out"
    folder = out / "rope" / "seed-1234"
    mark = folder / "diverged.txt"
    diverging = "sh -c 'echo error: the validation loss is nan; exit 3'"

    def num_trainings(*settings: str) -> int:
        with pytest.raises(RunsFailed) as failed:
            run(file, out, "rope", 1, *settings, launcher=diverging)
        message = str(failed.value)
        assert "rope, seed 1234: training diverged with these settings, and is not repeated" in message
        assert f"{mark} says: error: the validation loss is nan; remove that file to train again" in message
        return (folder / "log.txt").read_text().count("the validation loss is nan")

    assert num_trainings() == 1
    assert num_trainings() == 1
    assert num_trainings("checkpoint.interval=3") == 1
    assert num_trainings("optimizer.learning_rate=0.002") == 2
    assert num_trainings("optimizer.learning_rate=0.002") == 2
    mark.unlink()
    assert num_trainings("optimizer.learning_rate=0.002") == 3


class Refusal(NamedTuple):
    """Encodings and settings that are refused."""

    message: str
    encodings: str
    settings: tuple[str, ...] = ()


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal("'ropes' is not an encoding", "ropes"),
        Refusal("model.position_siz: unknown key; did you mean position_size", "rope,tape:position_siz=3"),
        Refusal("head_dim 5 is not a multiple of 2", "nope,rope:head_dim=5"),
        Refusal("model.scaling is set", "rope", ('model.scaling={"kind": "linear", "factor": 2.0}', "model.encoding=rope")),
        Refusal("set data.samples to packed", "rope", ("data.samples=documents", "data.sequence_length=32")),
        Refusal("set data.samples to packed", "rope", ("data.mask_documents=true",)),
        Refusal("tape and tape:position_size=6 are the same model", "tape,tape:position_size=6"),
        Refusal("tape+yarn: no test is longer than the 32 tokens of training", "tape+yarn"),
    ],
    ids=lambda refusal: refusal.message,
)
def test_bad_input_is_refused_before_a_folder_is_written(file: Path, tmp_path: Path, refusal: Refusal) -> None:
    out = tmp_path / "none"

    with pytest.raises(ValueError) as error:
        run(file, out, refusal.encodings, 1, *refusal.settings)

    assert refusal.message in str(error.value)
    assert not out.exists()


def test_parallel_runs_with_a_launcher_are_refused(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "none"

    with pytest.raises(ValueError, match="jobs is 2, but a run started by `launcher`"):
        run(file, out, "rope", 1, jobs=2, launcher="mpirun")

    assert not out.exists()
