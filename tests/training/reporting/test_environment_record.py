"""The command line as a user can type it again."""

import sys

import pytest

from megatape.training.reporting.environment_record import typed_command


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["/x/bin/megatape", "pretrain", "--set", "run.directory=a b"], "megatape pretrain --set 'run.directory=a b'"),
        (["/x/megatape/__main__.py", "pretrain"], "megatape pretrain"),
        (["launch/pretrain.py", "--local_rank=1", "--config", "a.json"], "launch/pretrain.py --config a.json"),
    ],
)
def test_typed_command(words: list[str], command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user can type the result again, wherever the program lies and whatever a launcher adds."""
    monkeypatch.setattr(sys, "argv", words)
    assert typed_command() == command
