"""Tables made from given results."""

import json
from pathlib import Path
from typing import Any

from megatape.lab.benchmark.gpu.report import report
from megatape.lab.benchmark.gpu.results import BenchmarkResult, ResultKey, ResultLine, Results, read_results
from tests.helpers.checks.cells import cells


def step(seconds: float, ratio: float, **more: Any) -> dict[str, Any]:
    return {"seconds": seconds, "ratio": ratio, "tokens/s": 1e5, "FLOP/s": 1e14} | more


RESULTS_BY_TEXT: dict[str, dict[str, Any]] = {
    "step 155m/rope/sdpa/eager": step(0.04, 1.0, **{"saved bytes": 1000}),
    "step 155m/rope/sdpa/compiled": step(0.032, 0.8),
    "step 155m/tape/sdpa/eager": step(0.05, 1.2, **{"saved bytes": 1070}),
    "step 155m/tape/triton/compiled": step(0.035, 0.84),
    "step 155m/tape/sdpa/selective": step(0.055, 1.4, **{"saved bytes": 700}),
    "step 155m/rope/flex/compiled": {"error": "RuntimeError: a | b"},
    "step 1b/rope/sdpa/eager": step(0.1, 1.0),
    "step 1b/tape/sdpa/eager": step(0.12, 1.2, MFU=0.44),
    "step 155m": {"seconds": 60.0, "error": "1 failed"},
    "serving": {"left out": "takes about 40 s, and 3 s of the budget were left"},
}
RESULTS: Results = dict(ResultLine.parse({"key": text} | line) for text, line in RESULTS_BY_TEXT.items())


def test_entries_are_lines() -> None:
    for text, line in RESULTS_BY_TEXT.items():
        entry = ResultLine.parse({"key": text} | line)
        assert entry.to_json() == {"key": text} | line
    assert RESULTS[ResultKey("step 155m")] == BenchmarkResult({"seconds": 60.0}, error="1 failed")


def test_results_of_earlier_versions() -> None:
    """Every line in the published results is kept, and every part has its table."""
    file = Path(__file__).parents[4] / "docs/results/gpu_h200.jsonl"
    results = read_results(file)
    lines = {line["key"]: line for line in map(json.loads, file.read_text().splitlines())}
    assert {str(key): ResultLine(key, result).to_json() for key, result in results.items()} == lines
    text = report(results)
    assert "Measured on NVIDIA H200" in text
    for title in ("Targets", "Training steps", "Attention with rotation, one layer", "Ceilings", "megatape pretrain"):
        assert f"**{title}**" in text


def test_keys_are_text_in_files() -> None:
    key = ResultKey("step 155m", ("rope", "sdpa", "eager"))
    assert str(key) == "step 155m/rope/sdpa/eager"
    assert ResultKey.parse(str(key)) == key
    assert ResultKey.parse("serving") == ResultKey("serving")


def rows(title: str) -> list[list[str]]:
    table = report(RESULTS).split(f"**{title}**\n\n")[1].split("\n\n")[0]
    return [cells(line) for line in table.splitlines()[2:]]


def test_ratios_are_to_the_fastest_rope() -> None:
    """The fastest RoPE is compiled at 155M. At 1B it was not measured compiled."""
    found = {tuple(row[:4]): row[5] for row in rows("Training steps")}
    assert found == {
        ("155m", "rope", "sdpa", "eager"): "1.250",
        ("155m", "rope", "sdpa", "compiled"): "1.000",
        ("155m", "tape", "sdpa", "eager"): "1.500",
        ("155m", "tape", "triton", "compiled"): "1.050",
        ("155m", "tape", "sdpa", "selective"): "1.750",
        ("1b", "rope", "sdpa", "eager"): "1.000",
        ("1b", "tape", "sdpa", "eager"): "1.200",
    }


def test_targets() -> None:
    """TAPE's fastest step counts, and its saved bytes without checkpointing."""
    assert rows("Targets") == [
        ["training step at 155m, TAPE over RoPE", "1.050", "at most 1.1", "yes"],
        ["training step at 1b, TAPE over RoPE", "1.200", "at most 1.08", "no"],
        ["saved activations at 155m, TAPE over RoPE", "1.070", "at most 1.08", "yes"],
        ["MFU of TAPE at 1b", "44%", "at least 45%", "no"],
    ]


def test_report_of_missing_results() -> None:
    assert rows("Not measured") == [
        ["step 155m/rope/flex/compiled", "RuntimeError: a / b"],
        ["step 155m", "1 failed"],
        ["serving", "left out: takes about 40 s, and 3 s of the budget were left"],
    ]
