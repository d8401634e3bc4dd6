"""Measure MegaTAPE on a GPU, from a machine with Python and PyTorch for CUDA to the tables (docs/benchmarks.md).

    python3 launch/gpu_run.py install            packages that the machine lacks, into build/gpu_run
    python3 launch/gpu_run.py measure kernels    tests and times of kernels: at most ten minutes
    python3 launch/gpu_run.py measure steps      training steps and whole runs: at most ten minutes

On a machine without a package index, run `pack` in a clone elsewhere first, and copy the clone with build/gpu_run.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build/gpu_run"
WHEELS = FOLDER / "wheels"
SITE = FOLDER / "site"
MEASURED = FOLDER / "measured"
# Pieces of an archive of all wheels, for machines that accept only small files
PIECES = "wheels.tar.*"
ARCHIVE = "wheels.tar"

# Packages to install, by the part of the benchmark that imports them. PyTorch for CUDA already brings triton and cuda-bindings.
PACKAGES = {
    "every part": (
        *("numpy", "pydantic", "pydantic_core", "annotated-types", "typing-inspection", "typing_extensions"),
        *("sentencepiece", "tokenizers", "isal", "orjson", "tabulate", "tqdm", "psutil"),
    ),
    "tests": (
        *("pytest", "pytest-timeout", "pytest-xdist", "execnet", "pluggy", "iniconfig", "Pygments", "packaging"),
        *("safetensors", "backports.zstd", "xxhash"),
    ),
    "FlashAttention-4": (
        *("flash-attn-4", "nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-core"),
        *("nvidia-cutlass-dsl-libs-cu13", "quack-kernels", "apache-tvm-ffi", "torch-c-dlpack-ext", "einops"),
    ),
    "pretrain": (
        *("pyarrow", "pillow", "hjson", "msgpack", "ninja", "py-cpuinfo", "webdataset", "braceexpand", "PyYAML"),
        *("tensorboard", "absl-py", "grpcio", "Markdown", "protobuf", "Werkzeug", "tensorboard-data-server"),
    ),
    "serving": (
        *("transformers", "huggingface_hub", "regex", "httpx2", "httpcore2", "h11", "anyio", "sniffio", "certifi"),
        *("idna", "truststore"),
    ),
    "FP8": ("torchao",),
}
# Published as source. Its own kernels are not used.
FROM_SOURCE = ("deepspeed",)
# Linux on x86-64, with any glibc since that of the oldest wheel
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17, 12, 5)] + ["manylinux2014_x86_64", "manylinux1_x86_64"]

SECONDS = 570
# Seconds that a run leaves for the table, and for processes to end
RESERVE = 15
# Processes that run tests. Most of the time they wait for compilers.
TEST_PROCESSES = 8


class RunError(Exception):
    """An error that the user can mend. The message says how."""


@dataclass(frozen=True)
class Run:
    """Tests and parts of the benchmark to run, in this order.

    Attributes:
        tests: Test files, relative to the repository.
        test_seconds: Maximum seconds for the tests.
        parts: Parts of `megatape benchmark gpu`, or the first words of their names.
    """

    tests: tuple[str, ...]
    test_seconds: int
    parts: tuple[str, ...]


RUNS = {
    "kernels": Run(
        tests=(
            "tests/gpu/test_cuda_graphs.py",
            "tests/gpu/test_fa4.py",
            "tests/gpu/test_attention.py",
            "tests/gpu/test_update.py",
        ),
        test_seconds=240,
        parts=("machine", "attention", "update"),
    ),
    "steps": Run(tests=(), test_seconds=0, parts=("machine", "step 155m", "step 1b", "pretrain")),
    "rest": Run(tests=(), test_seconds=0, parts=("ceilings", "profile", "fp8", "step 7b", "serving", "tiles", "tests")),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status."""
    arguments = parse_arguments(words)
    try:
        if arguments.command == "pack":
            pack(arguments.python, arguments.without, arguments.piece_megabytes)
        elif arguments.command == "install":
            install(arguments.without)
        else:
            measure(arguments.run, arguments.output, arguments.seconds, arguments.tiny)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"error: `{' '.join(map(str, error.cmd))}` ended with status {error.returncode}", file=sys.stderr)
        return 1
    return 0


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="download wheels for a machine without a package index")
    packing.add_argument("--python", default="3.12", help="Python of the GPU machine (default: 3.12)")
    packing.add_argument("--piece-megabytes", type=int, help="also write one archive of the wheels, in pieces of this size")
    installing = commands.add_parser("install", help="install packages, downloaded by `pack` or from the package index")
    for command in (packing, installing):
        command.add_argument(
            "--without", type=lambda text: text.split(","), default=[], metavar="NAME,...", help="packages that the machine has"
        )
    measuring = commands.add_parser("measure", help="run tests and the benchmark")
    measuring.add_argument("run", choices=RUNS)
    measuring.add_argument("--output", type=Path, default=MEASURED, help="folder of results (default: build/gpu_run/measured)")
    measuring.add_argument("--seconds", type=int, default=SECONDS, help=f"end after this time (default: {SECONDS})")
    measuring.add_argument("--tiny", action="store_true", help="tiny sizes on a CPU, to see whether everything starts")
    return parser.parse_args(words)


def pack(python: str, without: Sequence[str], piece_megabytes: int | None) -> None:
    """Download wheels into build/gpu_run/wheels.

    Args:
        python: Python version of the GPU machine, such as "3.12".
        without: Packages to leave out.
        piece_megabytes: Maximum size of the pieces of one more archive. None for no archive.
    """
    WHEELS.mkdir(parents=True, exist_ok=True)
    binary, from_source = requirements(without)
    options = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    for platform in PLATFORMS:
        options += ["--platform", platform]
    pip("download", "--no-deps", "--dest", str(WHEELS), *options, *binary)
    if from_source:
        # Building DeepSpeed imports torch and setuptools of this environment.
        environment = os.environ | {"DS_BUILD_OPS": "0"}
        pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(WHEELS), *from_source, environment=environment)
    total = sum(file.stat().st_size for file in WHEELS.iterdir())
    print(f"{WHEELS.relative_to(ROOT)}: {len(list(WHEELS.iterdir()))} wheels, {total / 1e6:.0f} MB")
    if piece_megabytes is not None:
        write_pieces(piece_megabytes * 10**6)


def write_pieces(size: int) -> None:
    """Write an archive of all wheels in pieces of at most this many bytes: build/gpu_run/wheels.tar.00, ..."""
    for old in FOLDER.glob(PIECES):
        old.unlink()
    archive = FOLDER / ARCHIVE
    # The wheels are compressed already.
    subprocess.run(["tar", "-C", str(FOLDER), "-cf", str(archive), WHEELS.name], check=True)
    with archive.open("rb") as file:
        number = 0
        while piece := file.read(size):
            (FOLDER / f"{ARCHIVE}.{number:02}").write_bytes(piece)
            number += 1
    archive.unlink()
    print(f"{FOLDER.relative_to(ROOT)}/{PIECES}: {number} pieces")


def install(without: Sequence[str]) -> None:
    """Install the packed wheels into build/gpu_run/site, or the packages from the package index.

    Args:
        without: Packages to leave out, if nothing is packed.
    """
    join_pieces()
    options = ["--no-deps", "--no-compile", "--upgrade", "--target", str(SITE)]
    if WHEELS.is_dir():
        wheels = [str(wheel) for wheel in sorted(WHEELS.glob("*.whl"))]
        pip("install", "--no-index", "--no-cache-dir", *options, *wheels)
        return
    binary, from_source = requirements(without)
    environment = os.environ | {"DS_BUILD_OPS": "0"}
    pip("install", *options, "--only-binary=:all:", *binary)
    if from_source:
        pip("install", *options, "--no-build-isolation", *from_source, environment=environment)


def join_pieces() -> None:
    """Unpack build/gpu_run/wheels from pieces, if there are any."""
    pieces = sorted(FOLDER.glob(PIECES))
    if not pieces:
        return
    expected = [f"{ARCHIVE}.{number:02}" for number in range(len(pieces))]
    names = [piece.name for piece in pieces]
    if names != expected:
        raise RunError(f"{FOLDER}: a piece is missing among {', '.join(names)}: copy all of them")
    archive = FOLDER / ARCHIVE
    with archive.open("wb") as file:
        for piece in pieces:
            file.write(piece.read_bytes())
    subprocess.run(["tar", "-C", str(FOLDER), "-xf", str(archive)], check=True)
    archive.unlink()
    for piece in pieces:
        piece.unlink()


def requirements(without: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the packages to download as wheels, and those to build, each with its version.

    Args:
        without: Packages to leave out.

    Raises:
        RunError: `without` names an unknown package.
    """
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    binary = [name for names in PACKAGES.values() for name in names]
    unknown = set(without) - {*binary, *FROM_SOURCE}
    if unknown:
        raise RunError(
            f"--without: {', '.join(sorted(unknown))} is no package of this script: choose among {', '.join(binary)}"
        )
    wheels = [f"{name}=={pins[name]}" for name in binary if name not in without]
    sources = [f"{name}=={pins[name]}" for name in FROM_SOURCE if name not in without]
    return wheels, sources


def measure(name: str, output: Path, seconds: int, tiny: bool) -> None:
    """Run tests and parts of the benchmark, and print the table.

    Args:
        name: Name in RUNS.
        output: Folder for results. Parts that it has are not measured again.
        seconds: Maximum duration.
        tiny: Whether to use tiny sizes on a CPU.
    """
    started = time.monotonic()
    run = RUNS[name]
    output.mkdir(parents=True, exist_ok=True)
    environment = os.environ | run_environment()
    if not tiny:
        check_gpu(environment)
    if run.tests:
        run_tests(run, output / "tests.txt", environment)
    remaining = seconds - RESERVE - int(time.monotonic() - started)
    if remaining <= 0:
        raise RunError(f"the tests took all of --seconds {seconds}: run {name} again with more")
    command = [sys.executable, "-m", "megatape", "benchmark", "gpu", "--output", str(output), "--budget", str(remaining)]
    command += ["--parts", ",".join(part_names(run.parts))]
    if tiny:
        command += ["--device", "cpu", "--tiny"]
    results = output / "results.jsonl"
    if results.exists():
        command += ["--done", str(results)]
    subprocess.run(command, cwd=ROOT, env=environment, timeout=remaining + RESERVE, check=True)
    print((output / "table.md").read_text())


def run_environment() -> dict[str, str]:
    """Return environment variables with which Python finds the installed packages, on a machine without a network."""
    # In such a folder, Python does not read the .pth file of nvidia-cutlass-dsl.
    folders = [SITE, SITE / "nvidia_cutlass_dsl/dsl_packages", ROOT]
    return {
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "PYTHONUNBUFFERED": "1",
        "NCCL_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
        "TRITON_CACHE_DIR": str(FOLDER / "cache/triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(FOLDER / "cache/inductor"),
        "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1",
        "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": str(FOLDER / "cache/fa4"),
    }


def check_gpu(environment: dict[str, str]) -> None:
    """Print the GPU and the versions. Raises RunError without a GPU or without PyTorch."""
    code = (
        "import torch\n"
        "assert torch.cuda.is_available(), 'torch.cuda.is_available() is False'\n"
        "from megatape.attention.fa4.package import version_problem\n"
        "print(torch.cuda.get_device_name(), torch.__version__, 'cuDNN', torch.backends.cudnn.version())\n"
        "problem = version_problem()\n"
        "print('FlashAttention-4:', problem or 'installed')\n"
    )
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if process.returncode != 0:
        lines = process.stderr.strip().splitlines()
        raise RunError(f"no GPU that PyTorch can use ({lines[-1]}): run it with the Python that has PyTorch for CUDA")
    print(process.stdout, end="", flush=True)


def run_tests(run: Run, log: Path, environment: dict[str, str]) -> None:
    """Run tests in several processes, and print how many failed. Failures do not end the run."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-q", "--tb=line", "--durations=5"]
    command += ["-n", str(TEST_PROCESSES), "--dist", "worksteal", *run.tests]
    try:
        with log.open("w") as file:
            subprocess.run(command, cwd=ROOT, env=environment, stdout=file, stderr=file, timeout=run.test_seconds)
    except subprocess.TimeoutExpired:
        print(f"the tests were stopped after {run.test_seconds} s", flush=True)
    last_lines = log.read_text().splitlines()[-30:]
    print("\n".join(last_lines), flush=True)


def part_names(beginnings: Sequence[str]) -> list[str]:
    """Return the names of the parts of the benchmark that begin with these words."""
    sys.path.insert(0, str(ROOT))
    from megatape.lab.benchmark.gpu.registry import PARTS

    names = []
    for part in PARTS:
        if any(part.name == beginning or part.name.startswith(f"{beginning} ") for beginning in beginnings):
            names.append(part.name)
    return names


def pip(*words: str, environment: dict[str, str] | None = None) -> None:
    """Run pip of this Python."""
    command = [sys.executable, "-m", "pip", words[0], "--quiet", "--disable-pip-version-check", *words[1:]]
    subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    sys.exit(main())
