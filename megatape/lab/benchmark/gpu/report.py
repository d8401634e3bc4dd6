"""Report on a benchmark, table.md: the tables of all parts."""

from megatape.lab.benchmark.gpu.parts import PARTS
from megatape.lab.benchmark.gpu.results import Results, measured
from megatape.lab.benchmark.gpu.tables import titled

TABLE = "table.md"


def report(results: Results) -> str:
    """Return the tables of all measured parts, and the list of what is missing."""
    # Only the modules of measured parts: another one may lack a package.
    started = {key.part for key in results if key.words}
    parts = sorted((part for part in PARTS if part.name in started), key=lambda part: part.order)
    paragraphs: list[str] = []
    for table in dict.fromkeys(part.table for part in parts):
        paragraphs += table(results)

    missing = []
    for key, result in results.items():
        if not measured(result):
            reason = result.get("error") or f"left out: {result['left out']}"
            missing.append([str(key), reason.replace("|", "/")])
    paragraphs += titled("Not measured", ["", "why"], missing)
    return "\n\n".join(paragraphs) + "\n"
