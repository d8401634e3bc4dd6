"""Fixtures for whole runs: a small prepared data directory, and a configuration training on it in a second."""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ |= {  # before torch is imported
    # With tensors this small, more threads only wait.
    "OMP_NUM_THREADS": "1",
    "MEGATAPE_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # looking for GPUs must not keep the fork server's children from using them
}

# transformers copies exported code there. Two test processes must not share a folder.
modules = tempfile.mkdtemp(prefix="megatape-modules-")
atexit.register(shutil.rmtree, modules, ignore_errors=True)
os.environ["HF_MODULES_CACHE"] = modules

# Objects made while collecting tests live until the end, so the garbage collector never has to visit them.
gc.disable()

# Runs receiving these signals from tests would inherit that nohup, or a shell running tests in the background, ignores them.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest

from megatape import imports, registry
from megatape.utils.text.terminal import show_log
from tests.helpers.processes.command import Command, run_command
from tests.helpers.processes.load import scaled
from tests.helpers.processes.planted import plant
from tests.helpers.runs.small_run import prepare_words, small_config

show_log()

# Mark, the package needed by its tests, and the Makefile target installing it
MARKED_PACKAGES = (("fp8", "torchao", "fp8"), ("trackers", "trackio", "trackers"), ("fa4", "flash_attn", "kernels"))


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """Return a function: command("plan", "--config", path) runs `megatape plan --config path` in this process."""

    def run(*words: object) -> tuple[int, str, str]:
        capfd.readouterr()
        status = run_command(*words)
        return status, *capfd.readouterr()

    return run


@pytest.fixture
def planted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with planted json.py, multiprocessing.py and others the current directory, in a user's environment."""
    folder = tmp_path / "planted"
    plant(folder)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setenv("PYTHONPATH", "")
    return folder


@pytest.fixture
def own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start a test without modules from --import, and remove those added by the test."""
    tables = [table for name, table in vars(registry).items() if name.isupper() and isinstance(table, dict)]
    entries_before = [dict(table) for table in tables]
    modules_before = set(sys.modules)
    path_before = [*sys.path]
    monkeypatch.setattr(sys, "path", [*path_before])
    monkeypatch.setattr(imports, "_spelling_by_name", {})
    yield
    own_folders = [Path(folder) for folder in sys.path if folder not in path_before]
    own_names = []
    for name in sys.modules.keys() - modules_before:
        module = sys.modules[name]
        place = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
        if place is not None and any(Path(place).is_relative_to(folder) for folder in own_folders):
            own_names.append(name)
    for name in own_names:
        del sys.modules[name]
    for table, entries in zip(tables, entries_before, strict=True):
        table.clear()
        table.update(entries)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests needing packages that are not installed."""
    for item in items:
        for marker, package, target in MARKED_PACKAGES:
            if item.get_closest_marker(marker) and find_spec(package) is None:
                item.add_marker(pytest.mark.skip(reason=f"needs {package}: make {target}"))
        if item.get_closest_marker("oldest") and "MEGATAPE_OLDEST" not in os.environ:
            item.add_marker(pytest.mark.skip(reason="needs an old transformers: make oldest"))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-timeout reads the mark
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Scale the timeout of a test with the machine's load."""
    mark = item.get_closest_marker("timeout")
    if mark is not None:
        item.add_marker(pytest.mark.timeout(scaled(*mark.args)), append=False)
    return (yield)


def pytest_collection_finish() -> None:
    """Collect garbage during tests, but only what they make."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def data_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_words(tmp_path_factory.mktemp("prepared"))


@pytest.fixture
def raw_config(data_directory: Path, tmp_path: Path) -> dict[str, Any]:
    """Return a complete small configuration as a dictionary, for tests to change the values being tested."""
    return small_config(data_directory, tmp_path / "run")
