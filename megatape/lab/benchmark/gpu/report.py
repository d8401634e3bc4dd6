"""Text for table.md: the tables of all parts, and what is missing."""

from megatape.lab.benchmark.gpu.registry import PARTS
from megatape.lab.benchmark.gpu.results import Results
from megatape.lab.benchmark.gpu.tables import titled

TABLE = "table.md"


def report(results: Results) -> str:
    """Return the tables of all measured parts, and a list of what is missing."""
    # Import only the modules of measured parts: another one may lack a package.
    measured = {key.part for key in results if key.case}
    parts = [part for part in PARTS if part.name in measured or part.earlier_name in measured]
    parts.sort(key=lambda part: part.order)
    paragraphs: list[str] = []
    # Parts of one module share a table.
    for table in dict.fromkeys(part.table for part in parts):
        paragraphs += table(results)

    missing = []
    for key, result in results.items():
        if result.reason is not None:
            missing.append([str(key), result.reason.replace("|", "/")])
    paragraphs += titled("Not measured", ["", "why"], missing)
    return "\n\n".join(paragraphs) + "\n"
