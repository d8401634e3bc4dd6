"""Unusual files in a run directory."""

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from megatape.config import parse_config
from megatape.run_folder import RunFolder, read_metrics
from megatape.training.reporting.step_metrics import StepMetrics
from megatape.training.sinks.json_lines import JsonLines
from megatape.utils.files.json_lines import MAX_LINE_BYTES
from tests.helpers.runs.run_context import make_context


@pytest.mark.parametrize("end", [b"\n", b""], ids=["whole", "torn"])
def test_a_huge_line_takes_little_memory(raw_config: dict[str, Any], tmp_path: Path, end: bytes) -> None:
    """Neither reading it nor resuming the run, which removes it, may take much memory."""
    path = tmp_path / "metrics.jsonl"
    line = b'{"step": 2, "loss": "' + b"x" * 2**24 + b'"}'
    path.write_bytes(b'{"step": 1}\r\n' + line + end + (b'{"step": 3}\n' if end else b""))
    context = make_context(parse_config(raw_config, "test"), RunFolder(tmp_path))
    tracemalloc.start()
    try:
        kept = read_metrics(path)
        sink = JsonLines(context)
        sink.write(StepMetrics(4, 1.0, 1.0, 1.0, 1, 1, 1.0, 1, None))
        sink.close()
        assert tracemalloc.get_traced_memory()[1] < 8 * MAX_LINE_BYTES < len(line)
    finally:
        tracemalloc.stop()
    assert kept == ({1: '{"step": 1}', 3: '{"step": 3}'} if end else {1: '{"step": 1}'})
    assert list(read_metrics(path)) == [*kept, 4]
