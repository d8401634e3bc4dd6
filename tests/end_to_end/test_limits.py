"""Absurd input is refused at once, in one line and with status 2. Each command has its own process."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.processes.command import Command

ROOT = Path(__file__).parents[2]
DEEP = '{"a":' * 100_000
TINY = ROOT / "configs/tape_tiny.json"
LIMIT = 10.0  # seconds; without the check, a number like these takes minutes


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("model.num_layers=1000000000", "must be less than or equal to 4096"),
        ("model.hidden_size=1000000000000", "must be less than or equal to 1048576"),
        ("model.vocab_size=1000000000000", "must be less than or equal to 16777216"),
        ("model.max_positions=1000000000000000000000000", "must be less than or equal to 2147483648"),
        ("training.steps=1000000000000000000000000", "must be less than or equal to 1000000000"),
        ("training.global_batch_size=1000000000000000000000000", "must be less than or equal to 2097152"),
        ("training.seed=1000000000000000000000000", "must be less than or equal to 9223372036854775807"),
    ],
)
def test_numbers_beyond_any_model(command: Command, setting: str, expected: str) -> None:
    started = time.monotonic()
    status, output, errors = command("plan", "--config", TINY, "--set", setting)

    assert (status, output) == (2, "")
    key, _, _ = setting.partition("=")
    assert key in errors
    assert expected in errors
    assert time.monotonic() - started < LIMIT


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("prepare addition --output out --digits 9223372036854775808", "less than or equal to 1000,"),
        ("prepare addition --output out --digits 2 --per-cell 99999999999", "less than or equal to 1000000000,"),
        (
            "data tokenizer --source text --input . --output out --max-record-bytes 9223372036854775808",
            "less than or equal to 2147483647",
        ),
        ("evaluate passkey nowhere --output out --lengths 99999999999", "--lengths: must be less than or equal to 16777216"),
        ("evaluate passkey nowhere --output out --trials 0", "--trials: must be greater than or equal to 1, got '0'"),
        (
            "evaluate scrolls nowhere --output out --scrolls nowhere --max-examples 0",
            "--max-examples: must be greater than or equal to",
        ),
        ("study compare --config nowhere --encodings rope --output out --seeds 0", "--seeds: must be greater than or equal to"),
        ("study shift nowhere --length 1", "--length: must be greater than or equal to 2, got '1'"),
        ("generate nowhere --prompt a --top-k few", "--top-k: must be a valid integer"),
        ("benchmark gpu --output out --device cpu --tiny --budget nan", "--budget: must be a valid integer"),
    ],
)
def test_options_beyond_any_use(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)

    status, _, errors = command(*words.split())

    assert status == 2
    assert expected in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        "plan --config {folder}/config.json",
        f"plan --config {TINY} --set model.scaling={DEEP}",
        "data report {folder}",
        "export {folder}/step-00000001 {folder}/out",
    ],
    ids=["configuration", "option", "data index", "manifest"],
)
def test_deep_json(command: Command, tmp_path: Path, words: str) -> None:
    checkpoint = tmp_path / "step-00000001"
    checkpoint.mkdir()
    for path in (tmp_path / "config.json", tmp_path / "index.json", checkpoint / "manifest.json"):
        path.write_text(DEEP)

    status, output, errors = command(*words.replace("{folder}", str(tmp_path)).split())

    assert (status, output) == (2, "")
    assert errors.startswith("error: "), errors[:200]
    assert "nested more than 64 levels deep" in errors, errors[:200]


def test_a_prompt_that_is_not_utf8(tmp_path: Path) -> None:
    """Python reads undecodable bytes in a command line as surrogates."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    script = "import sys; from megatape.commands.cli.main import main; sys.exit(main(sys.argv[1:]))"
    result = subprocess.run(
        [sys.executable, "-c", script, "generate", os.fsencode(tmp_path), "--prompt", b"na\xefve"],
        env=environment,
        capture_output=True,
    )
    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr == b"error: --prompt 'na\\udcefve' is not valid UTF-8: give it in the encoding of the terminal\n"


def test_more_new_tokens_than_anybody_waits_for(command: Command, tmp_path: Path) -> None:
    status, output, errors = command("generate", tmp_path, "--prompt", "a", "--max-new-tokens", 10**30)

    assert (status, output) == (2, "")
    assert errors == f"error: --max-new-tokens: must be less than or equal to 1048576, got '{10**30}'\n"
