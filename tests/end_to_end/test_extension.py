"""Components from outside the package: each is one file with one registry line, imported by --import.

The table in CONTRIBUTING.md lists each file's content.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape import imports
from megatape.checkpoint.load.reader import CheckpointReader
from megatape.config import load_config, parse_config, shared_values
from megatape.errors import UserError
from megatape.hf.families import family_of
from megatape.run_folder import RunFolder
from megatape.tools.cluster.slurm.job_array import JobArray
from megatape.tools.cluster.slurm.job_script import render_job
from megatape.tools.cluster.slurm.submission import take_snapshot
from tests.helpers.checks.bounds import TRAINED, assert_close
from tests.helpers.cluster.jobs import new_job
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import ROOT, Workers
from tests.helpers.runs.run_folders import read_entries

OPTIMIZER = (
    (ROOT / "tests/helpers/models/own_optimizer.py").read_text().replace("tests.helpers.models.own_optimizer", "{module}")
)
FILES = {
    "slopes": """
import torch
from torch import Tensor

from megatape.encodings.encoding import Encoding, Features, LayerBias
from megatape.distributed.mesh import Axis
from megatape.nn.parameters import parameter
from megatape.registry import ENCODINGS, EncodingEntry


class SlopeBias(LayerBias):
    def __init__(self, num_heads: int, axis: Axis) -> None:
        super().__init__()
        self.slope = parameter((num_heads,), axis, 0, init=0.25)

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        return (-self.slope.float()[:, None] * torch.arange(k.shape[1], dtype=torch.float32, device=k.device),)


class Slopes(Encoding):
    score_bias = "distance"

    def bias(self, axis: Axis) -> LayerBias:
        return SlopeBias(self.config.num_heads, axis)


ENCODINGS["slopes"] = EncodingEntry(f"{__name__}:Slopes", "learned slopes")
""",
    "spectral": OPTIMIZER.replace("{module}", "spectral") + '\nregistry.OPTIMIZERS["spectral"] = SPECTRAL\n',
    "stairs": OPTIMIZER.replace("{module}", "stairs") + '\nregistry.SCHEDULES["stairs"] = STAIRS\n',
    "table": """
from megatape.registry import SINKS, SinkEntry
from megatape.training.sinks.sink import Sink


class Table(Sink):
    def write(self, metrics):
        with (self.run.folder.directory / "table.txt").open("a") as file:
            file.write(f"{metrics.step} {metrics.loss}\\n")


SINKS["table"] = SinkEntry(f"{__name__}:Table", "a table")
""",
    "tally": """
from megatape.registry import CALLBACKS, Entry
from megatape.training.callbacks.callback import Callback


class Tally(Callback):
    steps = 0

    def on_start(self, step):
        assert self.steps == step

    def on_step(self, metrics):
        self.steps += 1

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state.get("steps", 0)


CALLBACKS["tally"] = Entry(f"{__name__}:Tally", "counts steps")
""",
    "centered": """
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from megatape.distributed.mesh import SINGLE, Axis
from megatape.nn.parameters import parameter
from megatape.registry import NORMALIZATIONS, Entry


class Centered(nn.Module):
    def __init__(self, size: int, eps: float, axis: Axis = SINGLE) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias = parameter((size,), axis, init=1.0), parameter((size,), axis, init=0.0)

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x.float(), x.shape[-1:], self.weight, self.bias, self.eps).to(x.dtype)


NORMALIZATIONS["centered"] = Entry(f"{__name__}:Centered", "layer normalization")
""",
}
SETTINGS = {
    "model": {"encoding": "slopes"},
    "optimizer": {"kind": "spectral", "learning_rate": 0.01, "momentum": 0.5},
    "schedule": {"kind": "stairs", "stairs": 2},
    "logging": {"interval": 1, "sinks": ["jsonl", "table"], "callbacks": ["tally"]},
    "checkpoint": {"interval": 2},
}


@pytest.fixture
def own(tmp_path: Path) -> list[Path]:
    """Write FILES. Returns their paths."""
    folder = tmp_path / "own"
    folder.mkdir()
    paths = []
    for name, text in FILES.items():
        path = folder / f"{name}.py"
        path.write_text(text)
        paths.append(path)
    return paths


@pytest.fixture
def config(own: list[Path], raw_config: dict[str, Any], tmp_path: Path) -> Path:
    for section, values in SETTINGS.items():
        raw_config[section] = raw_config.get(section, {}) | values
    raw_config["optimizer"] = SETTINGS["optimizer"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw_config))
    return path


def import_options(paths: list[Path]) -> list[str]:
    words = []
    for path in paths:
        words += ["--import", str(path)]
    return words


def run_command(words: list[str], logs: Path, expected_status: int = 0, num_ranks: int = 1) -> str:
    """Run a megatape command on ranks, checking their exit statuses. Returns the output."""
    with Workers(words, num_ranks, logs) as workers:
        assert workers.statuses() == [expected_status] * num_ranks, workers.logs()
    return workers.logs()


@pytest.mark.slow
def test_train_resume_and_export(own: list[Path], config: Path, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    words = ["pretrain", *import_options(own), "--config", str(config), "--resume", "auto", "--set"]
    run_command([*words, "training.steps=2"], tmp_path / "first", num_ranks=2)
    run_command([*words, "training.steps=4"], tmp_path / "second")
    checkpoint = folder.checkpoint(4)
    check_run(folder, own)

    exported = tmp_path / "exported"
    words = [str(checkpoint), str(exported)]
    output = run_command(["export", *words], tmp_path / "export without", expected_status=2)
    assert f"add --import {own[0]} --import {own[1]}" in output
    output = run_command(["export", *import_options(own), *words], tmp_path / "export with")
    assert "exported step 4" in output
    assert json.loads((exported / "config.json").read_text())["imports"] == [str(path) for path in own]
    assert f"`{own[0]}`" in (exported / "README.md").read_text()

    words = [str(exported), "--prompt", "a", "--max-new-tokens", "1"]
    output = run_command(["generate", *words], tmp_path / "generate without", expected_status=2)
    assert f"add --import {own[0]}" in output
    output = run_command(["generate", *import_options(own), *words], tmp_path / "generate with")
    assert "a" in output


def check_run(folder: RunFolder, own: list[Path]) -> None:
    """Check what each component has left in step 4's checkpoint and in the run directory."""
    reader = CheckpointReader(folder.checkpoint(4))
    assert reader.state.callbacks == {"tally": {"steps": 4}}
    assert reader.state.config["run"]["imports"] == [str(path) for path in own]
    assert reader.state.config["optimizer"]["momentum"] == 0.5
    assert {"momentum", "norms", "count", "average"} <= reader.manifest.tensors.keys()
    table = (folder.directory / "table.txt").read_text()
    assert [int(line.split()[0]) for line in table.splitlines()] == [1, 2, 3, 4]
    assert read_entries(folder.metrics)[3]["lr"] == 0.005


@pytest.mark.usefixtures("own_modules")
def test_train_with_a_normalization(raw_config: dict[str, Any], own: list[Path], tmp_path: Path) -> None:
    """Two tensor-parallel ranks sum its weights' gradients. No architecture in transformers has this normalization."""
    (normalization,) = [path for path in own if path.stem == "centered"]
    raw_config["model"] |= {"normalization": "centered", "qk_norm": True}
    raw_config["training"] |= {"steps": 2, "trainable": ["norms"]}
    config = tmp_path / "config.json"
    config.write_text(json.dumps(raw_config))
    numbers = {}
    for num_ranks in (1, 2):
        folder = RunFolder(tmp_path / f"run{num_ranks}")
        words = ["pretrain", *import_options([normalization]), "--config", str(config)]
        words += ["--set", f"run.directory={folder.directory}", "--set", f"parallel.tp={num_ranks}"]
        output = run_command(words, tmp_path / f"workers{num_ranks}", num_ranks=num_ranks)
        assert output.count("warning: this model can be trained, but not exported or evaluated: no archit") == 1
        metrics = read_entries(folder.metrics)
        numbers[num_ranks] = torch.tensor([[entry["loss"], entry["grad_norm"]] for entry in metrics])
    assert_close(numbers[2], numbers[1], TRAINED)

    reader = CheckpointReader(folder.checkpoint(2))
    trained = [name for name in reader.names() if name.endswith("norm.bias") and reader.tensor(name).any()]
    assert len(trained) == 2 * 4 + 1, trained

    imports.import_given(str(normalization))
    with pytest.raises(UserError, match="normalization centered"):
        family_of(load_config(config).model)


@pytest.mark.usefixtures("own_modules")
def test_nothing_is_imported_because_a_file_names_it(own: list[Path], config: Path, tmp_path: Path, command: Command) -> None:
    marker = tmp_path / "imported"
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(marker)!r}, 'w')")
    for path in own:
        imports.import_given(str(path))
    recorded = load_config(config).model_dump()
    imports._spelling_by_name.clear()
    recorded["run"]["imports"] = [str(evil), str(own[0])]
    config.write_text(json.dumps(recorded))

    status, _, errors = command("plan", "--config", config)
    assert status == 2
    assert errors.count("\n") == 1
    assert errors.endswith(f"add --import {evil} --import {own[0]}\n")
    assert not marker.exists()

    _, _, errors = command("plan", "--import", own[0], "--config", config)
    assert errors.endswith(f"add --import {evil}\n")
    assert not marker.exists()


@pytest.mark.usefixtures("own_modules")
def test_a_configuration_records_imports(own: list[Path], config: Path) -> None:
    for path in own:
        imports.import_given(str(path))

    expected = [str(path) for path in own]
    assert list(load_config(config).model_dump()["run"]["imports"]) == expected
    assert shared_values(load_config(config))["run.imports"] == expected


def test_control_characters_in_imports_are_refused() -> None:
    with pytest.raises(UserError, match="control character"):
        parse_config({"run": {"imports": ["a\nb"]}}, "test")


@pytest.mark.usefixtures("own_modules")
def test_module_may_move_between_starts(own: list[Path], config: Path, tmp_path: Path) -> None:
    """A run that was copied, or is continued from another folder, has its modules elsewhere."""
    moved = tmp_path / "moved" / "slopes.py"
    moved.parent.mkdir()
    shutil.copy(own[0], moved)
    imports.import_given(str(moved))
    imports.check_given([str(own[0])], "a checkpoint")
    with pytest.raises(UserError, match="slopes is another module: rename the file"):
        imports.import_given(str(own[0]))


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("nowhere.py", "--import nowhere.py: no such file"),
        ("nowhere.at.all", "--import nowhere.at.all: there is no module nowhere: correct the name"),
        ("{folder}/json.py", "json is another module: rename the file"),
        ("{folder}/my-sink.py", "my-sink is not a module name: rename the file"),
    ],
    ids=["missing file", "missing module", "name of another module", "no name of a module"],
)
def test_failing_imports_are_one_line(tmp_path: Path, command: Command, word: str, expected: str) -> None:
    for name in ("json.py", "my-sink.py"):
        (tmp_path / name).write_text("")

    status, _, errors = command("plan", "--import", word.replace("{folder}", str(tmp_path)), "--config", "nowhere.json")

    assert status == 2
    assert errors.count("\n") == 1
    assert expected in errors
    assert not imports.given()


@pytest.mark.usefixtures("own_modules")
def test_a_path_that_looks_like_an_option_is_refused() -> None:
    """Another command would parse it as an option."""
    with pytest.raises(UserError, match="'-x/part.py' begins with -"):
        imports.import_given("-x/part.py")


@pytest.mark.usefixtures("own_modules")
def test_an_error_of_a_module_keeps_its_traceback(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "part.py").write_text("import missing_below")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ModuleNotFoundError, match="missing_below"):
        command("plan", "--import", "package.part", "--config", "nowhere.json")
    with pytest.raises(ModuleNotFoundError, match="missing_below"):
        imports.import_given(str(package / "part.py"))

    assert "part" not in sys.modules
    assert not imports.given()


@pytest.mark.usefixtures("own_modules")
def test_batch_scripts_import_copies(own: list[Path], config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "part.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for path in own:
        imports.import_given(str(path))
    imports.import_given("package.part")
    array = JobArray({"config.json": load_config(config)}, tmp_path / "run", False)
    snapshot = tmp_path / "snapshot"

    take_snapshot(snapshot, array.configs)
    script = render_job(array, new_job("own", 1, 1, False), snapshot)

    copies = [snapshot / "imports" / path.name for path in own]
    words = " ".join(import_options(copies))
    assert f"pretrain {words} --import package.part --config" in script
    assert f'export PYTHONPATH="$snapshot/code":{tmp_path}\n' in script
    for path, copied in zip(own, copies, strict=True):
        assert copied.read_text() == path.read_text()
