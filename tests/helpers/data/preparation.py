"""Write a corpus of several files, and stop or kill its preparation at a given step."""

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
# Program that starts `megatape` with given arguments, kills it after random times, and finally lets it finish.
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
    """Write files of 30 lines, with an empty text or a bad record and a duplicate each. Most make two units of UNIT_BYTES."""
    folder.mkdir()
    for file in range(NUM_FILES):
        lines = [json.dumps({"text": text_of(100 * file + number)}) for number in range(30)]
        lines[7] = "{"
        if file % 3 == 0:
            lines[7] = json.dumps({"text": ""})
        # A duplicate of line 5 of the first file, in all files.
        lines[9] = json.dumps({"text": text_of(5)})
        (folder / f"{file:02}.jsonl").write_text("\n".join(lines) + "\n")
    return Source("jsonl", (str(folder),))


class Stopped(Exception):
    """Raised to stop a preparation."""


def prepare_until(corpus: PreparationOptions, output: Path, unit_pass: UnitPass, number: int) -> None:
    """Prepare a corpus until a pass works on the unit with this number. The result of this unit is not stored."""
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
    raise AssertionError(f"the {unit_pass} never worked on unit {number}")
