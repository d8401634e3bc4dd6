"""launch/quickstart.py: the commands of its demonstrations, and the lines of DeepSpeed's log that it hides."""

import json
import math
import runpy
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.error import URLError

import pytest

from megatape.data.shards.index import load_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.lab.report import summary
from tests.helpers.processes.workers import ROOT

# Lines printed by DeepSpeed 0.19.8 and by a run, and whether they are shown
LINES = {
    "[2026-11-21 21:40:02,074] [WARNING] [real_accelerator.py:213:get_accelerator] Setting accelerator to CPU.": False,
    "[2026-11-21 21:40:06,528] [INFO] [launch.py:170:main] dist_world_size=2": False,
    "[2026-11-21 21:40:06,528] [ERROR] [launch.py:259:main] exits with return code = 2": True,
    "step  1/20 [#...................]  loss 8.3041": True,
    "error: no configuration at nowhere.json": True,
}


@pytest.fixture
def quickstart(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Namespace of launch/quickstart.py, with the programs of this interpreter's environment."""
    names = runpy.run_path(str(ROOT / "launch" / "quickstart.py"))
    monkeypatch.setitem(names["run"].__globals__, "PROGRAMS", Path(sys.executable).parent)
    return names


@pytest.mark.parametrize("verbose", [False, True])
def test_quickstart_hides_log_lines(quickstart: dict[str, Any], verbose: bool, capfd: pytest.CaptureFixture[str]) -> None:
    code = f"print(*{list(LINES)!r}, sep=chr(10))"
    hidden = quickstart["DEEPSPEED_LOG"]
    if verbose:
        hidden = None

    quickstart["run"](Path(sys.executable).name, "-c", code, hidden=hidden)

    expected = [line for line, is_shown in LINES.items() if is_shown or verbose]
    assert capfd.readouterr().out.splitlines() == expected


INTERRUPTED = """
import os, signal, time
print("step 1", flush=True)
os.kill(os.getppid(), signal.SIGINT)
time.sleep(0.3)
print("checkpoint")
"""


@pytest.mark.parametrize("hidden", ["DEEPSPEED_LOG", None])
def test_ctrl_c_waits_for_the_last_lines(
    hidden: str | None, quickstart: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The script's own line comes last, without a traceback."""
    pattern = None
    if hidden is not None:
        pattern = quickstart[hidden]
    interrupted = partial(quickstart["run"], Path(sys.executable).name, "-c", INTERRUPTED, hidden=pattern)
    monkeypatch.setitem(quickstart["main"].__globals__, "install", lambda packages: interrupted())
    monkeypatch.setattr(sys, "argv", ["quickstart.py", "install"])
    assert quickstart["main"]() == 130
    output, errors = capfd.readouterr()
    assert output.splitlines() == ["step 1", "checkpoint"]
    assert errors == "interrupted; run the same command again to continue\n"


def test_quickstart_on_c4(
    quickstart: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both demonstrations run the same commands, on other data. CI runs the one on Python's sources."""
    commands: list[tuple[str, ...]] = []
    for name in ("c4", "python"):
        (tmp_path / f"runs/first_run_{name}/checkpoints/step-00000020").mkdir(parents=True)
        (tmp_path / f"runs/data/{name}").mkdir(parents=True)
        index = {"splits": {"train": {"documents": 1234, "tokens": 56789}}}
        (tmp_path / f"runs/data/{name}/index.json").write_text(json.dumps(index))
    monkeypatch.setitem(quickstart["demo"].__globals__, "ROOT", tmp_path)
    monkeypatch.setitem(quickstart["demo"].__globals__, "run", lambda *words, hidden=None: commands.append(words))
    shown = {}
    for folder, name in (("some/c4", "c4"), (None, "python")):
        commands.clear()
        quickstart["demo"](20, folder, False)
        shown[name] = [" ".join(words) for words in commands] + capsys.readouterr().out.splitlines()

    assert [line.replace("c4", "python") for line in shown["c4"]] == shown["python"]
    text = "\n".join(shown["python"])
    assert "runs/data/python: 1,234 documents, 56,789 tokens (train); " in text
    assert "(train); lengths and samples: runs/data/python-report/index.html" in text
    run = "runs/first_run_python"
    assert f"print(summary(*sys.argv[1:])) {run} runs/data/python {run}/hf-step-00000020" in text
    assert "open runs/first_run_python/report-step-00000020/index.html" in text


@pytest.mark.parametrize(
    ("c4_folder", "expected"),
    [
        ("some/c4", "--source c4 --input some/c4 --partial --output runs/data/c4 "),
        (None, "--source python --output runs/data/python "),
    ],
    ids=["c4", "python"],
)
def test_corpus_of_a_demonstration(
    c4_folder: str | None, expected: str, quickstart: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(*words: str, hidden: object = None) -> None:
        raise InterruptedError(" ".join(words))

    monkeypatch.setitem(quickstart["demo"].__globals__, "ROOT", tmp_path)
    monkeypatch.setitem(quickstart["demo"].__globals__, "run", run)
    with pytest.raises(InterruptedError, match=f"megatape prepare corpus {expected}"):
        quickstart["demo"](20, c4_folder, False)


def test_figures_of_what_was_learned(data_directory: Path, tmp_path: Path) -> None:
    """The model that has the unigram's loss has its bits per byte. Words of ten letters take log2(10) or less."""
    split = load_index(data_directory).splits["validation"]
    steps = [{"step": 1, "validation_loss": 9.0}, {"step": 2, "validation_loss": split.unigram_entropy}, {"step": 3}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(json.dumps(step) for step in steps))

    _, *lines = summary.figures(tmp_path, data_directory)

    unigram, gzip, model = (line.split()[-1] for line in lines)
    bits_per_byte = split.unigram_entropy * split.tokens / split.text_bytes / math.log(2)
    assert unigram == f"{bits_per_byte:.2f}"
    assert model == unigram
    assert 1 < float(gzip) < 4


def test_example_of_what_was_learned(data_directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A prompt from the middle of the validation data, with its real continuation and the model's."""
    model = Mock(continuations=Mock(return_value=[[5] * 24]))
    monkeypatch.setattr(summary, "load_trained", lambda folder: nullcontext(model))

    lines = summary.example(data_directory, tmp_path)

    stored = StoredSplit(data_directory, "validation")
    tokenizer = stored.tokenizer()
    first = stored.num_tokens // 2
    prompt = stored.stream(first, first + 64).tolist()
    model.continuations.assert_called_once_with([prompt], 24)
    assert lines[-3] == tokenizer.decode(stored.stream(first + 64, first + 88))
    assert lines[-1] == tokenizer.decode([5] * 24)


@pytest.fixture
def installed(quickstart: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Make pip install nothing on a machine without a GPU. Returns the arguments of its calls."""
    calls: list[tuple[str, ...]] = []
    functions = quickstart["install"].__globals__
    monkeypatch.setitem(functions, "pip_install", lambda *words, num_packages=None: calls.append(words))
    monkeypatch.setitem(functions, "has_gpu", lambda: False)
    return calls


def test_torch_comes_from_the_index_of_cpus(
    quickstart: dict[str, Any], installed: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: nullcontext())
    quickstart["install_torch"]("2.13.0")
    assert installed == [("--no-deps", "--index-url", quickstart["CPU_INDEX"], "torch==2.13.0")]


def test_torch_comes_from_the_default_index_if_the_other_is_away(
    quickstart: dict[str, Any],
    installed: list[tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(url: str, timeout: float) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    quickstart["install_torch"]("2.13.0")
    assert installed == [("torch==2.13.0",)]
    output = capsys.readouterr().out
    assert "torch comes from the default index" in output
    # A mirror may serve a build without CUDA, whose download is small.
    assert "If that index serves a build with CUDA, the download may be about 3 GB" in output


@pytest.fixture
def environment(quickstart: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Make the quickstart use a new folder as .venv. Returns the folder, which does not exist."""
    functions = quickstart["install"].__globals__
    folder = tmp_path / ".venv"
    monkeypatch.setitem(functions, "ENVIRONMENT", folder)
    monkeypatch.setitem(functions, "PYTHON", folder / "bin/python")
    return folder


def has_pip(environment: Path) -> bool:
    command = [str(environment / "bin/python"), "-m", "pip", "--version"]
    return subprocess.run(command, stdout=subprocess.DEVNULL).returncode == 0


def test_environment_of_the_user_is_used(quickstart: dict[str, Any], environment: Path) -> None:
    """`python3 -m venv` links to the running interpreter, which venv.create would fail to copy over the link."""
    subprocess.run([sys.executable, "-m", "venv", "--symlinks", "--without-pip", environment], check=True)
    mark = environment / "made-by-hand"
    mark.touch()
    quickstart["prepare_environment"]()
    assert has_pip(environment)
    assert mark.exists()
    assert (environment / "bin/python").is_symlink()


def test_environment_is_created(quickstart: dict[str, Any], environment: Path) -> None:
    quickstart["prepare_environment"]()
    assert has_pip(environment)
    quickstart["prepare_environment"]()


def test_environment_with_an_older_python_is_refused(quickstart: dict[str, Any], environment: Path) -> None:
    write_program(environment / "bin/python", 'echo "[[3, 10, 4], true]"')
    with pytest.raises(quickstart["QuickstartError"], match=r"has Python 3\.10\.4, and 3\.11 or newer.*delete the folder"):
        quickstart["prepare_environment"]()


def test_broken_environment_is_refused(quickstart: dict[str, Any], environment: Path) -> None:
    python = environment / "bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/nowhere/python3.11")
    with pytest.raises(quickstart["QuickstartError"], match="is broken.*delete the folder"):
        quickstart["prepare_environment"]()


def test_environment_without_ensurepip_is_refused(
    quickstart: dict[str, Any], environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Debian keeps ensurepip in a package of its own."""
    no_ensurepip = 'if [ "$3" = ensurepip ]; then echo No module named ensurepip; exit 1; fi; echo "[[3, 12, 0], false]"'
    write_program(environment / "bin/python", no_ensurepip)
    with pytest.raises(quickstart["QuickstartError"], match="cannot install pip.*apt install python3-venv"):
        quickstart["prepare_environment"]()
    assert "No module named ensurepip" in capsys.readouterr().err


def test_file_in_place_of_the_environment(
    quickstart: dict[str, Any], environment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script ends with a message, without a traceback."""
    environment.touch()
    monkeypatch.setattr(sys, "argv", ["quickstart.py", "install"])
    assert quickstart["main"]() == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: cannot create the environment {environment} (")
    assert "delete what is there" in error


def write_program(path: Path, script: str) -> None:
    """Write a shell script that stands in for a program."""
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_installed_packages_are_not_installed_again(
    quickstart: dict[str, Any], installed: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The packages for training are not enough for the tests, and those for the tests are enough for training."""
    functions = quickstart["install"].__globals__
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    monkeypatch.setitem(functions, "ROOT", tmp_path)
    monkeypatch.setitem(functions, "ENVIRONMENT", tmp_path / ".venv")
    monkeypatch.setitem(functions, "prepare_environment", lambda: None)
    (tmp_path / ".venv/lib/python3.11/site-packages/torch-2.13.0+cpu.dist-info").mkdir(parents=True)
    training = quickstart["TRAINING"]
    everything = quickstart["EVERYTHING"]

    for packages in (training, training, everything, training, everything):
        quickstart["install"](packages)
    assert installed == [("-c", "constraints.txt", "-e", "."), ("-c", "constraints.txt", "-e", ".[test]")]

    (tmp_path / "constraints.txt").write_text("torch==2.13.0\nnumpy==2.0\n")
    quickstart["install"](training)
    assert len(installed) == 3
