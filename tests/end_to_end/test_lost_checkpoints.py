"""A damaged run directory never makes a run start from step 0 silently, and never costs it a good checkpoint."""

import copy
import errno
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from megatape.config import parse_config
from megatape.run_folder import RunFolder, read_metrics
from megatape.training.reporting.step_metrics import StepMetrics
from megatape.training.sinks.json_lines import JsonLines
from megatape.utils.files.atomic import write_atomically
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_context import make_context
from tests.helpers.runs.run_folders import flip_byte, read_entries
from tests.helpers.runs.training_cases import TRAIN_CASES


class Case(NamedTuple):
    """Starting a run after damaging its folder.

    Attributes:
        name: The run's name.
        expected: Step where it continues, or parts of the error refusing it.
        settings: Changes of the configuration; by default one more step.
        resume: Value of --resume, None for a new run.
        more: More of the case, see `train_cases`.
    """

    name: str
    expected: int | list[str]
    settings: dict[str, Any] = {"training.steps": 5}  # noqa: RUF012 (never changed)
    resume: str | None = "auto"
    more: dict[str, Any] = {}  # noqa: RUF012 (never changed)

    @property
    def content(self) -> dict[str, Any]:
        """The case as workers take it."""
        case = {"name": self.name, "set": self.settings} | self.more
        if self.resume is not None:
            case["resume"] = self.resume
        return case


REFUSED = [
    Case("gone", ["UserError", "last had", "step-00000004"]),
    Case("gone before latest", ["UserError", "records 4 steps", "first checkpoint at step 1"]),
    Case("set aside", ["UserError", ".damaged"]),
    Case("fresh", ["UserError", "records 4 steps", "Add `resume` auto"], settings={}, resume=None),
    Case("config alone", ["UserError", "config.json of an earlier run"]),
    Case("config alone", ["UserError", "config.json of an earlier run"], settings={}, resume=None),
    Case("other model", ["UserError", "model.mlp_size"], settings={"model.mlp_size": 44}),
    Case(
        "long EIO",
        ["PathError", "cannot be read", "Nothing was changed"],
        more={"fault": ["unreadable", 9]},
    ),
    Case("asked", ["optimizer.beta1 0.9", "add `allow_changes`"], settings={"optimizer.beta1": 0.8}),
]
CONTINUED = [
    Case("copied over", 3),
    Case("early", 0),
    Case("first save", 0),
    Case("before the first save", 0),
    Case("in the first save", 0),
    Case("short EIO", 4, more={"fault": ["unreadable", 2]}),
    Case("changed", 4, settings={"training.gradient_clip": 0.5, "training.steps": 5}),
    Case("allowed", 4, settings={"optimizer.beta1": 0.8}, more={"allow_changes": True}),
]
# Run that never saved -> interval between checkpoints
NEVER_SAVED = {"early": 5, "first save": 4, "before the first save": 4, "in the first save": 3}


def checkpoint_names(folder: RunFolder) -> list[str]:
    return sorted(path.name for path in folder.checkpoints.glob("*"))


def recorded(folder: RunFolder) -> bytes | None:
    """Return the content of metrics.jsonl, None if it is missing."""
    if not folder.metrics.exists():
        return None
    return folder.metrics.read_bytes()


@pytest.mark.slow
def test_step_0_is_never_a_surprise(finished: dict[str, Any], tmp_path: Path) -> None:
    """A run starts from step 0 only if it never had a checkpoint. If it is refused, nothing is changed."""
    folders = damaged_runs(Path(finished["run"]["directory"]))
    before = {case.name: (checkpoint_names(folders[case.name]), recorded(folders[case.name])) for case in REFUSED}
    payload = {"config": finished, "cases": [case.content for case in REFUSED + CONTINUED]}

    results_by_rank = run_workers(TRAIN_CASES, 2, payload, tmp_path / "workers")

    for rank, results in enumerate(results_by_rank):
        for case, result in zip(REFUSED + CONTINUED, results, strict=True):
            if isinstance(case.expected, int):
                assert result.get("step") == case.expected, (rank, case, result)
                continue
            for part in case.expected:
                assert part in result.get("error", ""), (rank, case, result)
    for name, (names, metrics) in before.items():
        assert checkpoint_names(folders[name]) == names, name
        assert recorded(folders[name]) == metrics, name
    assert checkpoint_names(folders["copied over"]) == ["step-00000004", "step-00000004.corrupted", "step-00000005"]
    assert [name for name in checkpoint_names(folders["short EIO"]) if "corrupted" in name] == []
    early = folders["early"]
    assert sorted(read_metrics(early.directory / "metrics-1.jsonl")) == [1, 2, 3, 4], "what was recorded is kept"
    assert sorted(read_metrics(early.metrics)) == [1, 2, 3, 4, 5]
    output = (tmp_path / "workers" / "rank0.log").read_text()
    assert "starting again from step 0" in output
    assert "holds step 3: it was copied or renamed" in output
    assert "changed since then: training.gradient_clip: 1.0 -> 0.5" in output
    assert "changed since then: optimizer.beta1: 0.9 -> 0.8" in output


def damaged_runs(root: Path) -> dict[str, RunFolder]:
    """Damage a copy of the run "base" for each case."""
    folders = {}
    for case in REFUSED + CONTINUED:
        if case.name not in folders:
            folders[case.name] = RunFolder(Path(shutil.copytree(root / "base", root / case.name)))

    copied_over = folders["copied over"]
    shutil.rmtree(copied_over.checkpoint(4))
    shutil.copytree(RunFolder(root / "base").checkpoint(3), copied_over.checkpoint(4))

    for name in ("gone", "gone before latest", "fresh", "config alone", *NEVER_SAVED):
        shutil.rmtree(folders[name].checkpoints)
        if name != "gone":
            folders[name].latest.unlink()
    folders["config alone"].metrics.unlink()

    set_aside = folders["set aside"]
    for checkpoint in set_aside.list_checkpoints():
        # Earlier versions renamed damaged checkpoints like this.
        checkpoint.rename(f"{checkpoint}.damaged")
    set_aside.latest.unlink()

    for name, interval in NEVER_SAVED.items():
        config = json.loads(folders[name].config.read_text())
        config["checkpoint"]["interval"] = interval
        config["training"]["steps"] = 10
        folders[name].config.write_text(json.dumps(config))
    (folders["first save"].checkpoints / "step-00000004.0123abcd.tmp").mkdir(parents=True)
    # Both runs save in the background while they make more steps.
    for name in ("before the first save", "in the first save"):
        events = folders[name].events
        lines = [line for line in events.read_text().splitlines() if '"checkpoint"' not in line]
        events.write_text("\n".join(lines))

    flip_byte(folders["other model"].checkpoint(4) / "weight-00000.safetensors")
    return folders


KEEP_ONE = {"checkpoint.keep": 1}


class Saves(NamedTuple):
    """Runs whose saves fail.

    Attributes:
        is_background: Whether checkpoints are saved in the background.
        folders: Folder of each run.
        results: Result of each run on each rank.
        output: Output of rank 0.
        linked: Target of a link that is one of the checkpoints of the run "folders".
    """

    is_background: bool
    folders: dict[str, RunFolder]
    results: list[dict[str, dict[str, Any]]]
    output: str
    linked: Path


@pytest.fixture(scope="module", params=[False, True], ids=["foreground", "background"])
def saves(
    request: pytest.FixtureRequest,
    trained: dict[str, Any],
    data_directory: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Saves:
    folder = tmp_path_factory.mktemp("saves")
    config = copy.deepcopy(trained)
    config["run"]["directory"] = str(shutil.copytree(trained["run"]["directory"], folder / "run"))
    config["checkpoint"]["background"] = request.param
    root = folder / "run"
    linked = folder / "linked"
    prepare_folders(root, linked)
    data = str(shutil.copytree(data_directory, folder / "data"))
    cases: list[dict[str, Any]] = [
        {"name": "not finite", "resume": "auto", "set": KEEP_ONE | {"optimizer.eps": 1e-46, "training.steps": 6}},
        {"name": "large", "set": KEEP_ONE | {"optimizer.learning_rate": 1e39, "schedule.warmup_fraction": 0.0}},
        {"name": "always", "fault": ["unsaved", 6]},
        {"name": "last", "fault": ["unsaved", 3], "set": {"checkpoint.interval": 100}},
        {"name": "thrice", "fault": ["unsaved", 5]},
        {"name": "twice", "fault": ["unsaved", 2]},
        {"name": "folders", "resume": "auto", "set": KEEP_ONE | {"training.steps": 5}},
        {"name": "logging", "fault": ["full disk", 2]},
        {"name": "metrics", "resume": "auto", "set": {"training.steps": 5}},
        {"name": "data", "set": {"data.path": data}, "only_save": True, "remove": data},
    ]
    names = [case["name"] for case in cases]
    results_by_rank = run_workers(TRAIN_CASES, 2, {"config": config, "cases": cases}, folder / "workers")
    results = [dict(zip(names, results, strict=True)) for results in results_by_rank]
    output = (folder / "workers" / "rank0.log").read_text()
    return Saves(request.param, {name: RunFolder(root / name) for name in names}, results, output, linked)


def prepare_folders(root: Path, linked: Path) -> None:
    """Prepare run directories that contain a link, partial folders or files in the way."""
    shutil.copytree(root / "base", root / "not finite")
    folders = RunFolder(Path(shutil.copytree(root / "base", root / "folders")))
    folders.checkpoint(3).rename(linked)
    folders.checkpoint(3).symlink_to(linked)
    (folders.checkpoints / "step-9.tmp").write_text("a file")
    for name in ("step-00000002.tmp", "step-00000001.abandoned.tmp"):
        (folders.checkpoints / name).mkdir()
        os.utime(folders.checkpoints / name, (0, 0))
    (folders.checkpoints / "step-00000002.somebody.tmp").mkdir()
    metrics = RunFolder(Path(shutil.copytree(root / "base", root / "metrics"))).metrics
    metrics.unlink()
    metrics.mkdir()
    logging = root / "logging"
    logging.mkdir()
    (logging / "tensorboard").write_text("no folder")


@pytest.mark.slow
def test_a_state_that_is_not_finite_replaces_no_checkpoint(saves: Saves) -> None:
    for results in saves.results:
        error = results["not finite"]["error"]
        assert "TrainingDiverged" in error
        assert "step-00000005 was not written: weight of" in error
        error = results["large"]["error"]
        assert "TrainingDiverged" in error
        # With background saves, a validation loss may be noticed first.
        if not saves.is_background:
            assert "would not be finite" in error
    assert checkpoint_names(saves.folders["not finite"]) == ["step-00000003", "step-00000004"], "though keep is 1"
    assert checkpoint_names(saves.folders["large"]) == []


@pytest.mark.slow
def test_saves_that_fail(saves: Saves) -> None:
    """Three failures in a row, or one of the last save, end the run. No partial folder stays."""
    last_step = 3
    if saves.is_background:
        last_step = 4
    for results in saves.results:
        error = results["always"]["error"]
        assert "NotSaved" in error
        assert "No space left" in error
        assert f"steps 1 to {last_step} are not saved" in error
        error = results["last"]["error"]
        assert "NotSaved" in error
        assert "steps 1 to 4 are not saved" in error
    assert checkpoint_names(saves.folders["always"]) == []
    assert checkpoint_names(saves.folders["last"]) == []
    assert "failure 2 in a row, 3 end the run" in saves.output


@pytest.mark.slow
def test_failed_saves_are_tried_again(saves: Saves) -> None:
    for results in saves.results:
        assert results["thrice"].get("step") == 0
        assert results["twice"].get("step") == 0
    assert checkpoint_names(saves.folders["twice"]) == ["step-00000003", "step-00000004"]
    expected = ["step-00000003", "step-00000004"]
    if saves.is_background:
        expected = ["step-00000004"]  # the third failure is seen in step 4
    assert checkpoint_names(saves.folders["thrice"]) == expected


@pytest.mark.slow
def test_folders_of_others_are_not_removed(saves: Saves) -> None:
    """Abandoned partial folders are removed, and of a linked checkpoint only the link."""
    for results in saves.results:
        assert results["folders"].get("step") == 4
    names = checkpoint_names(saves.folders["folders"])
    assert names == ["step-00000002.somebody.tmp", "step-00000005", "step-9.tmp"]
    assert (saves.linked / "manifest.json").exists()


@pytest.mark.slow
def test_metrics_that_cannot_be_written_end_no_run(saves: Saves) -> None:
    """Failed metrics are written together with the next ones, and there is one warning."""
    for results in saves.results:
        assert results["logging"].get("step") == 0
        assert results["metrics"].get("step") == 4
    assert sorted(read_metrics(saves.folders["logging"].metrics)) == [1, 2, 3, 4]
    assert saves.output.count("device: 'metrics.jsonl'; training continues") == 1
    metrics = saves.folders["metrics"]
    assert checkpoint_names(metrics) == ["step-00000004", "step-00000005"]
    assert list(metrics.metrics.iterdir()) == []
    assert "Is a directory" in saves.output
    assert "tensorboard" in saves.output


@pytest.mark.slow
def test_a_checkpoint_has_the_tokenizer_of_removed_data(saves: Saves, data_directory: Path) -> None:
    for results in saves.results:
        assert results["data"].get("step") == 0
    tokenizer = saves.folders["data"].checkpoint(0) / "tokenizer.model"
    assert tokenizer.read_bytes() == (data_directory / "tokenizer.model").read_bytes()


@pytest.mark.parametrize(
    ("content", "expected"),
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
def test_lines_that_are_no_metrics_are_dropped(
    raw_config: dict[str, Any], tmp_path: Path, content: bytes, expected: list[int]
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    sink = JsonLines(make_context(parse_config(raw_config, "test"), RunFolder(tmp_path)))
    sink.write(StepMetrics(3, 1.0, 1.0, 1.0, 1, 1, 1.0, 1, None))
    sink.close()

    assert [entry["step"] for entry in read_entries(path)] == [*expected, 3]


@pytest.mark.parametrize("moment", ["fsync", "rename"])
def test_killed_while_rewriting_metrics(tmp_path: Path, moment: str) -> None:
    """A run is killed before the new content is on disk, or before it has the file's name. The old content stays."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("old")
    child = os.fork()
    if child == 0:
        setattr(os, moment, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        write_atomically(path, b"new")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert path.read_text() == "old"
    write_atomically(path, b"new")
    assert path.read_text() == "new"


def test_rewriting_metrics_on_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is replaced as a whole or not at all."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
