"""megatape constraints: `megatape constraints`."""

from megatape.utils.options import CommandOptions as Options
from megatape.utils.project_files import project_file


def run(options: Options) -> None:
    """Print the versions with which this version was tested."""
    print(project_file("constraints.txt").read_text(), end="")
