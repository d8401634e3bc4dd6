"""Prints the tested versions of all packages."""

from megatape.utils.files.project_files import project_file
from megatape.utils.values.options import CommandOptions as Options

EXAMPLE = "megatape constraints"


def run(options: Options) -> None:
    """Print constraints.txt, the package versions that the tests ran with."""
    print(project_file("constraints.txt").read_text(), end="")
