"""Everything once, as a user would do it.

C4 from a web server is prepared by a command that is killed twice, Python sources are added, a run is killed and resumed, and
reports are written.
"""

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megatape.data.shards.index import load_index
from megatape.data.shards.ledger import check_ledger
from megatape.data.shards.tables.document_tables import DocumentTables
from megatape.run_folder import RunFolder, read_steps
from tests.helpers.data.data_directory import hashes_of
from tests.helpers.data.preparation import DRIVER
from tests.helpers.processes.command import Command
from tests.helpers.processes.load import scaled
from tests.helpers.processes.web import Fault, Web, served
from tests.helpers.processes.workers import Workers

VOCAB_SIZE = 400
REAL = Path(__file__).parents[3] / "shared" / "data" / "c4" / "en"
RULES = ["length:minimum=100", "personal_data", "near_duplicates:threshold=0.7"]


def c4_files() -> dict[str, bytes]:
    """Return files in C4's layout: real text if it lies beside the project, otherwise made-up text."""
    if REAL.is_dir():
        return {path.name: path.read_bytes() for path in sorted(REAL.glob("c4-*.json.gz"))}
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 7))) for _ in range(200)]
    names = [f"c4-train.{number:05d}-of-00004.json.gz" for number in range(4)]
    names.append("c4-validation.00000-of-00001.json.gz")
    files = {}
    for name in names:
        lines = []
        for number in range(100):
            text = " ".join(draw.choices(words, k=draw.randint(20, 300)))
            record = {"text": text, "timestamp": "", "url": f"http://{name}/{number}"}
            lines.append(json.dumps(record) + "\n")
        files[name] = gzip.compress("".join(lines).encode())
    return files


@pytest.mark.slow
def test_from_a_web_server_to_a_trained_model(command: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    with served(**c4_files()) as web:
        prepare_web(web, command, tmp_path)
    prepare_code(command, tmp_path)
    for name in ("web", "code"):
        words = [tmp_path / name, "--verify", "--output", tmp_path / f"report-{name}"]
        status, output, errors = command("data", "report", *words)
        assert status == 0, errors
        assert "members verified" in output
        assert "Documents by input" in output
    check_tenth_document(command, tmp_path / "web")
    train(raw_config, tmp_path)


def prepare_code(command: Command, folder: Path) -> None:
    """Prepare Python sources with the tokenizer of the web's text."""
    words = ["--source", "python", "--tokenizer", folder / "web" / "tokenizer.model", "--output", folder / "code"]
    words += ["--max-documents", 60, "--validation-share", 0.1]
    status, _, errors = command("prepare", "corpus", *words)
    assert status == 0, errors


def check_tenth_document(command: Command, data: Path) -> None:
    """Check that the token after ten documents is found in the file that it came from."""
    lengths = next(iter(DocumentTables(data, load_index(data), "train").lengths()))
    token = int(lengths[:10].sum())
    status, output, errors = command("data", "where", data, "--token", token)
    assert status == 0, errors
    assert "document:  10 of train" in output
    assert "c4-train.00000-of-00004.json.gz:" in output


def prepare_web(web: Web, command: Command, folder: Path) -> None:
    """Prepare the same data by an undisturbed command, and by one that is killed twice and reads from a failing server."""
    words = ["prepare", "corpus", "--source", "c4", "--input", web.url("c4-train.{00000..00003}-of-00004.json.gz")]
    words += ["--validation-input", web.url("c4-validation.00000-of-00001.json.gz")]
    words += ["--vocab-size", str(VOCAB_SIZE), "--workers", "1"]
    words += ["--unit-bytes", "1"]  # a unit for each file
    for rule in RULES:
        words += ["--rule", rule]
    driver = folder / "driver.py"
    driver.write_text(DRIVER.replace("uniform(0.0, 0.4)", "uniform(0.5, 3.0)"))
    for name, num_kills in (("undisturbed", 0), ("web", 2)):
        web.faults = [Fault(status=503), Fault(after=1000, then="reset")] * num_kills
        run = subprocess.run(
            [sys.executable, str(driver), "1", str(num_kills), *words, "--output", str(folder / name)],
            capture_output=True,
            text=True,
            timeout=scaled(300),
            check=False,
        )
        assert run.returncode == 0, run.stderr

    assert hashes_of(folder / "web") == hashes_of(folder / "undisturbed")
    num_documents = sum(len(gzip.decompress(content).splitlines()) for content in web.files.values())
    assert check_ledger(load_index(folder / "web")).read == num_documents


def train(raw: dict[str, Any], folder: Path) -> None:
    """Train on two ranks, one of which is killed, and resume on one rank."""
    raw["model"]["vocab_size"] = VOCAB_SIZE
    raw["data"] = {
        "sequence_length": 32,
        "mixture": {
            "web": {"path": str(folder / "web"), "weight": 0.75},
            "code": {"path": str(folder / "code"), "weight": 0.25},
        },
    }
    raw["training"] |= {"steps": 8, "micro_batch_size": 4}
    raw["checkpoint"] = {"interval": 2, "keep": 2}
    raw["evaluation"] |= {"interval": 4}
    (folder / "config.json").write_text(json.dumps(raw))
    run = RunFolder(Path(raw["run"]["directory"]))
    words = ["pretrain", "--config", str(folder / "config.json")]
    with Workers(words, 2, folder / "first") as workers:
        workers.wait(lambda: bool(run.list_checkpoints()), "the first checkpoint", 90)
        workers.kill(1)
        assert 0 not in workers.statuses()

    with Workers([*words, "--resume", "auto"], 1, folder / "second") as workers:
        assert workers.statuses() == [0], workers.logs()

    metrics = list(read_steps(run.metrics))
    assert [entry["step"] for entry in metrics] == list(range(1, 9))
    first = metrics[0]
    last = metrics[-1]
    assert last["corpora"] == {"web": 48, "code": 16}
    assert last["validation_losses"].keys() == {"web", "code"}
    assert last["loss"] < first["loss"]
