"""A password in the URL of a run's data: the run reads its data, but its files and output hide the password."""

import json
from pathlib import Path
from typing import Any

from megatape.config import load_config, parse_config
from megatape.lab.report.page import write_report
from megatape.run_folder import RunFolder
from megatape.tools.cluster.slurm.submission import take_snapshot
from tests.helpers.processes.command import Command
from tests.helpers.processes.web import served
from tests.helpers.processes.workers import Workers

PASSWORD = "pa55-of-mine"
USER = f"me:{PASSWORD}"


def with_password(url: str) -> str:
    return url.replace("://", f"://{USER}@")


def files_with_password(folder: Path) -> list[str]:
    """Return the files below a folder that contain the password."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [str(path.relative_to(folder)) for path in files if PASSWORD.encode() in path.read_bytes()]


def test_a_password_stays_in_the_process(
    command: Command, raw_config: dict[str, Any], data_directory: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    folder = RunFolder(Path(raw_config["run"]["directory"]))
    contents = {f"data/{path.name}": path.read_bytes() for path in data_directory.iterdir() if path.is_file()}
    with served(**contents) as web:
        url = with_password(web.url("data"))
        raw_config["data"] |= {"path": url, "cache": str(tmp_path / "cache")}
        for steps in (1, 2):
            raw_config["training"]["steps"] = steps
            config.write_text(json.dumps(raw_config))
            words = ["pretrain", "--config", str(config), "--resume", "auto", "--set", f"data.path={url}"]
            with Workers(words, 1, tmp_path / "workers") as workers:
                assert workers.statuses() == [0], workers.logs()

        status, output, errors = command("ledger", folder.directory, "--set", f"data.path={url}")
        assert status == 0, errors
        assert "1 to 2" in output, "the command reads the data by the URL with its password"

        status, _, errors = command("ledger", folder.directory)
        assert status == 2
        assert "its password or signature is masked, as in the files of a run" in errors

        missing = with_password(web.url("missing"))
        status, _, errors = command("ledger", folder.directory, "--set", f"data.path={missing}")
        assert status == 2
        assert "me:***@" in errors
        assert PASSWORD not in errors

    assert load_config(folder.config).data.path == url.replace(PASSWORD, "***")
    assert files_with_password(folder.directory) == []
    assert files_with_password(tmp_path / "workers") == []


def test_the_report_of_an_earlier_run(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Files of an earlier version have the URL with its password."""
    folder = RunFolder(Path(raw_config["run"]["directory"]))
    folder.directory.mkdir()
    url = with_password("https://example.org/data")
    raw_config["data"] |= {"path": url, "cache": str(tmp_path / "cache")}
    config = parse_config(raw_config, "test")
    folder.config.write_text(json.dumps(config.model_dump()))
    event = {"time": 1.0, "event": "failed", "step": 0, "detail": f"cannot read {url}"}
    folder.events.write_text(f"{json.dumps(event)}\n")

    write_report([folder.directory], [], tmp_path / "page")

    assert files_with_password(tmp_path / "page") == []


def test_a_job_reads_its_data_by_its_snapshot(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """The configuration for a Slurm job contains the password, and only its owner can read it."""
    raw_config["data"] |= {"path": with_password("https://example.org/data"), "cache": str(tmp_path / "cache")}
    config = parse_config(raw_config, "test")

    take_snapshot(tmp_path / "snapshot", {"config.json": config})

    path = tmp_path / "snapshot" / "config.json"
    assert load_config(path) == config
    assert path.stat().st_mode & 0o777 == 0o600
