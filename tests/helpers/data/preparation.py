"""Writing a corpus of several files, and stopping or killing its preparation at a given step."""

import json
from pathlib import Path

import pytest

from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.passes.unit_passes import UnitPasses
from megatape.data.prepare.preparation import open_preparation
from megatape.data.prepare.progress import UnitPass, UnitProgress
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.shared_folder.unit_lease import DEFAULT_TIMEOUTS, UnitLease
from megatape.data.sources.source import Source

NUM_FILES = 6
UNIT_BYTES = 4000
# Program starting `megatape` with given arguments, killing it after random times, and finally letting it finish
DRIVER = """
import os, random, signal, sys, time
import megatape.data.prepare.passes.batches as batches
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
    """Return the text in the document with this number."""
    return f"Document {number}: " + " ".join(str(number * step % 997) for step in range(1, 40))


def write_corpus(folder: Path) -> Source:
    """Write files of 30 lines, with an empty text or a bad record and a duplicate each. Most make two units of UNIT_BYTES."""
    folder.mkdir()
    for file in range(NUM_FILES):
        lines = [json.dumps({"text": text_of(100 * file + number)}) for number in range(30)]
        lines[7] = "{"
        if file % 3 == 0:
            lines[7] = json.dumps({"text": ""})
        # All files have a duplicate of the first file's line 5.
        lines[9] = json.dumps({"text": text_of(5)})
        (folder / f"{file:02}.jsonl").write_text("\n".join(lines) + "\n")
    return Source("jsonl", (str(folder),))


class Stopped(Exception):
    """Raised to stop a preparation."""


def prepare_until(corpus: PreparationOptions, output: Path, unit_pass: UnitPass, number: int) -> None:
    """Prepare a corpus until a pass works on the unit with this number, without storing the unit's result."""
    tokenizer = corpus.tokenizer
    assert tokenizer is not None

    def stop(latest: UnitProgress) -> None:
        if (latest.unit_pass, latest.number) == (unit_pass, number):
            raise Stopped

    try:
        with open_preparation(corpus, PartialFolder(output, DEFAULT_TIMEOUTS)) as preparation:
            preparation.work(tokenizer, None, stop)
    except Stopped:
        return
    raise AssertionError(f"the {unit_pass} never worked on unit {number}")


def input_file(corpus: PreparationOptions, number: int) -> Path:
    """Return the path of a corpus file."""
    return Path(corpus.source.inputs[0]) / f"{number:02}.jsonl"


def fail_at(monkeypatch: pytest.MonkeyPatch, number: int, pass_name: str = "write_pass") -> None:
    """Let a pass fail at the unit with this number."""
    run_pass = getattr(UnitPasses, pass_name)

    def fail(self: UnitPasses, unit: int, lease: UnitLease) -> None:
        if unit == number:
            raise OSError("the disk is full")
        run_pass(self, unit, lease)

    monkeypatch.setattr(UnitPasses, pass_name, fail)


def store_tokenizer(corpus: PreparationOptions, folder: Path) -> None:
    """Write the corpus' tokenizer to folder/tokenizer.model."""
    assert corpus.tokenizer is not None
    (folder / "tokenizer.model").write_bytes(corpus.tokenizer.files["tokenizer.model"])


def arguments(corpus: PreparationOptions, folder: Path) -> list[str]:
    """Return the words of the command preparing `corpus` as folder/out."""
    words = ["prepare", "corpus", "--source", "jsonl", "--input", *corpus.source.inputs, "--output", str(folder / "out")]
    words += ["--tokenizer", str(folder / "tokenizer.model"), "--validation-share", "0.1"]
    if corpus.source.unit_bytes is not None:
        words += ["--unit-bytes", str(corpus.source.unit_bytes)]
    return words
