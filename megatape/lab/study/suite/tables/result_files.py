"""Files of a suite's results: records, tables and page."""

from pathlib import Path

from megatape.lab.study.suite.page import write_page
from megatape.lab.study.suite.scores.record_files import write_records
from megatape.lab.study.suite.tables.sections import summarize
from megatape.lab.study.suite.tables.suite_results import SuiteResults
from megatape.utils.files.atomic import write_atomically

RESULTS = "results.jsonl"
TABLES = "suite.md"
PAGE = "suite.html"


def write_results(results: SuiteResults, out: Path) -> str:
    """Write the files, and return the tables with the paths. Readers always see complete files.

    Args:
        results: Results of the finished runs.
        out: Suite folder.
    """
    tables_text = summarize(results.summary, results.not_run)
    text = "\n\n".join([f"    {results.command}", *results.head, tables_text])
    records = out / RESULTS
    tables = out / TABLES
    page = out / PAGE
    write_records(records, results.records)
    write_atomically(tables, f"{text}\n".encode())
    write_page(results, page)
    return f"{text}\n\nwrote {records}, {tables}, {page}"
