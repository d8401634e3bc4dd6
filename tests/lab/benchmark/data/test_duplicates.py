"""Benchmarking the search for duplicates: it finds all forged ones, with several processes and ranges."""

import re

from megatape.lab.benchmark.data import duplicates


def test_all_forged_duplicates_are_found() -> None:
    summary, table = duplicates.report(50_000, 2, 2**20)

    counts = re.match("50,000 hashes, ([0-9,]+) of them duplicates, ([0-9,]+) found", summary)
    assert counts is not None
    assert counts[1] == counts[2]
    assert 14_000 < int(counts[1].replace(",", "")) < 16_000
    assert "decision pass, 2 processes" in table
