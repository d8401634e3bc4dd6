"""Output of commands that measure."""

from collections.abc import Iterable


def show(paragraphs: Iterable[str]) -> int:
    """Print each paragraph as soon as it is ready. Returns the exit status."""
    for paragraph in paragraphs:
        print(f"{paragraph}\n", flush=True)
    return 0


def show_resumable(paragraphs: Iterable[str]) -> int:
    """`show` for a command that keeps its finished runs when it is interrupted."""
    try:
        return show(paragraphs)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("run the same command again to continue") from None
