"""Decisions of the restart policy, and the same decisions by the batch script that is rendered from it."""

import random
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from megatape.errors import ExitStatus
from megatape.run_folder import RunFolder
from megatape.tools.cluster.restarts import JOB_POLICY, KILLED_BY_USR1, SUPERVISOR_POLICY, Action, Restarts
from tests.helpers.cluster.job_scripts import JobScript

KILLED = 137
STATUSES = (*(status.value for status in ExitStatus), KILLED, KILLED_BY_USR1)

# Stand-in for srun: takes a line `STATUS STEP` of a file, completes a checkpoint of that step unless it is 0, and exits.
SRUN = """
case "$*" in *pretrain*) ;; *) exit ;; esac
read -r status step < "{starts}"
sed -i 1d "{starts}"
if [ "$step" -gt 0 ]; then
  mkdir -p "{run}/checkpoints/step-$step"
  touch "{run}/checkpoints/step-$step/manifest.json"
fi
exit "$status"
"""


class Start(NamedTuple):
    """Start of a run: exit status, and whether it completes a checkpoint."""

    status: int
    advances: bool


class Reaction(NamedTuple):
    """Reaction to a start: the status that counts, whether the run is started again, and the pause before that."""

    status: int
    restarts: bool
    pause: int


def random_starts(seed: int) -> tuple[list[Start], int]:
    """Return a sequence of starts that ends well, and a maximum number of restarts."""
    generator = random.Random(seed)
    failures = [ExitStatus.DIED.value, KILLED, ExitStatus.NOT_SAVED.value, ExitStatus.NOT_SAVED.value]
    starts = []
    for _ in range(generator.randint(0, 6)):
        status = generator.choice(failures if generator.random() < 0.8 else STATUSES)
        starts.append(Start(status, generator.random() < 0.5))
    starts.append(Start(ExitStatus.DONE.value, True))
    return starts, generator.randint(0, 6)


def reactions_of_policy(starts: list[Start], max_restarts: int) -> list[Reaction]:
    restarts = Restarts(JOB_POLICY, max_restarts)
    reactions = []
    for start in starts:
        decision = restarts.decide(start.status, lambda start=start: start.advances)  # type: ignore[misc]
        reaction = Reaction(decision.status, decision.action is Action.RESTART, decision.pause)
        reactions.append(reaction)
        if not reaction.restarts:
            break
    return reactions


def reactions_of_script(starts: list[Start], max_restarts: int, raw_config: dict[str, Any], parent: Path) -> list[Reaction]:
    """Run the batch script, with stand-ins for the run and for sleep."""
    run = parent / "run"
    run.mkdir(parents=True)
    lines = []
    for number, start in enumerate(starts, 1):
        step = number if start.advances else 0
        lines.append(f"{start.status} {step}\n")
    (parent / "starts").write_text("".join(lines))
    commands = {"srun": SRUN.format(starts=parent / "starts", run=run), "sleep": 'echo "slept $1"'}
    done = JobScript(raw_config, RunFolder(run), commands, max_restarts).run()
    assert done.stderr == ""

    reactions: list[Reaction] = []
    for line in done.stdout.splitlines():
        if found := re.search(r"status (\d+): started again", line):
            reactions.append(Reaction(int(found[1]), True, 0))
        elif found := re.search(r"slept (\d+)", line):
            reactions[-1] = reactions[-1]._replace(pause=int(found[1]))
        elif found := re.search(r"ended with status (\d+)", line):
            reactions.append(Reaction(int(found[1]), False, 0))
    assert reactions[-1].status == done.returncode
    return reactions


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("advances", [False, True])
def test_script_and_policy_agree_on_each_status(
    raw_config: dict[str, Any], tmp_path: Path, status: int, advances: bool
) -> None:
    """Script and policy also agree after a start that could not save, which changes the meaning of a user error."""
    done = Start(ExitStatus.DONE.value, True)
    for number, first in enumerate((Start(status, advances), Start(ExitStatus.NOT_SAVED.value, False))):
        starts = [first, Start(status, advances), done]
        expected = reactions_of_policy(starts, 2)
        assert reactions_of_script(starts, 2, raw_config, tmp_path / str(number)) == expected


@pytest.mark.parametrize("seed", range(30))
def test_script_and_policy_agree_on_sequences(raw_config: dict[str, Any], tmp_path: Path, seed: int) -> None:
    starts, max_restarts = random_starts(seed)
    expected = reactions_of_policy(starts, max_restarts)
    assert reactions_of_script(starts, max_restarts, raw_config, tmp_path) == expected


def test_random_sequences_reach_every_action() -> None:
    """The random sequences reach every action, without which comparing them would show little."""
    reactions = [reaction for seed in range(30) for reaction in reactions_of_policy(*random_starts(seed))]
    assert {reaction.restarts for reaction in reactions} == {True, False}
    assert {reaction.pause for reaction in reactions} == {0, JOB_POLICY.pause}
    assert len({reaction.status for reaction in reactions if not reaction.restarts}) > 4


def test_restarts_without_progress_are_limited() -> None:
    restarts = Restarts(SUPERVISOR_POLICY, 9)
    for _ in range(SUPERVISOR_POLICY.max_unsaved_starts):
        assert restarts.decide(ExitStatus.NOT_SAVED, lambda: False).action is Action.RESTART
    assert restarts.decide(ExitStatus.NOT_SAVED, lambda: False).action is Action.GIVE_UP


def test_progress_is_not_asked_for_after_the_end() -> None:
    """The folder of a finished run may be unreachable."""

    def fail() -> bool:
        raise OSError

    assert Restarts(SUPERVISOR_POLICY, 9).decide(ExitStatus.DONE, fail).action is Action.END
    assert Restarts(SUPERVISOR_POLICY, 0).decide(ExitStatus.DIED, fail).action is Action.END


def test_only_slurm_sends_usr1_at_the_end() -> None:
    """A supervised rank killed by USR1 has died like any other."""
    assert Restarts(JOB_POLICY, 9).decide(KILLED_BY_USR1, lambda: True).action is Action.END
    assert Restarts(SUPERVISOR_POLICY, 9).decide(KILLED_BY_USR1, lambda: True).action is Action.RESTART
