"""Fixtures for whole runs: a small prepared data directory and a configuration that trains on it in a second."""

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ |= {  # before torch is imported
    "OMP_NUM_THREADS": "1",  # with tensors this small, more threads only wait
    "MEGATAPE_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # looking for GPUs must not keep the fork server's children from using them
}

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup's choice would reach the runs to which tests send it

import pytest

from megatape import imports, registry
from megatape.commands.main import main
from megatape.data.prepare.command import prepare
from megatape.data.prepare.corpus import Corpus
from megatape.data.sources.source import Source
from megatape.runtime.logs import show_lines

VOCAB_SIZE = 300

show_lines()

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """command("plan", "--config", path) runs `megatape plan --config path` in this process: (exit status, output, errors)."""

    def run(*words: object) -> tuple[int, str, str]:
        capfd.readouterr()
        return main([str(word) for word in words]), *capfd.readouterr()

    return run


@pytest.fixture
def own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test's process was given no modules by --import, and those that the test gives are gone after it."""
    tables = [table for name, table in vars(registry).items() if name.isupper() and isinstance(table, dict)]
    before, modules = [dict(table) for table in tables], set(sys.modules)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(imports, "_given", {})
    yield
    for name in sys.modules.keys() - modules:
        module = sys.modules[name]
        place = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
        own = Path(place).is_absolute() and not place.startswith((sys.prefix, sys.base_prefix))  # torch.ops has a relative one
        if own and name.partition(".")[0] not in ("megatape", "tests"):
            del sys.modules[name]
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)


# Expression of -m -> words of which every module with such tests contains one.
WORDS = {"slow": ("mark.slow",), "numerics and not slow": ("bounds", "mark.numerics")}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import modules without the tests that are asked for: importing all takes ten seconds in each process."""
    words = WORDS.get(config.option.markexpr)
    if words is None or not collection_path.match("test_*.py"):
        return None
    return None if any(word in collection_path.read_text() for word in words) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of modules that use tests/bounds.py are numerical: CI runs them under more than one instruction set.

    Of modules that start ranks, only those that say so: a loss, a layer and a model on several ranks, and the results of
    earlier versions. The others compare runs with each other."""
    for item in items:
        for marker, package in (("fp8", "torchao"), ("trackers", "trackio")):
            if item.get_closest_marker(marker) and find_spec(package) is None:
                item.add_marker(pytest.mark.skip(reason=f"needs {package}: make {marker}"))
        if isinstance(item, pytest.Function) and hasattr(item.module, "bounds"):
            ranks = {"run_workers", "Workers"} & vars(item.module).keys() or "quick_children" in item.fixturenames
            if not ranks:
                item.add_marker("numerics")


@pytest.fixture(scope="session")
def data_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_words(tmp_path_factory.mktemp("prepared"))


def prepare_words(folder: Path) -> Path:
    """150 documents of a few made-up words, about 20,000 tokens, prepared by the function of the public command."""
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghij", k=generator.randint(2, 6))) for _ in range(60)]
    texts = folder / "texts"
    texts.mkdir()
    for number in range(150):
        (texts / f"{number:03}.txt").write_text(" ".join(generator.choices(words, k=generator.randint(5, 100))))
    prepare(Corpus(Source("text", (str(texts),)), 0.1, None, VOCAB_SIZE), folder / "data")
    return folder / "data"


@pytest.fixture
def raw_config(data_directory: Path, tmp_path: Path) -> dict[str, Any]:
    """A complete small configuration as a dictionary; tests change the values they are about."""
    return small_config(data_directory, tmp_path / "run")


def small_config(data_directory: Path, run_directory: Path) -> dict[str, Any]:
    return {
        "run": {"directory": str(run_directory)},
        "model": {
            "num_layers": 2,
            "hidden_size": 32,
            "num_heads": 8,
            "mlp_size": 40,
            "vocab_size": VOCAB_SIZE,
            "position_size": 6,
            "max_positions": 32,
        },
        "data": {"path": str(data_directory), "sequence_length": 32},
        "training": {"steps": 4, "global_batch_size": 8, "micro_batch_size": 4},
        "optimizer": {"learning_rate": 1e-2, "weight_decay": 0.1},
        "evaluation": {"samples": 8},
        "logging": {"interval": 1},
    }
