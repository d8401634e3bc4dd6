"""docker/, as far as it can be tested without Docker. .ci/image builds the CPU image and trains in it."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from megatape.config import load_config
from tests.helpers.cluster.cluster_runs import check_losses, write_config
from tests.helpers.cluster.hosts import Hosts, environment
from tests.helpers.processes.load import scaled
from tests.helpers.processes.workers import ROOT, free_port

DOCKER = ROOT / "docker"
IMAGES = ("Dockerfile", "Dockerfile.cpu")


def compose() -> dict[str, Any]:
    return yaml.safe_load((DOCKER / "compose.yaml").read_text())


@pytest.mark.parametrize("name", IMAGES)
def test_hadolint(name: str) -> None:
    program = shutil.which("hadolint", path=environment()["PATH"])
    assert program, "hadolint is missing: install the test extra"
    done = subprocess.run([program, str(DOCKER / name)], capture_output=True, text=True, timeout=scaled(60))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", IMAGES)
def test_copied_files_reach_the_builder(name: str) -> None:
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
    assert len(set(bases)) == 1, bases
    assert re.search(r":\d+\.\d+\.\d+-", bases[0]), bases
    assert re.findall(r"^USER (\S+)", text, re.MULTILINE) == ["10001"]
    assert "HEALTHCHECK" in text


def test_gpu_image_equals_cpu_image_but_for_packages() -> None:
    """Only base and packages differ from the CPU image, which is built in CI."""
    gpu_lines, cpu_lines = (_last_stage(name) for name in IMAGES)
    differing = [(gpu, cpu) for gpu, cpu in zip(gpu_lines, cpu_lines, strict=True) if gpu != cpu]
    assert len(differing) == 1, differing
    gpu_packages, cpu_packages = (_packages(line) for line in differing[0])
    assert cpu_packages < gpu_packages
    assert gpu_packages - cpu_packages == {"python3", "gcc", "libc6-dev", "libpython3-dev"}


def _last_stage(name: str) -> list[str]:
    """Return the lines of an image's last stage after FROM, without comments."""
    text = (DOCKER / name).read_text().split("\nFROM ")[-1]
    _, *lines = text.splitlines()
    return [line for line in lines if not line.startswith("#")]


def _packages(line: str) -> set[str]:
    """Return the packages that a line installs by apt-get."""
    _, packages = line.split("--no-install-recommends")
    return set(packages.strip(" \\").split())


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-cpu.txt"])
def test_locks_follow_the_constraints(name: str) -> None:
    """Locks have the versions of constraints.txt, each with a hash, and no CUDA packages for the CPU.

    docker/lock.sh updates them.
    """
    is_gpu = name == "requirements.txt"
    entries = re.split(r"\n(?=\S)", (DOCKER / name).read_text().strip())
    locked = dict(re.match(r"([\w.-]+)==(\S+)", entry).groups() for entry in entries)  # type: ignore[misc]
    assert all("--hash=sha256:" in entry for entry in entries)
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    for package, version in pinned.items():
        normalized = re.sub("[._]", "-", package.lower())
        assert locked.get(normalized, version) == version, package
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    missing = {canonicalize_name(Requirement(line).name) for line in required} - set(locked)
    expected_missing = set()
    if not is_gpu:
        expected_missing = {"torch"}
    assert missing == expected_missing
    assert any(package.startswith("nvidia-") for package in locked) == is_gpu


def test_compose() -> None:
    content = compose()
    services = content["services"]
    assert set(services) == {"data", "rank0", "rank1", "tensorboard"}
    # The port is not exposed to the network.
    assert services["tensorboard"]["ports"] == ["127.0.0.1:6006:6006"]
    for service in services.values():
        assert service["volumes"] == ["runs:/workspace/runs"]
        assert "runs" in content["volumes"]
    for rank in ("rank0", "rank1"):
        assert services[rank]["depends_on"]["data"]["condition"] == "service_completed_successfully"


def test_compose_starts_no_rank_again_after_an_error_of_the_user(tmp_path: Path) -> None:
    """Docker's own restart policy only distinguishes status 0. In this test the data is missing."""
    service = compose()["services"]["rank0"]
    assert service["restart"] == "no"
    program, *words = service["command"]
    assert program == "megatape"
    alone = {"WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    variables = environment() | service["environment"] | alone | {"PATH": os.environ["PATH"]}
    command = [sys.executable if word == "python" else word for word in words]
    at = command.index("--")
    command[at:at] = ["--set", f"data.path={tmp_path}/none", "--set", f"run.directory={tmp_path}/run"]
    done = subprocess.run(
        [sys.executable, "-m", "megatape", *command], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count(f"error: {tmp_path}/none") == 1, done.stderr


def test_documented_volumes_have_what_the_configuration_names() -> None:
    """The `docker run` command of docs/cluster.md finds its data and keeps its run."""
    page = (ROOT / "docs/cluster.md").read_text()
    found = re.search(r"^docker run (?:.*\\\n)*.*$", page, re.MULTILINE)
    assert found
    words = shlex.split(found[0].replace("\\\n", " "))
    volumes = [words[number + 1] for number, word in enumerate(words) if word == "--volume"]
    mounted = {Path(volume.split(":")[1]): volume.endswith(":ro") for volume in volumes}
    config = load_config(ROOT / words[words.index("--config") + 1])
    image = (DOCKER / "Dockerfile").read_text()
    work = Path(re.findall(r"^WORKDIR (\S+)", image, re.MULTILINE)[-1])
    for path, is_written in ((config.data.path, False), (config.run.directory, True)):
        volume = next((folder for folder in mounted if (work / path).is_relative_to(folder)), None)
        assert volume is not None, f"{path} is in no volume"
        if is_written:
            assert not mounted[volume], f"{path} is read only"


def test_the_two_containers_of_compose_train_together(
    hosts: Hosts, cluster_config: dict[str, Any], one_host: list[float], tmp_path: Path
) -> None:
    """Run the containers' commands and environments on two hosts, with a smaller configuration."""
    config = write_config(tmp_path, cluster_config)
    processes = []
    for host, service in (("n1", "rank0"), ("n2", "rank1")):
        entry = compose()["services"][service]
        command = [str(config) if part == "configs/tape_tiny.json" else part for part in entry["command"]]
        assert str(config) in command
        assert entry["environment"]["MASTER_ADDR"] == "rank0"
        variables = entry["environment"] | {"MASTER_ADDR": "n1"}
        processes.append(hosts.start(host, *command, variables=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    for process in processes:
        output, _ = process.communicate(timeout=scaled(120))
        assert process.returncode == 0, output
    check_losses(tmp_path / "run", one_host)
