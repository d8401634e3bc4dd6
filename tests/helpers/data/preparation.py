"""A corpus of several files, and a driver that is killed while it prepares one."""

import json
from pathlib import Path

from megatape.data.prepare.folder import PartialFolder
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.preparation import Preparation
from megatape.data.prepare.progress import UnitPass, UnitProgress
from megatape.data.prepare.unit_lease import DEFAULT_TIMEOUTS
from megatape.data.sources.source import Source

NUM_FILES = 6
UNIT_BYTES = 4000
DRIVER = """
import os, random, signal, sys, time
import megatape.data.prepare.batches as batches
import datasketch  # before the forks, which would all import it
from megatape.commands.cli.main import main

read_unit = batches.read_unit

def slowly(*arguments):
    for document in read_unit(*arguments):
        time.sleep(0.01)
        yield document

if __name__ == "__main__":
    seed, kills, *words = sys.argv[1:]
    batches.read_unit = slowly
    draw = random.Random(int(seed))
    output = words[words.index("--output") + 1]
    for kill in range(int(kills)):
        child = os.fork()
        if not child:
            os._exit(main(words))
        time.sleep(draw.uniform(0.0, 0.4))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if os.path.exists(output):  # on a machine this fast
            sys.exit(kill < 4)
    batches.read_unit = read_unit
    sys.exit(main(words))
"""


def text_of(number: int) -> str:
    return f"Document {number}: " + " ".join(str(number * step % 997) for step in range(1, 40))


def write_lines(folder: Path) -> Source:
    """Files of lines, some skipped for a reason, most of them two units of UNIT_BYTES."""
    folder.mkdir()
    for file in range(NUM_FILES):
        lines = [json.dumps({"text": text_of(100 * file + number)}) for number in range(30)]
        lines[7] = "{" if file % 3 else json.dumps({"text": ""})
        lines[9] = json.dumps({"text": text_of(5)})  # the same in all files, and once before
        (folder / f"{file:02}.jsonl").write_text("\n".join(lines) + "\n")
    return Source("jsonl", (str(folder),))


class Stopped(Exception):
    """Raised to stop a preparation."""


def prepare_until(corpus: PreparationOptions, output: Path, unit_pass: UnitPass, number: int) -> None:
    """Prepare a corpus until a pass works on a unit, whose result is not stored."""
    preparation = Preparation(corpus, PartialFolder(output, DEFAULT_TIMEOUTS), corpus.source.units())
    tokenizer = corpus.tokenizer
    assert tokenizer is not None
    preparation.start()

    def stop(latest: UnitProgress) -> None:
        if (latest.unit_pass, latest.number) == (unit_pass, number):
            raise Stopped

    try:
        preparation.work(tokenizer, None, stop)
    except Stopped:
        return
    raise AssertionError("it never came there")
