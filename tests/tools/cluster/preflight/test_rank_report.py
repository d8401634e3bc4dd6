"""Preflight reports: reasons why a run would fail, and the table of all ranks."""

import dataclasses
from typing import Any

import pytest

from megatape.tools.cluster.preflight.bandwidth import Rate
from megatape.tools.cluster.preflight.rank_report import RankReport, format_report, reasons_to_fix


def report(rank: int, **changes: Any) -> RankReport:
    """Return the report of a healthy rank."""
    well = RankReport(rank, f"n{rank}", "3.11/2.13/0.19", "c0de", "c0f1", "cpu", "eth0 10.0.0.1", 0.0, 2**40)
    return dataclasses.replace(well, **changes)


def test_report_of_passed_checks() -> None:
    reports = [report(0), report(1, clock=-0.3)]
    assert reasons_to_fix(reports) == []
    text = format_report(reports, [Rate("all-reduce", True, 2**30)], [])
    assert text.splitlines()[-1] == "all checks passed"
    assert "all-reduce  correct  1.00 GiB/s per rank" in text
    assert "-300 ms" in text
    assert "all-reduce  correct  one rank moves nothing" in format_report(reports[:1], [Rate("all-reduce", True, 0.0)], [])


def test_ranks_that_could_not_exchange_data_compare_nothing() -> None:
    """A rank without an answer or a network must not be shown with a wrong clock or an unshared folder."""
    silent = RankReport(1, faults=["no answer within 20 s"])
    reports = [report(0), silent, report(2, clock=None, free=None), report(3, free=None)]
    reasons = reasons_to_fix(reports)
    lines = format_report(reports, [], reasons).splitlines()
    assert "+0 ms" in lines[1]
    assert "shared, 1.00 TiB free" in lines[1]
    for line in lines[2:4]:
        assert "not compared" in line
        assert line.rstrip().endswith("not checked")
    assert "+0 ms" in lines[4]
    assert "NOT SHARED" in lines[4]
    assert "nan" not in "\n".join(lines)
    assert reasons == ["rank 1 (): no answer within 20 s"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"versions": "3.12/2.13/0.19"},
            'versions of Python, torch or DeepSpeed differ: "3.11/2.13/0.19" on ranks 0, 2 (n0, ...), "3.12/2.13/0.19" on',
        ),
        ({"code": "beef"}, 'versions of megatape differ: "c0de" on ranks 0, 2 (n0, ...), "beef" on rank 1 (n1)'),
        ({"config": "beef"}, 'configurations differ: "c0f1" on ranks 0, 2 (n0, ...), "beef" on rank 1 (n1)'),
        ({"device": "H100"}, 'devices differ: "cpu" on ranks 0, 2 (n0, ...), "H100" on rank 1 (n1)'),
        ({"clock": 7.0}, "clocks differ from rank 0's (n1 +7.0 s)"),
        ({"free": 2**20}, "only 1.00 MiB free in run.directory"),
        ({"faults": ["no such interface"]}, "rank 1 (n1): no such interface"),
    ],
)
def test_each_fault_is_named_with_its_ranks(changes: dict[str, Any], message: str) -> None:
    [reason] = reasons_to_fix([report(0), report(1, **changes), report(2)])
    assert reason.startswith(message)
