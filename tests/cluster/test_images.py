"""docker/, as far as it can be tested without Docker. .ci/image builds the CPU image and trains in it."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.helpers.cluster_runs import check_losses, write_config
from tests.helpers.hosts import Hosts, environment
from tests.helpers.workers import ROOT

DOCKER = ROOT / "docker"
IMAGES = ("Dockerfile", "Dockerfile.cpu")


def compose() -> dict[str, Any]:
    return yaml.safe_load((DOCKER / "compose.yaml").read_text())


@pytest.mark.parametrize("name", IMAGES)
def test_hadolint(name: str) -> None:
    program = shutil.which("hadolint", path=environment()["PATH"])
    assert program, "hadolint is missing: install the test extra"
    done = subprocess.run([program, str(DOCKER / name)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", IMAGES)
def test_what_is_copied_reaches_the_builder(name: str) -> None:
    """Every COPY source exists and .dockerignore lets it through."""
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", (DOCKER / name).read_text(), re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
            assert any(Path(source).match(pattern) for pattern in allowed), source


@pytest.mark.parametrize("name", IMAGES)
def test_pinned_and_not_root(name: str) -> None:
    text = (DOCKER / name).read_text()
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert len(set(bases)) == 1 and re.search(r":\d+\.\d+\.\d+-", bases[0]), bases
    assert re.findall(r"^USER (\S+)", text, re.MULTILINE) == ["10001"]
    assert "HEALTHCHECK" in text


def test_the_gpu_image_ends_as_the_cpu_image() -> None:
    """Which is built in CI: only base and packages differ."""
    stages = [(DOCKER / name).read_text().split("\nFROM ")[-1].splitlines()[1:] for name in IMAGES]
    gpu, cpu = ([line for line in stage if not line.startswith("#")] for stage in stages)
    differing = [pair for pair in zip(gpu, cpu, strict=True) if pair[0] != pair[1]]
    assert len(differing) == 1, differing
    packages, fewer = (set(line.split("--no-install-recommends")[1].strip(" \\").split()) for line in differing[0])
    assert packages - fewer == {"python3", "gcc", "libc6-dev", "libpython3-dev"} and fewer < packages


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-cpu.txt"])
def test_locks_follow_the_constraints(name: str) -> None:
    """The versions of constraints.txt, each with a hash, and no CUDA packages for the CPU. docker/lock.sh updates them."""
    entries = re.split(r"\n(?=\S)", (DOCKER / name).read_text().strip())
    locked = dict(re.match(r"([\w.-]+)==(\S+)", entry).groups() for entry in entries)  # type: ignore[misc]
    assert all("--hash=sha256:" in entry for entry in entries)
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    for package, version in {re.sub("[._]", "-", key.lower()): value for key, value in pinned.items()}.items():
        assert locked.get(package, version) == version, package
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    missing = {canonicalize_name(Requirement(line).name) for line in required} - set(locked)
    assert missing == (set() if name == "requirements.txt" else {"torch"})
    assert any(package.startswith("nvidia-") for package in locked) == (name == "requirements.txt")


def test_compose() -> None:
    content = compose()
    services = content["services"]
    assert set(services) == {"data", "rank0", "rank1", "tensorboard"}
    assert services["tensorboard"]["ports"] == ["127.0.0.1:6006:6006"]  # not exposed to the network
    for service in services.values():
        assert service["volumes"] == ["runs:/workspace/runs"] and "runs" in content["volumes"]
    for rank in ("rank0", "rank1"):
        assert services[rank]["depends_on"]["data"]["condition"] == "service_completed_successfully"


def test_the_two_containers_of_compose_train_together(
    hosts: Hosts, cluster_config: dict[str, Any], one_host: list[float], tmp_path: Path
) -> None:
    """Runs their commands and environments on two hosts, with a smaller configuration."""
    config = write_config(tmp_path, cluster_config)
    processes = []
    for host, service in (("n1", "rank0"), ("n2", "rank1")):
        entry = compose()["services"][service]
        command = [str(config) if part == "configs/tape_tiny.json" else part for part in entry["command"]]
        assert str(config) in command and entry["environment"]["MASTER_ADDR"] == "rank0"
        variables = entry["environment"] | {"MASTER_ADDR": "n1"}
        processes.append(hosts.start(host, *command, variables=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    for process in processes:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
    check_losses(tmp_path / "run", one_host)
