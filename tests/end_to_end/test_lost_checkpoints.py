"""Nothing that happens to a run's folder lets it start from step 0 without a word, or costs it a good checkpoint."""

import errno
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from megatape.config import parse_config
from megatape.run_folder import RunFolder, read_metrics
from megatape.training.reporting.step_metrics import StepMetrics
from megatape.training.sinks.json_lines import JsonLines
from megatape.utils.atomic import write_atomically
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_context import make_context
from tests.helpers.runs.run_folders import flip_byte
from tests.helpers.runs.training_cases import TRAIN_CASES

NAMES = ["step-00000003", "step-00000004"]


def _names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").glob("*"))


@pytest.mark.slow
def test_step_0_is_never_a_surprise(finished: dict[str, Any], data_directory: Path, tmp_path: Path) -> None:
    root = Path(finished["run"]["directory"])
    runs = {
        name: Path(shutil.copytree(root / "base", root / name))
        for name in (
            "copied over",
            "gone",
            "gone before latest",
            "set aside",
            "fresh",
            "config alone",
            "early",
            "first save",
            "before the first save",
            "in the first save",
            "other model",
            "short EIO",
            "long EIO",
            "changed",
            "asked",
            "allowed",
        )
    }
    shutil.rmtree(runs["copied over"] / "checkpoints" / NAMES[1])
    shutil.copytree(root / "base" / "checkpoints" / NAMES[0], runs["copied over"] / "checkpoints" / NAMES[1])
    never_saved = {"early": 5, "first save": 4, "before the first save": 4, "in the first save": 3}  # the interval
    for name in ("gone", "gone before latest", "fresh", "config alone", *never_saved):
        shutil.rmtree(runs[name] / "checkpoints")
        if name != "gone":
            (runs[name] / "latest").unlink()
    for name in NAMES:
        path = runs["set aside"] / "checkpoints" / name
        path.rename(f"{path}.damaged")  # as earlier versions did
    (runs["set aside"] / "latest").unlink()
    (runs["config alone"] / "metrics.jsonl").unlink()
    for name, interval in never_saved.items():
        config = json.loads((runs[name] / "config.json").read_text())
        config["checkpoint"]["interval"] = interval
        config["training"]["steps"] = 10
        (runs[name] / "config.json").write_text(json.dumps(config))
    (runs["first save"] / "checkpoints" / "step-00000004.0123abcd.tmp").mkdir(parents=True)
    for name in ("before the first save", "in the first save"):  # in the background, while more steps were made
        lines = (runs[name] / "events.jsonl").read_text().splitlines()
        (runs[name] / "events.jsonl").write_text("\n".join(line for line in lines if '"checkpoint"' not in line))
    flip_byte(runs["other model"] / "checkpoints" / NAMES[1] / "weight-00000.safetensors")

    auto = {"resume": "auto", "set": {"training.steps": 5}}
    refused: list[tuple[dict[str, Any], list[str]]] = [
        (auto | {"name": "gone"}, ["UserError", "last had", NAMES[1]]),
        (auto | {"name": "gone before latest"}, ["UserError", "records 4 steps", "first checkpoint at step 1"]),
        (auto | {"name": "set aside"}, ["UserError", ".damaged"]),
        ({"name": "fresh"}, ["UserError", "records 4 steps", "--resume auto"]),
        (auto | {"name": "config alone"}, ["UserError", "config.json of an earlier run"]),
        ({"name": "config alone"}, ["UserError", "config.json of an earlier run"]),
        ({"name": "other model", "resume": "auto", "set": {"model.mlp_size": 44}}, ["UserError", "model.mlp_size"]),
        (auto | {"name": "long EIO", "fault": ["unreadable", 9]}, ["PathError", "cannot be read", "Nothing was changed"]),
        ({"name": "asked", "resume": "auto", "set": {"optimizer.beta1": 0.8}}, ["optimizer.beta1 0.9", "--allow-changes"]),
    ]
    continued: list[tuple[dict[str, Any], int]] = [
        (auto | {"name": "copied over"}, 3),
        (auto | {"name": "early"}, 0),
        (auto | {"name": "first save"}, 0),
        (auto | {"name": "before the first save"}, 0),
        (auto | {"name": "in the first save"}, 0),
        (auto | {"name": "short EIO", "fault": ["unreadable", 2]}, 4),
        ({"name": "changed", "resume": "auto", "set": {"training.gradient_clip": 0.5, "training.steps": 5}}, 4),
        ({"name": "allowed", "resume": "auto", "allow_changes": True, "set": {"optimizer.beta1": 0.8}}, 4),
    ]
    before = {case["name"]: (_names(runs[case["name"]]), _recorded(runs[case["name"]])) for case, _ in refused}
    cases = [case for case, _ in refused] + [case for case, _ in continued]
    for rank, results in enumerate(run_workers(TRAIN_CASES, 2, {"config": finished, "cases": cases}, tmp_path / "workers")):
        for (case, parts), result in zip(refused, results, strict=False):
            for part in parts:
                assert part in result.get("error", ""), (rank, case, result)
        for (case, step), result in zip(continued, results[len(refused) :], strict=True):
            assert result.get("step") == step, (rank, case, result)
    for name, content in before.items():
        assert (_names(runs[name]), _recorded(runs[name])) == content, f"{name}: refused, so nothing is changed"
    assert _names(runs["copied over"]) == ["step-00000004", "step-00000004.corrupted", "step-00000005"]
    assert not [name for name in _names(runs["short EIO"]) if "corrupted" in name]
    assert sorted(read_metrics(runs["early"] / "metrics-1.jsonl")) == [1, 2, 3, 4], "what was recorded is kept"
    assert sorted(read_metrics(runs["early"] / "metrics.jsonl")) == [1, 2, 3, 4, 5]
    said = (tmp_path / "workers" / "rank0.log").read_text()
    assert "starting again from step 0" in said and "holds step 3: it was copied or renamed" in said
    assert "changed since then: training.gradient_clip: 1.0 -> 0.5" in said
    assert "changed since then: optimizer.beta1: 0.9 -> 0.8" in said


def _recorded(run: Path) -> bytes | None:
    metrics = run / "metrics.jsonl"
    return metrics.read_bytes() if metrics.exists() else None


@pytest.mark.slow
@pytest.mark.parametrize("background", [False, True])
def test_saves_that_fail(finished: dict[str, Any], data_directory: Path, tmp_path: Path, background: bool) -> None:
    """A failed save removes its partial folder and is tried again; one of a state that is not finite never replaces a good
    one. All of it in the background too."""
    finished["checkpoint"]["background"] = background
    root = Path(finished["run"]["directory"])
    for name in ("not finite", "folders"):
        shutil.copytree(root / "base", root / name)
    folders = root / "folders" / "checkpoints"
    linked = (folders / NAMES[0]).rename(tmp_path / "elsewhere")
    (folders / NAMES[0]).symlink_to(linked)
    (folders / "step-9.tmp").write_text("a file")
    for name in ("step-00000002.tmp", "step-00000001.abandoned.tmp"):
        (folders / name).mkdir()
        os.utime(folders / name, (0, 0))
    (folders / "step-00000002.somebody.tmp").mkdir()
    metrics = Path(shutil.copytree(root / "base", root / "metrics")) / "metrics.jsonl"
    metrics.unlink()
    metrics.mkdir()
    logging = root / "logging"
    logging.mkdir()
    (logging / "tensorboard").write_text("no folder")
    data = shutil.copytree(data_directory, tmp_path / "data")

    keep = {"checkpoint.keep": 1}
    cases: list[dict[str, Any]] = [
        {"name": "not finite", "resume": "auto", "set": keep | {"optimizer.eps": 1e-46, "training.steps": 6}},
        {"name": "large", "set": keep | {"optimizer.learning_rate": 1e39, "schedule.warmup_fraction": 0.0}},
        {"name": "always", "fault": ["unsaved", 6]},
        {"name": "last", "fault": ["unsaved", 3], "set": {"checkpoint.interval": 100}},
        {"name": "thrice", "fault": ["unsaved", 5]},
        {"name": "twice", "fault": ["unsaved", 2]},
        {"name": "folders", "resume": "auto", "set": keep | {"training.steps": 5}},
        {"name": "logging", "fault": ["full disk", 2]},
        {"name": "metrics", "resume": "auto", "set": {"training.steps": 5}},
        {"name": "data", "set": {"data.path": str(data)}, "only_save": True, "remove": str(data)},
    ]
    both = run_workers(TRAIN_CASES, 2, {"config": finished, "cases": cases}, tmp_path / "workers")
    for not_finite, large, always, last, *rest in both:
        assert "TrainingDiverged" in not_finite["error"] and "step-00000005 was not written: weight of" in not_finite["error"]
        assert "TrainingDiverged" in large["error"]  # in the background a validation loss may be the first to be seen
        assert "would not be finite" in large["error"] or background
        assert "NotSaved" in always["error"] and "No space left" in always["error"]
        assert f"steps 1 to {3 + background} are not saved" in always["error"]
        assert "NotSaved" in last["error"] and "steps 1 to 4 are not saved" in last["error"]
        assert [result.get("step") for result in rest] == [0, 0, 4, 0, 4, 0], rest
    assert _names(root / "not finite") == NAMES, "nothing is pruned, though keep is 1"
    assert _names(root / "large") == _names(root / "always") == _names(root / "last") == [], "and no partial folder stays"
    assert _names(root / "thrice") == NAMES[background:], "the third failure is seen in step 4 if it is in the background"
    assert _names(root / "twice") == NAMES
    assert _names(root / "folders") == ["step-00000002.somebody.tmp", "step-00000005", "step-9.tmp"]
    assert (linked / "manifest.json").exists(), "only the link to it is pruned"
    assert sorted(read_metrics(logging / "metrics.jsonl")) == [1, 2, 3, 4], "those that could not be written, with the third"
    assert (RunFolder(root / "data").checkpoint(0) / "tokenizer.model").read_bytes() == (
        data_directory / "tokenizer.model"
    ).read_bytes()
    errors = (tmp_path / "workers" / "rank0.log").read_text()
    assert errors.count("device: 'metrics.jsonl'; training continues") == 1, "warned once"
    assert _names(root / "metrics") == [NAMES[1], "step-00000005"] and not list(metrics.iterdir())
    assert "Is a directory" in errors
    assert "tensorboard" in errors and "failure 2 in a row, 3 end the run" in errors


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b'{"step": 1}\n{"step": 2}\n{"st', [1, 2]),
        (b'{"step": 1}\n\xff\xfe\x00binary\n{"step": 2}\n', [1, 2]),
        (b'{"step": 1}\n{"loss": 3}\n{"step": "2"}\n', [1]),
        (b'[1]\n7\n{"step": 1}\n' + b"[" * 100_000 + b"\n", [1]),
        (b"", []),
        (b'{"step": 1}\n' + bytes(4096) + b'\n{"step": 2}\n' + bytes(4096), [1, 2]),
        (b'{"step": 1}\n{"step": 2}\n{"step": 2, "loss": 1}\n', [1, 2]),
        (b'{"step": 1}\n{"step": 2}', [1, 2]),
    ],
    ids=["truncated", "binary", "no step", "no object", "empty", "zeros", "duplicated", "no newline"],
)
def test_corrupted_metrics(raw_config: dict[str, Any], tmp_path: Path, content: bytes, kept: list[int]) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    sink = JsonLines(make_context(parse_config(raw_config, "test"), RunFolder(tmp_path)))
    sink.write(StepMetrics(3, 1.0, 1.0, 1.0, 1, 1, 1.0, 1, None))
    sink.close()
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry["step"] for entry in entries] == [*kept, 3]


@pytest.mark.parametrize("moment", ["fsync", "rename"])
def test_killed_while_rewriting_metrics(tmp_path: Path, moment: str) -> None:
    """Before the new content is on disk, and before it has the file's name: the old content is there."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("old")
    child = os.fork()
    if child == 0:
        setattr(os, moment, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        write_atomically(path, b"new")
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert path.read_text() == "old"
    write_atomically(path, b"new")
    assert path.read_text() == "new"


def test_rewriting_metrics_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not when the disk is full: the file is replaced as a whole or not at all."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
