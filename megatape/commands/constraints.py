"""megatape constraints: `megatape constraints`."""

from megatape.utils.options import CommandOptions as Options
from megatape.utils.project_files import project_file


def run(options: Options) -> None:
    """Print constraints.txt, the package versions that the tests ran with."""
    print(project_file("constraints.txt").read_text(), end="")
