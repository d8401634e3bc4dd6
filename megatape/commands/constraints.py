"""Prints the tested versions of all packages."""

from megatape.utils.options import CommandOptions as Options
from megatape.utils.project_files import project_file

EXAMPLE = "megatape constraints"


def run(options: Options) -> None:
    """Print constraints.txt, the package versions that the tests ran with."""
    print(project_file("constraints.txt").read_text(), end="")
