"""All of it once, as a user would: C4 from a web server, cleaned and killed twice; a mixture with Python sources; a run that is
killed and goes on; reports."""

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megatape.data.shards.document_tables import DocumentTables
from megatape.data.shards.index import load_index
from megatape.data.shards.ledger import check_ledger
from megatape.run_folder import RunFolder, read_metrics
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
    """Real text where there is some beside the project, else made text, in C4's layout."""
    if REAL.is_dir():
        return {path.name: path.read_bytes() for path in sorted(REAL.glob("c4-*.json.gz"))}
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 7))) for _ in range(200)]
    files = {}
    names = [f"c4-train.{number:05d}-of-00004.json.gz" for number in range(4)] + ["c4-validation.00000-of-00001.json.gz"]
    for name in names:
        texts = [" ".join(draw.choices(words, k=draw.randint(20, 300))) for _ in range(100)]
        records = [{"text": text, "timestamp": "", "url": f"http://{name}/{line}"} for line, text in enumerate(texts)]
        files[name] = gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode())
    return files


@pytest.mark.slow
def test_from_a_web_server_to_a_trained_model(command: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    with served(**c4_files()) as web:
        prepare_web(web, command, tmp_path)
    tokenizer = tmp_path / "web" / "tokenizer.model"
    code = (
        "prepare",
        "corpus",
        "--source",
        "python",
        "--tokenizer",
        tokenizer,
        "--max-documents",
        60,
        "--validation-share",
        0.1,
    )
    status, _, errors = command(*code, "--output", tmp_path / "code")
    assert status == 0, errors

    for name in ("web", "code"):
        status, text, errors = command("data", "report", tmp_path / name, "--verify", "--output", tmp_path / f"report-{name}")
        assert status == 0 and "members verified" in text and "Documents by input" in text, errors
    first = next(iter(DocumentTables(tmp_path / "web", load_index(tmp_path / "web"), "train").lengths()))
    status, text, errors = command("data", "where", tmp_path / "web", "--token", int(first[:10].sum()))
    assert status == 0 and "document:  10 of train" in text and "c4-train.00000-of-00004.json.gz:" in text, errors

    train(raw_config, tmp_path)


def prepare_web(web: Web, command: Command, folder: Path) -> None:
    """The same data directory from an undisturbed command, and from one that is killed twice, at a server that fails."""
    train_files = web.url("c4-train.{00000..00003}-of-00004.json.gz")
    words = ["prepare", "corpus", "--source", "c4", "--input", train_files, "--vocab-size", str(VOCAB_SIZE), "--workers", "1"]
    words += ["--validation-input", web.url("c4-validation.00000-of-00001.json.gz"), *(f"--rule={rule}" for rule in RULES)]
    words += ["--unit-bytes", "1"]  # a unit for each file
    (folder / "driver.py").write_text(DRIVER.replace("uniform(0.0, 0.4)", "uniform(0.5, 3.0)"))
    for name, kills in (("whole", 0), ("web", 2)):
        web.faults = [Fault(status=503), Fault(after=1000, then="reset")] * kills
        run = subprocess.run(
            [sys.executable, folder / "driver.py", "1", str(kills), *words, "--output", str(folder / name)],
            capture_output=True,
            text=True,
            timeout=scaled(300),
            check=False,
        )
        assert run.returncode == 0, run.stderr
    assert hashes_of(folder / "web") == hashes_of(folder / "whole")
    total = check_ledger(load_index(folder / "web"))
    assert total.read == sum(len(gzip.decompress(file).splitlines()) for file in web.files.values())


def train(raw: dict[str, Any], folder: Path) -> None:
    """Two ranks, of which one is killed, and then one that goes on."""
    corpora = {"web": 0.75, "code": 0.25}
    raw["model"]["vocab_size"] = VOCAB_SIZE
    raw["data"] = {"sequence_length": 32, "mixture": {}}
    raw["data"]["mixture"] = {name: {"path": str(folder / name), "weight": weight} for name, weight in corpora.items()}
    raw["training"] |= {"steps": 8, "micro_batch_size": 4}
    raw["checkpoint"] = {"interval": 2, "keep": 2}
    raw["evaluation"] |= {"interval": 4}
    (folder / "config.json").write_text(json.dumps(raw))
    run = RunFolder(Path(raw["run"]["directory"]))
    words = ["pretrain", "--config", str(folder / "config.json")]
    with Workers(words, 2, folder / "first") as workers:
        workers.wait(lambda: bool(run.list_checkpoints()), "the first checkpoint", 90)
        workers.kill(1)
        assert all(status != 0 for status in workers.statuses())
    with Workers([*words, "--resume", "auto"], 1, folder / "second") as workers:
        assert workers.statuses() == [0], workers.logs()
    metrics = {step: json.loads(line) for step, line in read_metrics(run.metrics).items()}
    assert list(metrics) == list(range(1, 9))
    assert metrics[8]["corpora"] == {"web": 48, "code": 16} and set(metrics[8]["validation_losses"]) == set(corpora)
    assert metrics[8]["loss"] < metrics[1]["loss"]
