"""Files of a suite's results: records, tables and page."""

from collections.abc import Callable
from pathlib import Path

from megatape.lab.study.suite.scores.record_files import write_records
from megatape.lab.study.suite.tables.sections import summarize
from megatape.lab.study.suite.tables.suite_results import SuiteResults

RESULTS = "results.jsonl"
TABLES = "suite.md"
PAGE = "suite.html"

# Writes a suite's page to a file.
WritePage = Callable[[SuiteResults, Path], None]


def write_results(results: SuiteResults, out: Path, write_page: WritePage) -> str:
    """Write the files, and return the tables with the paths.

    Args:
        results: Results of the finished runs.
        out: Suite folder.
        write_page: `write_page` of megatape/lab/report/suite_page.py.
    """
    text = "\n\n".join([f"    {results.command}", *results.controls, summarize(results.records, results.not_run)])
    records = out / RESULTS
    tables = out / TABLES
    page = out / PAGE
    write_records(records, results.records)
    tables.write_text(text + "\n", encoding="utf-8")
    write_page(results, page)
    return f"{text}\n\nwrote {records}, {tables}, {page}"
