"""From a fresh clone to a trained, exported, generating model; needs only Python 3.11+ and a package index.

    python3 launch/quickstart.py            install, prepare data, train on two processes, export, show what was learned
    python3 launch/quickstart.py test       install what the tests need as well, run the tests
    python3 launch/quickstart.py install    only install everything, for the targets of `make`

Everything goes to .venv/ and runs/. Run it again to continue where it stopped.
"""

from __future__ import annotations  # lets an older Python get as far as the message about its version

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
if os.name == "nt":
    PROGRAMS = ENVIRONMENT / "Scripts"
CONFIG = "configs/first_run.json"

# Index of torch's builds without CUDA. The default index has builds with CUDA, whose libraries are a large download.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA_DOWNLOAD = "about 3 GB"
CONNECT_SECONDS = 10
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


def main() -> int:
    """Run the command line. Returns the exit status."""
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
    args = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036 (run by whatever Python the user has)
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
    except subprocess.CalledProcessError as error:
        print(f"error: `{' '.join(map(str, error.cmd))}` ended with status {error.returncode}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run the same command again to continue", file=sys.stderr)
        return 130
    return 0


def install(wanted: Installation) -> None:
    """Create .venv with the tested versions, again whenever pyproject.toml or constraints.txt changes.

    Args:
        wanted: Packages to install.
    """
    constraints = (ROOT / "constraints.txt").read_text()
    requirements = (ROOT / "pyproject.toml").read_bytes() + constraints.encode()
    requirements_hash = hashlib.sha256(requirements).hexdigest()
    for sufficient in (wanted, EVERYTHING):
        mark = ENVIRONMENT / sufficient.mark
        if mark.exists() and mark.read_text() == requirements_hash:
            return

    print(f"== installing about {wanted.num_packages} packages into {ENVIRONMENT.relative_to(ROOT)}", flush=True)
    started = time.monotonic()
    venv.create(ENVIRONMENT, with_pip=True)
    # torch first: it decides on a build with or without CUDA, and the packages that depend on it keep that build.
    torch = re.search(r"^torch==(\S+)", constraints, re.MULTILINE)
    assert torch, "constraints.txt pins no torch"
    if not has_torch(torch[1]):
        install_torch(torch[1])
    pip_install("-c", "constraints.txt", "-e", wanted.requirement, num_packages=wanted.num_packages)
    (ENVIRONMENT / wanted.mark).write_text(requirements_hash)
    print(f"   installed in {time.monotonic() - started:.0f} s", flush=True)


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
        source = "torch comes from the default index, where a build with CUDA"
        print(f"   {CPU_INDEX} is not available: {source} is {CUDA_DOWNLOAD}", flush=True)
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
    words = [str(PROGRAMS / "python"), *PIP_INSTALL, "--no-compile", *arguments]
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
    """Show on a terminal how many packages pip has found, and the time left.

    Args:
        num_found: Number of packages found so far.
        num_packages: Approximate number of all packages.
        seconds: Time since pip has started.
    """
    if not sys.stdout.isatty():
        return
    num_left = max(num_packages - num_found, 0)
    seconds_left = seconds / num_found * num_left
    print(f"\r\033[K   {num_found} of about {num_packages} packages, about {seconds_left:.0f} s left", end="", flush=True)


def demo(steps: int | None, c4: str | None, verbose: bool) -> None:
    """Go from a corpus to generated text, each part with the command that a user would type.

    Args:
        steps: Number of training steps, None for the configuration's.
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
        data: Folder of the prepared data.
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
        data: Folder of the prepared data.
        directory: Folder of the run.
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
        arguments: Its arguments.
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
