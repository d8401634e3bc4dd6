"""megatape study: the studies of docs/studies.md and the measurements behind docs/benchmarks.md."""

from collections.abc import Iterable


def show(paragraphs: Iterable[str]) -> int:
    """Print each as soon as it is known. Returns the exit status."""
    for paragraph in paragraphs:
        print(f"{paragraph}\n", flush=True)
    return 0
