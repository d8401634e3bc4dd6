"""Killing workers or commands leads to the same bytes as an undisturbed preparation."""

import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import parse_rules
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from tests.helpers.data.data_directory import hashes_of
from tests.helpers.data.preparation import DRIVER, arguments, store_tokenizer
from tests.helpers.processes.load import scaled
from tests.helpers.processes.waiting import has_ended, wait_until

# Program running `megatape`. Reaching unit 3, as many workers kill themselves as its second argument says.
SUICIDE = """
import os, signal, sys
from megatape.data.prepare.passes.unit_passes import UnitPasses
from megatape.commands.cli.main import main

marks, deaths, *words = sys.argv[1:]
write = UnitPasses.write_pass

def die(self, number, *arguments, **rest):
    if number == 3 and len(os.listdir(marks)) < int(deaths):
        open(os.path.join(marks, str(os.getpid())), "x")
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, number, *arguments, **rest)

if __name__ == "__main__":
    sys.exit(main(words))
UnitPasses.write_pass = die  # also in the workers, which import this file
"""
# Module failing every write by a worker
FULL_DISK = """
import errno, multiprocessing, os

def full(descriptor):
    raise OSError(errno.ENOSPC, "No space left on device")

if multiprocessing.parent_process() is not None:
    os.fsync = full
"""

RULES = ["length:minimum=20", "near_duplicates"]


@pytest.mark.slow
@pytest.mark.parametrize("keep_documents", [False, True])
def test_killed_at_any_moment(corpus: PreparationOptions, tmp_path: Path, keep_documents: bool) -> None:
    """The command is killed up to twenty times, and resumed each time."""
    cleaning = Cleaning(parse_rules(RULES))
    prepare(replace(corpus, cleaning=cleaning, keep_documents=keep_documents), tmp_path / "whole")
    store_tokenizer(corpus, tmp_path)
    (tmp_path / "driver.py").write_text(DRIVER)
    seed = str(random.randrange(2**32))
    words = [*arguments(corpus, tmp_path), *(f"--rule={rule}" for rule in RULES), "--workers", "1"]
    if keep_documents:
        words.append("--keep-documents")

    command = [sys.executable, str(tmp_path / "driver.py"), seed, "20", *words]
    run = subprocess.run(command, capture_output=True, text=True, timeout=scaled(120), check=False)

    assert run.returncode == 0, f"seed {seed}: {run.stderr}"
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")
    assert [path.name for path in tmp_path.glob("*.partial")] == []


@pytest.mark.slow
def test_a_killed_command_leaves_no_workers(corpus: PreparationOptions, tmp_path: Path) -> None:
    """The workers end with their command. Two further commands finish the work at the same time."""
    prepare(replace(corpus, cleaning=Cleaning(parse_rules(RULES))), tmp_path / "whole")
    store_tokenizer(corpus, tmp_path)
    (tmp_path / "driver.py").write_text(DRIVER.replace("    seed", "    batches.read_unit = slowly\n    seed"))
    words = [*arguments(corpus, tmp_path), *(f"--rule={rule}" for rule in RULES)]
    command = [sys.executable, str(tmp_path / "driver.py"), "0", "0", *words, "--workers", "2"]

    killed = subprocess.Popen(command, stderr=subprocess.PIPE)
    wait_until(lambda: any((tmp_path / "out.partial").glob("0*.claim")), "the first lease", 60, process=killed)
    workers = [worker.pid for worker in psutil.Process(killed.pid).children(recursive=True)]
    killed.kill()
    killed.communicate()
    wait_until(lambda: all(map(has_ended, workers)), "the end of the workers", 60)

    resumed = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    errors = [process.communicate(timeout=scaled(120))[1].decode() for process in resumed]
    # One worker may start after the other has finished everything.
    num_late = sum("out exists: remove it" in error for error in errors)
    assert num_late < 2, errors
    assert sum(process.returncode == 0 for process in resumed) == 2 - num_late, errors
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


@pytest.mark.slow
def test_a_full_disk_of_a_worker_is_reported_with_its_folder(corpus: PreparationOptions, tmp_path: Path) -> None:
    """The folder is lost if the error is sent to the command's process without it."""
    store_tokenizer(corpus, tmp_path)
    module = tmp_path / "full_disk.py"
    module.write_text(FULL_DISK)
    words = [*arguments(corpus, tmp_path), "--workers", "2", "--import", str(module)]

    run = subprocess.run(
        [sys.executable, "-m", "megatape", *words], capture_output=True, text=True, timeout=scaled(120), check=False
    )

    assert run.returncode == 2, run.stderr
    assert f"No space left on device: '{tmp_path}/out.partial'" in run.stderr


def prepare_with_dying_workers(corpus: PreparationOptions, folder: Path, num_deaths: int) -> subprocess.CompletedProcess[str]:
    """Prepare folder/out with two workers. The first `num_deaths` to reach unit 3 kill themselves."""
    driver = folder / "driver.py"
    driver.write_text(SUICIDE)
    marks = folder / "marks"
    marks.mkdir(exist_ok=True)
    words = [*arguments(corpus, folder), "--workers", "2"]
    command = [sys.executable, str(driver), str(marks), str(num_deaths), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=scaled(120), check=False)


def check_first_deaths_are_reported(folder: Path, errors: str) -> None:
    marks = sorted((folder / "marks").iterdir(), key=lambda mark: mark.stat().st_mtime_ns)
    for mark in marks[:3]:
        # The message names the unit unless the other worker has already taken it over.
        death = rf"a worker \(process {mark.name}\) was killed by SIGKILL( in .*)?, possibly out of memory"
        assert len(re.findall(f"{death}: another one takes over", errors)) == 1, errors


@pytest.mark.slow
def test_a_killed_worker_is_replaced(corpus: PreparationOptions, tmp_path: Path) -> None:
    """Another worker takes over its unit, and the result is the same."""
    prepare(corpus, tmp_path / "whole")
    store_tokenizer(corpus, tmp_path)

    run = prepare_with_dying_workers(corpus, tmp_path, num_deaths=2)

    assert run.returncode == 0, run.stderr
    check_first_deaths_are_reported(tmp_path, run.stderr)
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")


@pytest.mark.slow
def test_a_unit_that_kills_all_workers_ends_the_command(corpus: PreparationOptions, tmp_path: Path) -> None:
    """The finished units stay, and the command can be resumed."""
    prepare(corpus, tmp_path / "whole")
    store_tokenizer(corpus, tmp_path)

    run = prepare_with_dying_workers(corpus, tmp_path, num_deaths=1000)
    assert run.returncode == 2
    check_first_deaths_are_reported(tmp_path, run.stderr)
    assert "the last of 4 without a finished unit in between: try fewer" in run.stderr
    assert f"was killed by SIGKILL in {corpus.source.units()[3]}, possibly out of memory" in run.stderr
    assert list((tmp_path / "out.partial/units").iterdir()) != []

    resumed = prepare_with_dying_workers(corpus, tmp_path, num_deaths=0)
    assert resumed.returncode == 0, resumed.stderr
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")
