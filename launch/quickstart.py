"""Turn a fresh clone into a trained and exported model that generates text, with only Python 3.11+ and a package index.

    python3 launch/quickstart.py            install, prepare data, train on two processes, export, show what was learned
    python3 launch/quickstart.py test       install what the tests need as well, run the tests
    python3 launch/quickstart.py install    only install everything, for the targets of `make`

Everything goes to .venv/ and runs/. Run it again to continue where it stopped.
"""

from __future__ import annotations  # An older Python must get as far as the message about its version.

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import venv
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".venv"
PROGRAMS = ENVIRONMENT / "bin"
PYTHON = PROGRAMS / "python"
if os.name == "nt":
    PROGRAMS = ENVIRONMENT / "Scripts"
    PYTHON = PROGRAMS / "python.exe"
MIN_PYTHON = (3, 11)
CONFIG = "configs/first_run.json"

# Index of torch builds without CUDA. The default index usually serves a build with CUDA, whose libraries are a large download.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CONNECT_SECONDS = 10
# Run by the Python of .venv. It must work in any Python 3.
INSPECT_ENVIRONMENT = """
import importlib.util, json, sys
print(json.dumps([list(sys.version_info[:3]), importlib.util.find_spec("pip") is not None]))
"""
PIP_INSTALL = ("-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off")

# Lines to hide: DeepSpeed's log about accelerators, hostfiles and process ids.
DEEPSPEED_LOG = re.compile(r"\[\d{4}-\d\d-\d\d [\d:,]+\] \[(DEBUG|INFO|WARNING)\] ")
ALL_LINES = re.compile("")


class Installation(NamedTuple):
    """A set of packages.

    Attributes:
        mark: Name of the file in .venv that records what was installed.
        requirement: Requirement of pip, as seen from the repository.
        num_packages: Approximate number of packages, for showing progress.
    """

    mark: str
    requirement: str
    num_packages: int


# Packages that training needs, and all packages that the tests and `make` need.
TRAINING = Installation("installed-run", ".", 80)
EVERYTHING = Installation("installed-test", ".[test]", 215)


class QuickstartError(Exception):
    """An error that the user can mend. The message says how."""


def main() -> int:
    """Run the command line. Returns the exit status."""
    args = parse_arguments()
    if sys.version_info < MIN_PYTHON:
        print(f"error: Python 3.11 or newer is needed, this is {sys.version.split()[0]}", file=sys.stderr)
        return 2
    try:
        if args.what == "demo":
            install(TRAINING)
            demo(args.steps, args.c4, args.verbose)
            return 0
        install(EVERYTHING)
        if args.what == "test":
            run("python", "-m", "pytest", "-n", "2", "--dist", "worksteal")
    except QuickstartError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"error: `{' '.join(map(str, error.cmd))}` ended with status {error.returncode}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run the same command again to continue", file=sys.stderr)
        return 130
    return 0


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=["demo", "test", "install"], default="demo")
    parser.add_argument("--steps", type=int, help="number of training steps (default: the configuration's)")
    parser.add_argument(
        "--c4",
        metavar="FOLDER",
        type=os.path.abspath,  # commands run in the repository
        help="train on C4 files (c4-train.*.json.gz) instead of Python's standard library",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="show the full log of DeepSpeed and its launcher, not only errors"
    )
    return parser.parse_args()


def install(wanted: Installation) -> None:
    """Install the tested versions into .venv, again whenever pyproject.toml or constraints.txt changes.

    Args:
        wanted: Packages to install.
    """
    prepare_environment()
    constraints = (ROOT / "constraints.txt").read_text()
    requirements = (ROOT / "pyproject.toml").read_bytes() + constraints.encode()
    requirements_hash = hashlib.sha256(requirements).hexdigest()
    for sufficient in (wanted, EVERYTHING):
        mark = ENVIRONMENT / sufficient.mark
        if mark.exists() and mark.read_text() == requirements_hash:
            return

    print(f"== installing about {wanted.num_packages} packages into {ENVIRONMENT.relative_to(ROOT)}", flush=True)
    started = time.monotonic()
    # Install torch first, to choose between the builds with and without CUDA. Packages depending on torch keep the build.
    torch = re.search(r"^torch==(\S+)", constraints, re.MULTILINE)
    assert torch, "constraints.txt pins no torch"
    if not has_torch(torch[1]):
        install_torch(torch[1])
    pip_install("-c", "constraints.txt", "-e", wanted.requirement, num_packages=wanted.num_packages)
    (ENVIRONMENT / wanted.mark).write_text(requirements_hash)
    print(f"   installed in {time.monotonic() - started:.0f} s", flush=True)


def prepare_environment() -> None:
    """Create .venv with pip. An existing environment is used, and gets pip if it has none.

    Raises:
        QuickstartError: The environment cannot be created, is broken, or its Python is too old.
    """
    # `python3 -m venv` may have made the environment, conda or uv. Creating it again could fail or replace its Python.
    if not os.path.lexists(PYTHON):
        create_environment()
    version, has_pip = inspect_environment()
    if version < MIN_PYTHON:
        numbers = ".".join(map(str, version))
        raise QuickstartError(
            f"the environment {ENVIRONMENT} has Python {numbers}, and 3.11 or newer is needed: "
            "delete the folder, then run this script again to create it with a newer Python"
        )
    if not has_pip:
        add_pip()


def create_environment() -> None:
    """Create .venv without pip.

    Raises:
        QuickstartError: It cannot be created.
    """
    # Like `python3 -m venv`, which copies the interpreter only on Windows.
    use_symlinks = os.name != "nt"
    try:
        venv.create(ENVIRONMENT, symlinks=use_symlinks)
    except (OSError, ValueError) as error:
        raise QuickstartError(
            f"cannot create the environment {ENVIRONMENT} ({error}): delete what is there, or make the folder writable"
        ) from error


def inspect_environment() -> tuple[tuple[int, ...], bool]:
    """Return the version of Python in .venv, and whether it has pip.

    Raises:
        QuickstartError: Python does not run, for example because the one that .venv links to was removed.
    """
    try:
        result = subprocess.run(
            [str(PYTHON), "-I", "-c", INSPECT_ENVIRONMENT], capture_output=True, encoding="utf-8", check=True
        )
        version, has_pip = json.loads(result.stdout)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise QuickstartError(
            f"the environment {ENVIRONMENT} is broken, its Python does not run ({error}): "
            "delete the folder, then run this script again to create it"
        ) from error
    return tuple(version), has_pip


def add_pip() -> None:
    """Install pip into .venv, from the copy that comes with Python.

    Raises:
        QuickstartError: Python comes without that copy, as on Debian and Ubuntu.
    """
    words = [str(PYTHON), "-I", "-m", "ensurepip", "--upgrade", "--default-pip"]
    result = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace")
    if result.returncode:
        print(result.stdout, end="", file=sys.stderr)
        raise QuickstartError(
            f"cannot install pip into {ENVIRONMENT}: install Python's ensurepip "
            "(Debian, Ubuntu: apt install python3-venv), then run this script again"
        )


def has_torch(version: str) -> bool:
    """Whether .venv has this version of torch, in any build."""
    return any(ENVIRONMENT.glob(f"lib/python*/site-packages/torch-{version}*.dist-info"))


def install_torch(version: str) -> None:
    """Install torch, without CUDA's libraries if there is no GPU and the index of such builds can be reached.

    Args:
        version: Version of torch as in constraints.txt.
    """
    requirement = f"torch=={version}"
    if has_gpu():
        pip_install(requirement)
        return
    try:
        with urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=CONNECT_SECONDS):
            pass
        # The packages that torch depends on come later, in the versions of constraints.txt.
        pip_install("--no-deps", "--index-url", CPU_INDEX, requirement)
    except (OSError, subprocess.CalledProcessError):
        print(f"   {CPU_INDEX} is not available, so torch comes from the default index.", flush=True)
        print("   If that index serves a build with CUDA, the download may be about 3 GB.", flush=True)
        pip_install(requirement)


def has_gpu() -> bool:
    """Whether this machine seems to have an NVIDIA GPU."""
    return shutil.which("nvidia-smi") is not None or Path("/dev/nvidiactl").exists()


def pip_install(*arguments: str, num_packages: int | None = None) -> None:
    """Install packages into .venv, showing progress on a terminal, and pip's own output only if it fails.

    Args:
        arguments: Arguments of `pip install`.
        num_packages: Approximate number of packages, for the progress.

    Raises:
        CalledProcessError: pip failed.
    """
    # pip would compile every module to bytecode on one core, although most modules are never imported.
    words = [str(PYTHON), *PIP_INSTALL, "--no-compile", *arguments]
    lines: list[str] = []
    num_found = 0
    started = time.monotonic()
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace"
    ) as process:
        for line in process.stdout or ():
            lines.append(line)
            if num_packages and line.startswith("Collecting "):
                num_found += 1
                show_progress(num_found, num_packages, time.monotonic() - started)
    if num_packages and sys.stdout.isatty():
        print("\r\033[K", end="", flush=True)
    if process.returncode:
        print("".join(lines), end="", file=sys.stderr)
        raise subprocess.CalledProcessError(process.returncode, words)


def show_progress(num_found: int, num_packages: int, seconds: float) -> None:
    """Show the number of packages that pip has found and the remaining time, on a terminal.

    Args:
        num_found: Packages found so far.
        num_packages: Approximate total number of packages.
        seconds: Seconds since pip started.
    """
    if not sys.stdout.isatty():
        return
    num_remaining = max(num_packages - num_found, 0)
    remaining_seconds = seconds / num_found * num_remaining
    progress = f"{num_found} of about {num_packages} packages, about {remaining_seconds:.0f} s left"
    print(f"\r\033[K   {progress}", end="", flush=True)


def demo(steps: int | None, c4: str | None, verbose: bool) -> None:
    """Go from a corpus to generated text, each part with the command that a user would type.

    Args:
        steps: Training steps, None for the configuration's.
        c4: Folder of C4 files, None for the source of Python's standard library.
        verbose: Whether to show the full log of DeepSpeed and its launcher.
    """
    started = time.monotonic()
    name = "python"
    if c4:
        name = "c4"
    data = f"runs/data/{name}"
    directory = f"runs/first_run_{name}"
    prepare_data(data, c4)
    train(data, directory, steps, verbose)

    print("== export and report", flush=True)
    newest = max((ROOT / directory / "checkpoints").glob("step-????????"))
    exported = f"{directory}/hf-{newest.name}"
    if not (ROOT / exported).exists():
        run("megatape", "export", str(newest.relative_to(ROOT)), exported)
    report = f"{directory}/report-{newest.name}"
    if not (ROOT / report).exists():
        run("megatape", "report", directory, "--output", report, hidden=ALL_LINES)

    print("== result", flush=True)
    show = "import sys; from megatape.lab.report.summary import summary; print(summary(*sys.argv[1:]))"
    run("python", "-c", show, directory, data, exported)
    print(f"== done in {time.monotonic() - started:.0f} s; open {report}/index.html in a browser")
    print(f"   next: .venv/bin/megatape generate {exported} --interactive", flush=True)


def prepare_data(data: str, c4: str | None) -> None:
    """Prepare the corpus, unless it exists, and print its size.

    Args:
        data: Data directory.
        c4: Folder of C4 files, None for the source of Python's standard library.
    """
    if not (ROOT / data).exists():
        print("== corpus, tokenizer, shards", flush=True)
        source = ["--source", "python"]
        if c4:
            source = ["--source", "c4", "--input", c4, "--partial"]
        run("megatape", "prepare", "corpus", *source, "--output", data, "--validation-share", "0.05")
    summarize_data(data)


def summarize_data(data: str) -> None:
    """Print a line about prepared data, and write a page with the rest."""
    report = f"{data}-report"
    if not (ROOT / report).exists():
        run("megatape", "data", "report", data, "--output", report, hidden=ALL_LINES)
    splits = json.loads((ROOT / data / "index.json").read_text())["splits"]
    sizes = []
    for name, split in splits.items():
        sizes.append(f"{split['documents']:,} documents, {split['tokens']:,} tokens ({name})")
    print(f"{data}: {'; '.join(sizes)}; lengths and samples: {report}/index.html", flush=True)


def train(data: str, directory: str, steps: int | None, verbose: bool) -> None:
    """Train in two processes, or resume.

    Args:
        data: Data directory.
        directory: Run directory.
        steps: Number of training steps, None for the configuration's.
        verbose: Whether to show the full log of DeepSpeed and its launcher.
    """
    print("== training with DeepSpeed ZeRO-3 in two processes", flush=True)
    options = ["--set", f"data.path={data}", "--set", f"run.directory={directory}"]
    if steps:
        options += ["--set", f"training.steps={steps}"]
    hidden: re.Pattern[str] | None = DEEPSPEED_LOG
    if verbose:
        options.append("--verbose")
        hidden = None
    launch = ("deepspeed", "--num_accelerators", "2", "launch/pretrain.py")
    run(*launch, "--config", CONFIG, "--resume", "auto", *options, hidden=hidden)


def run(command: str, *arguments: str, hidden: re.Pattern[str] | None = None) -> None:
    """Run a program of the environment in the repository's root.

    Args:
        command: Name of the program.
        arguments: Arguments of the program.
        hidden: Pattern at the start of lines to hide, None to show all lines.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
        CalledProcessError: The program failed.
    """
    words = [str(PROGRAMS / command), *arguments]
    environment = os.environ | {"PATH": f"{PROGRAMS}{os.pathsep}{os.environ.get('PATH', '')}"}
    if command == "deepspeed":
        # Otherwise DeepSpeed's launcher looks for modules in the current directory first.
        environment["PYTHONSAFEPATH"] = "1"
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # install() leaves compiling to Python
    output = None
    if hidden:
        output = subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT, env=environment, stdout=output, encoding="utf-8", errors="replace") as process:
        # Ctrl-C also reaches the program, which writes a checkpoint and reports it.
        interrupts: list[int] = []
        before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
        try:
            for line in process.stdout or ():
                is_hidden = hidden and hidden.match(line)
                if not is_hidden:
                    print(line, end="", flush=True)
            process.wait()
        finally:
            signal.signal(signal.SIGINT, before)
    if interrupts:
        raise KeyboardInterrupt
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words)


if __name__ == "__main__":
    sys.exit(main())
