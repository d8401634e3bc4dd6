"""Things of a user's own, from outside the package: each is one file with one registry line, given by --import.

CONTRIBUTING.md's table says what each file has.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape import imports
from megatape.checkpoint.reader import CheckpointReader
from megatape.config import load_config, parse_config, shared_values
from megatape.errors import UserError
from megatape.hf.families import family_of
from megatape.tools.cluster.slurm.job_array import JobArray
from megatape.tools.cluster.slurm.job_script import render_job
from megatape.tools.cluster.slurm.submission import take_snapshot
from tests.helpers.checks.bounds import TRAINED, assert_close
from tests.helpers.cluster.jobs import new_job
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import ROOT, Workers

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
    """The files of FILES."""
    folder = tmp_path / "own"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / f"{name}.py").write_text(text)
    return [folder / f"{name}.py" for name in FILES]


@pytest.fixture
def config(own: list[Path], raw_config: dict[str, Any], tmp_path: Path) -> Path:
    for section, values in SETTINGS.items():
        raw_config[section] = raw_config.get(section, {}) | values if section != "optimizer" else values
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw_config))
    return path


def options(paths: list[Path]) -> list[str]:
    return [word for path in paths for word in ("--import", str(path))]


@pytest.mark.slow
def test_train_resume_and_export(own: list[Path], config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [*options(own), "--config", str(config)]
    for number, (steps, ranks) in enumerate([(2, 2), (4, 1)]):
        changed = [*words, "--resume", "auto", "--set", f"training.steps={steps}"]
        with Workers(["pretrain", *changed], ranks, tmp_path / f"start{number}") as workers:
            assert workers.statuses() == [0] * ranks, workers.logs()
    checkpoint = CheckpointReader(run / "checkpoints" / "step-00000004")
    assert checkpoint.state.callbacks == {"tally": {"steps": 4}}
    assert checkpoint.state.config["run"]["imports"] == [str(path) for path in own]
    assert checkpoint.state.config["optimizer"]["momentum"] == 0.5
    kinds = {"momentum", "norms", "count", "average"}
    assert kinds <= checkpoint.manifest.tensors.keys()
    assert [int(line.split()[0]) for line in (run / "table.txt").read_text().splitlines()] == [1, 2, 3, 4]
    rates = [json.loads(line)["lr"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rates[3] == 0.005

    for name, given, status, said in (
        ("refused", [], 2, f"add --import {own[0]} --import {own[1]}"),
        ("exported", own, 0, "exported step 4"),
    ):
        exporting = ["export", *options(given), str(checkpoint.directory), str(tmp_path / "out")]
        with Workers(exporting, 1, tmp_path / name) as workers:
            assert workers.statuses() == [status], workers.logs()
            assert said in workers.logs()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["imports"] == [str(path) for path in own]
    assert f"`{own[0]}`" in (tmp_path / "out" / "README.md").read_text()
    for name, given, status, said in (
        ("without", [], 2, f"add --import {own[0]}"),
        ("with", own, 0, "a"),
    ):
        generating = ["generate", *options(given), str(tmp_path / "out"), "--prompt", "a", "--max-new-tokens", "1"]
        with Workers(generating, 1, tmp_path / name) as workers:
            assert workers.statuses() == [status], workers.logs()
            assert said in workers.logs()


@pytest.mark.usefixtures("own_modules")
def test_train_with_a_normalization(raw_config: dict[str, Any], own: list[Path], tmp_path: Path) -> None:
    """On two tensor-parallel ranks, which add up the gradients of its weights. No architecture of transformers has it."""
    normalization = next(path for path in own if path.stem == "centered")
    raw_config["model"] |= {"normalization": "centered", "qk_norm": True}
    raw_config["training"] |= {"steps": 2, "trainable": ["norms"]}
    config = tmp_path / "config.json"
    config.write_text(json.dumps(raw_config))
    runs = []
    for ranks in (1, 2):
        directory = tmp_path / f"run{ranks}"
        changed = [f"run.directory={directory}", f"parallel.tp={ranks}"]
        words = ["pretrain", *options([normalization]), "--config", str(config), *(w for c in changed for w in ("--set", c))]
        with Workers(words, ranks, tmp_path / f"workers{ranks}") as workers:
            assert workers.statuses() == [0] * ranks, workers.logs()
            assert workers.logs().count("warning: this model can be trained, but not exported or evaluated: no archit") == 1
        lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        runs.append(torch.tensor([[line["loss"], line["grad_norm"]] for line in lines]))
    assert_close(runs[1], runs[0], TRAINED)
    checkpoint = CheckpointReader(directory / "checkpoints" / "step-00000002")
    trained = [name for name in checkpoint.names() if name.endswith("norm.bias") and checkpoint.tensor(name).any()]
    assert len(trained) == 2 * 4 + 1, trained
    imports.import_given(str(normalization))
    with pytest.raises(UserError, match="normalization centered"):
        family_of(load_config(config).model)


@pytest.mark.usefixtures("own_modules")
def test_nothing_is_imported_because_a_file_names_it(own: list[Path], config: Path, tmp_path: Path, command: Command) -> None:
    for path in own:
        imports.import_given(str(path))
    recorded = load_config(config).model_dump()
    assert recorded["run"]["imports"] == tuple(map(str, own))
    assert shared_values(load_config(config))["run.imports"] == [str(path) for path in own]
    imports._spelling_by_name.clear()
    marker = tmp_path / "imported"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    recorded["run"]["imports"] = [str(tmp_path / "evil.py"), str(own[0])]
    config.write_text(json.dumps(recorded))
    status, _, errors = command("plan", "--config", config)
    assert (status, errors.count("\n")) == (2, 1)
    assert errors.endswith(f"add --import {tmp_path / 'evil.py'} --import {own[0]}\n")
    assert not marker.exists()
    status, _, errors = command("plan", "--import", own[0], "--config", config)
    assert errors.endswith(f"add --import {tmp_path / 'evil.py'}\n")
    with pytest.raises(UserError, match="control character"):
        parse_config({"run": {"imports": ["a\nb"]}}, "test")


@pytest.mark.usefixtures("own_modules")
def test_other_path_of_the_same_module(own: list[Path], config: Path, tmp_path: Path) -> None:
    """A run that was copied, or is continued from another folder, has its modules elsewhere."""
    moved = tmp_path / "moved" / "slopes.py"
    moved.parent.mkdir()
    shutil.copy(own[0], moved)
    imports.import_given(str(moved))
    imports.check_given([str(own[0])], "a checkpoint")
    with pytest.raises(UserError, match="slopes is another module: rename the file"):
        imports.import_given(str(own[0]))


@pytest.mark.usefixtures("own_modules")
def test_what_cannot_be_imported(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("")
    (tmp_path / "my-sink.py").write_text("")
    for word, message in (
        ("nowhere.py", "--import nowhere.py: no such file"),
        ("nowhere.at.all", "--import nowhere.at.all: there is no module nowhere: correct the name"),
        (str(tmp_path / "json.py"), "json is another module: rename the file"),
        (str(tmp_path / "my-sink.py"), "my-sink is no name of a module: rename the file"),
    ):
        status, _, errors = command("plan", "--import", word, "--config", "nowhere.json")
        assert (status, errors.count("\n")) == (2, 1) and message in errors, errors
    with pytest.raises(UserError, match="'-x/part.py' begins with -"):  # another command would parse it as an option
        imports.import_given("-x/part.py")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "part.py").write_text("import missing_below")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="missing_below"):  # a fault of the module keeps its traceback
        command("plan", "--import", "package.part", "--config", "nowhere.json")
    with pytest.raises(ModuleNotFoundError, match="missing_below"):
        imports.import_given(str(tmp_path / "package" / "part.py"))
    assert "part" not in sys.modules and not imports.given()


@pytest.mark.usefixtures("own_modules")
def test_batch_scripts_import_copies(own: list[Path], config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "part.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for word in [*map(str, own), "package.part"]:
        imports.import_given(word)
    array = JobArray({"config.json": load_config(config)}, tmp_path / "run", False)
    snapshot = tmp_path / "snapshot"
    take_snapshot(snapshot, array.configs)
    script = render_job(array, new_job("own", 1, 1, False), snapshot)
    copies = [snapshot / "imports" / path.name for path in own]
    assert f"pretrain {' '.join(options(copies))} --import package.part --config" in script
    assert f'export PYTHONPATH="$snapshot/code":{tmp_path}\n' in script
    assert all(path.read_text() == copied.read_text() for path, copied in zip(own, copies, strict=True))
