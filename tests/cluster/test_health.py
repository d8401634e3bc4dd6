"""Health check of the containers."""

import os
from pathlib import Path

from megatape.cluster.health import fault


def test_health(tmp_path: Path) -> None:
    assert fault(None, 0.0) == ""
    assert fault(tmp_path, 0.0).endswith("metrics.jsonl: not written yet")
    log = tmp_path / "metrics.jsonl"
    log.touch()
    os.utime(log, (1000, 1000))
    assert fault(tmp_path, 1600.0) == ""
    assert fault(tmp_path, 1601.0).endswith("no step for 601 s")
