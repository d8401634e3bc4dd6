"""Bad input of every command is one line, and most of it is found without importing torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from megatape.commands.cli.table import COMMANDS, is_group
from tests.helpers.processes.command import Command
from tests.helpers.processes.without_torch import errors_without_torch

LEAVES = [name for name in COMMANDS if not is_group(name)]
NOWHERE = ["--config", "nowhere.json"]
# A user's mistake, and part of the one-line error
BAD_INPUT: dict[str, tuple[list[str], str]] = {
    "pretrain": (NOWHERE, "no configuration at nowhere.json"),
    "plan": (NOWHERE, "no configuration at nowhere.json"),
    "preflight": (NOWHERE, "no configuration at nowhere.json"),
    "submit": ([*NOWHERE, "--nodes", "1", "--gpus-per-node", "1"], "no configuration at nowhere.json"),
    "supervise": ([*NOWHERE, "--restarts", "1", "--", "true"], "no configuration at nowhere.json"),
    "prepare corpus": (["--source", "c4", "--output", "out"], "--source c4 needs --input"),
    "prepare addition": (["--digits", "0", "--output", "out"], "--digits: must be greater than or equal to 1, got 0"),
    "prepare finetuning": (
        ["--format", "pairs", "--input", "a", "--tokenizer", "nowhere", "--sequence-length", "8", "--output", "out"],
        "nowhere: no such tokenizer",
    ),
    "data report": (["nowhere"], "nowhere is not a data directory"),
    "data status": (["nowhere"], "nowhere.partial: not found, so nothing is being prepared there"),
    "data where": (["nowhere", "--token", "0"], "nowhere is not a data directory"),
    "data merge": (["out", "nowhere"], "nowhere is not a data directory"),
    "data subset": (["nowhere", "--output", "out"], "nowhere is not a data directory"),
    "data import": (
        ["--format", "flat", "--input", "a", "--tokenizer", "nowhere", "--output", "out"],
        "nowhere: no such tokenizer",
    ),
    "data export": (["nowhere", "--format", "flat", "--output", "out"], "nowhere is not a data directory"),
    "data tiktoken": (["nowhere", "--output", "out"], "encoding 'nowhere' is unknown"),
    "data tokenizer": (["--source", "python", "--output", "nowhere/file"], "no folder nowhere: create it"),
    "import": (["nowhere", "out"], "nowhere: no such folder"),
    "export": (["nowhere", "out"], "nowhere: no such folder"),
    "push": (["nowhere", "user/model"], "nowhere: no such folder"),
    "average": (["nowhere", "elsewhere", "--output", "average"], "nowhere: no such folder"),
    "branch": (["nowhere", "--decay-tokens", "100"], "nowhere: no such folder"),
    "generate": (["nowhere", "--prompt", "a"], "nowhere: no such folder"),
    "evaluate": (["addition", "nowhere", "--data", "nowhere", "--output", "out"], "nowhere: no such folder"),
    "scores": (["nowhere", "--scrolls", "nowhere", "--set", "qasper"], "nowhere: no such file of predictions"),
    "ledger": (["nowhere"], "nowhere: give a run directory"),
    "monitor": (["nowhere", "--once"], "nowhere: give a run directory"),
    "report": (["nowhere", "--output", "out"], "nowhere: give a run directory"),
    "benchmark roofline": (["--gpu", "h9000"], "GPU 'h9000' is unknown"),
    "benchmark gpu": (["--output", "out", "--device", "cpu"], "--device cpu takes hours at these sizes: add --tiny"),
    "init": (["tape_tny"], "no configuration tape_tny: did you mean tape_tiny?"),
    "constraints": (["--unknown"], "--unknown is not an option"),
    "completion": (["csh"], "shell: must be 'bash', 'zsh' or 'fish', got 'csh'"),
    "benchmark efficiency": (NOWHERE, "no configuration at nowhere.json"),
    "study shift": (["nowhere"], "nowhere: no such folder"),
    "study attention": (["nowhere", "--output", "a.png"], "nowhere: no such folder"),
    "study compare": ([*NOWHERE, "--encodings", "rope", "--output", "out"], "no configuration at nowhere.json"),
    "study suite": (["--tasks", "nothing", "--output", "out"], "--tasks: 'nothing' is not a task"),
    "study finetune": (["--base", "nowhere", "--data", "nowhere", "--output", "out"], "nowhere: no such folder"),
    "benchmark duplicates": (["--hashes", "0"], "--hashes: must be greater than or equal to 1, got '0'"),
    "benchmark loader": (["--data", "nowhere"], "nowhere is not a data directory"),
    "benchmark memory": (["--unknown"], "--unknown is not an option"),
    "benchmark saves": (["--layers", "0"], "--layers: must be greater than or equal to 1, got '0'"),
    "benchmark serving": (NOWHERE, "no configuration at nowhere.json"),
    "benchmark preparation": (["--source", "c4"], "--source c4 needs --input"),
}


def bad_command(name: str) -> list[str]:
    """Return the words of a command with a user's mistake."""
    words, _ = BAD_INPUT[name]
    return [*name.split(), *words]


@pytest.mark.parametrize("name", LEAVES)
def test_bad_input_is_one_line(name: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, message = BAD_INPUT[name]
    status, printed, errors = command(*bad_command(name))
    assert (status, printed, errors.count("\n")) == (2, "", 1), errors
    assert errors.startswith("error: ")
    assert message in errors
    assert not list(tmp_path.iterdir())


# Prints the help of every command, gives a missing configuration to each that takes one, and lists the heavy packages imported.
WITHOUT_TORCH = """
import json, sys
from megatape.commands.cli.main import main
for words in json.loads(sys.argv[1]):
    try:
        status = main(words)
    except SystemExit as stop:
        status = stop.code
    expected = 2
    if words[-1] == "--help":
        expected = 0
    assert status == expected, words
heavy = ("torch", "transformers", "deepspeed", "datasets", "backports.zstd", "isal", "orjson")
print("imported:", *[name for name in heavy if name in sys.modules])
"""


def test_help_and_config_errors_import_little(tmp_path: Path) -> None:
    helps = [["--help"]] + [[*name.split(), "--help"] for name in COMMANDS]
    config_errors = [bad_command(name) for name, (words, _) in BAD_INPUT.items() if "nowhere.json" in words]
    program = [sys.executable, "-c", WITHOUT_TORCH, json.dumps(helps + config_errors)]
    process = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1] == "imported:"
    assert process.stderr.count("no configuration at nowhere.json") == len(config_errors)


@pytest.mark.parametrize("name", ["benchmark gpu", "study attention", "study compare", "study suite", "study finetune"])
def test_the_output_of_version_0_1_is_accepted(name: str, command: Command) -> None:
    """Commands with --out in version 0.1 still accept it, because the parser takes it for the beginning of --output."""
    words, message = BAD_INPUT[name]
    earlier_words = ["--out" if word == "--output" else word for word in words]
    _, _, errors = command(*name.split(), *earlier_words)
    assert message in errors


def test_deepspeed_adds_the_local_rank_to_an_evaluation(command: Command) -> None:
    words, message = BAD_INPUT["evaluate"]
    status, _, errors = command("evaluate", "--local_rank=1", *words)
    assert status == 2
    assert message in errors


def test_missing_folders_and_tasks_are_found_before_torch_is_imported(tmp_path: Path) -> None:
    """Importing torch takes many seconds. A user must not wait for it only to read that a name is misspelled."""
    pytest.importorskip("lm_eval")
    (tmp_path / "model").mkdir()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own.yaml").write_text("task: task_of_ours\n")
    lm_eval = ["evaluate", "lm-eval", "model", "--output", "evaluated", "--tasks"]
    missing_folder = "nowhere: no such folder: give "
    cases = [(bad_command(name), missing_folder) for name in ("generate", "export", "average", "branch", "import", "evaluate")]
    cases += [
        (["generate", "model", "--adapter", "nowhere", "--prompt", "a"], missing_folder),
        (["export", "model", "own"], "own exists: remove it or choose another name"),
        ([*lm_eval, "arc_eazy"], "--tasks: lm-eval has no 'arc_eazy', but arc_easy"),
        ([*lm_eval, "arc_easy,task_of_ours"], "--tasks: lm-eval has no 'task_of_ours'"),
        ([*lm_eval, "ruler"], "--tasks: ruler of lm-eval needs text lengths"),
        (
            [*lm_eval, "arc_easy,mmlu,task_of_ours,arc_eazy", "--include", "own"],
            "--tasks: lm-eval has no 'arc_eazy', but arc_easy",
        ),
    ]
    errors = errors_without_torch([words for words, _ in cases], tmp_path)
    for (words, message), error in zip(cases, errors, strict=True):
        assert message in error, words
