"""launch/gpu_run.py: packing, installing and measuring, without a GPU and without a package index."""

import os
import random
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from megatape.lab.benchmark.gpu.registry import PARTS

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "launch/gpu_run.py"))
PACKAGES = [name for names in SCRIPT["PACKAGES"].values() for name in names]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a folder with the script and what it reads, where nothing is installed."""
    (tmp_path / "launch").mkdir()
    shutil.copy(ROOT / "launch/gpu_run.py", tmp_path / "launch")
    for name in ("constraints.txt", "megatape", "pyproject.toml", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def run(clone: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(clone / "launch/gpu_run.py"), *words]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)


def write_wheel(folder: Path, name: str, version: str, content: bytes) -> None:
    """Write a wheel with one file, named like the package."""
    module = re.sub(r"[-.]", "_", name)
    metadata = f"{module}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{module}_content", content)
        wheel.writestr(f"{metadata}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{metadata}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{metadata}/RECORD", "")


def test_parts_of_runs_exist() -> None:
    """Together the runs cover every benchmark part."""
    names: set[str] = set()
    for each in SCRIPT["RUNS"].values():
        for beginning in each.parts:
            found = SCRIPT["part_names"]([beginning])
            assert found, beginning
            names |= set(found)
        assert all((ROOT / file).is_file() for file in each.tests)
    assert names == {part.name for part in PARTS}


@pytest.mark.slow
def test_packed_wheels_are_installed_from_pieces(clone: Path) -> None:
    """A machine that only accepts small files gets the wheels in pieces. A missing piece and an unknown package are errors."""
    index = clone / "index"
    index.mkdir()
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    for name in PACKAGES:
        size = 2_500_000 if name == "numpy" else 10
        write_wheel(index, name, pins[name], random.Random(0).randbytes(size))
    local = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}

    packed = run(clone, "pack", "--without", "deepspeed,tqdm", "--piece-megabytes", "1", **local)
    assert packed.returncode == 0, packed.stderr
    folder = clone / "build/gpu_run"
    assert sorted(file.name for file in folder.glob("wheels.tar.*")) == ["wheels.tar.00", "wheels.tar.01", "wheels.tar.02"]
    assert all(file.stat().st_size <= 10**6 for file in folder.glob("wheels.tar.*"))

    shutil.rmtree(folder / "wheels")
    shutil.rmtree(index)
    first = (folder / "wheels.tar.00").rename(clone / "first")
    incomplete = run(clone, "install")
    assert incomplete.returncode == 2
    assert "a piece is missing among wheels.tar.01, wheels.tar.02: copy all of them" in incomplete.stderr
    first.rename(folder / "wheels.tar.00")
    installed = run(clone, "install")
    assert installed.returncode == 0, installed.stderr
    contents = {file.name for file in (folder / "site").glob("*_content")}
    assert "numpy_content" in contents
    assert len(contents) == len(set(PACKAGES)) - 1, "tqdm was left out"
    assert not list(folder.glob("wheels.tar*"))

    unknown = run(clone, "pack", "--without", "torch")
    assert unknown.returncode == 2
    assert "--without: torch is no package of this script" in unknown.stderr


def test_measuring_needs_a_gpu(clone: Path) -> None:
    process = run(clone, "measure", "steps", CUDA_VISIBLE_DEVICES="")
    assert process.returncode == 2
    assert "error: no GPU that PyTorch can use (AssertionError: torch.cuda.is_available() is False): run it" in process.stderr


@pytest.mark.slow
def test_kernels_are_measured(clone: Path) -> None:
    """With tiny sizes on a CPU. A second run measures nothing again."""
    given = ("measure", "kernels", "--tiny")
    process = run(clone, *given)
    assert process.returncode == 0, process.stderr
    assert "Attention with rotation, one layer" in process.stdout
    assert "skipped" in (clone / "build/gpu_run/measured/tests.txt").read_text()
    again = run(clone, *given)
    assert again.returncode == 0, again.stderr
    assert "attention: measured before" in again.stdout
