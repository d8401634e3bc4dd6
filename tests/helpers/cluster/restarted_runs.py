"""Runs whose starts end as scripted, for testing restarts."""

import sys
from pathlib import Path

from megatape.checkpoint.format.manifest import save_manifest
from megatape.run_folder import RunFolder

# Program of a run. Each start takes a line from FILE: its exit status, and the step of the checkpoint that it writes (0: none).
# A checkpoint with a negative step has no manifest. Overlapping starts fail.
TRAINER = """
import os, pathlib, shutil, signal, sys, time
file, run = map(pathlib.Path, sys.argv[1:3])
alive = run / "alive"
alive.touch(exist_ok=False)
line, *rest = file.read_text().splitlines()
file.write_text("\\n".join(rest))
with open(run / "starts", "a") as starts:
    print(*sys.argv[3:], file=starts)
status, step = line.split()
def end(status):
    if step != "0":
        checkpoint = run / "checkpoints" / f"step-{abs(int(step)):08d}"
        checkpoint.mkdir(parents=True, exist_ok=True)
        if int(step) > 0:
            shutil.copyfile(file.parent / "manifest.json", checkpoint / "manifest.json")
    alive.unlink()
    if status in (134, 137, 138, 139):
        os.kill(os.getpid(), status - 128)
    sys.exit(status)
if status == "sleep":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: end(75))
    (run / "asleep").touch()
    time.sleep(60)
if status == "orphan":
    parent = os.getppid()
    if len(rest) == 1:
        os.kill(parent, signal.SIGKILL)
    (run / "asleep").touch()
    while os.getppid() == parent:
        time.sleep(0.01)
    time.sleep(0.3)
    end(75)
end(int(status))
"""
LAUNCHER = """
import subprocess, sys
sys.exit(subprocess.Popen(sys.argv[1:]).wait())
"""
# Lines for the starts, maximum number of restarts, expected last status, expected number of starts
CASES: dict[str, tuple[list[str], int, int, int]] = {
    "complete": (["0 10"], 3, 0, 1),
    "once": (["1 10", "0 20"], 3, 0, 2),
    "killed twice": (["137 10", "137 20", "0 30"], 3, 0, 3),
    "killed under deepspeed": (["247 10", "245 20", "250 30", "0 40"], 3, 0, 4),
    "faults of libraries": (["134 10", "139 20", "0 30"], 3, 0, 3),
    "no step further once": (["1 10", "1 0", "0 20"], 3, 0, 3),
    "no step further": (["1 10", "1 0", "137 0", "1 0", "0 20"], 9, 1, 4),
    "further after two starts": (["1 0", "1 0", "1 10", "1 0", "1 0", "0 20"], 9, 0, 6),
    "never started": (["1 0", "1 0", "1 0", "0 20"], 9, 1, 3),
    "partial checkpoints": (["1 -10", "1 -20", "1 -30", "0 20"], 9, 1, 3),
    "smaller steps, after a rollback": (["1 10", "1 5", "0 20"], 3, 0, 3),
    "none left": (["1 10", "1 20", "1 30"], 1, 1, 2),
    "an error of the user's": (["2 10", "0 20"], 3, 2, 1),
    "diverged": (["3 10", "0 20"], 3, 3, 1),
    "asked to stop": (["75 10", "0 20"], 3, 75, 1),
    "not saved": (["74 0", "0 20"], 3, 0, 2),
    "not saved, and the disk is still full": (["74 0", "2 0", "0 20"], 3, 0, 3),
    "never saved": (["74 0", "74 0", "74 0", "74 0", "0 20"], 9, 74, 4),
    "not saved, then no step further": (["74 0", "1 0", "1 0", "1 0", "0 20"], 9, 1, 4),
}


def prepare_run(parent: Path) -> RunFolder:
    """Create a run directory, next to the programs that it starts."""
    for name, text in (("trainer.py", TRAINER), ("deepspeed.py", LAUNCHER)):
        (parent / name).write_text(text)
    save_manifest(parent, {}, {})
    (parent / "run").mkdir()
    return RunFolder(parent / "run")


def trainer(folder: RunFolder, lines: list[str]) -> list[str]:
    """Return the command whose starts follow these lines."""
    file = folder.directory.with_name("file")
    file.write_text("\n".join(lines))
    return [sys.executable, "-SE", str(file.with_name("trainer.py")), str(file), str(folder.directory)]


def launched(words: list[str], folder: RunFolder) -> list[str]:
    """Return the command that starts another command as its parent."""
    return [sys.executable, "-SE", str(folder.directory.with_name("deepspeed.py")), *words]


def starts(folder: RunFolder) -> list[str]:
    """Return the arguments of each start."""
    return (folder.directory / "starts").read_text().splitlines()


def leave_invalid_checkpoints(folder: RunFolder) -> None:
    """Create a stray checkpoint and one with a corrupted manifest, both for later steps than CASES has."""
    for step in (400, 500):
        folder.checkpoint(step).mkdir(parents=True)
    (folder.checkpoint(500) / "manifest.json").write_text("{}")
