"""Running commands on planted folders in a separate process: python -m tests.helpers.processes.attack PLAN.

PLAN: JSON of {name: words}. Prints {name: [status, output, errors, markers so far]} as its last line. Payloads leave markers in
the folder MEGATAPE_MARKERS, attempts to use the network a line in the file MEGATAPE_NETWORK."""

import io
import json
import os
import socket
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from megatape.commands.cli.main import main


def no_network(*args: Any, **kwargs: Any) -> Any:
    with open(os.environ["MEGATAPE_NETWORK"], "a") as file:
        file.write(f"{args}\n")
    raise OSError("no network in this test")


if __name__ == "__main__":
    socket.getaddrinfo = no_network
    socket.socket.connect = no_network  # type: ignore[method-assign]
    answers = {}
    for name, words in json.loads(Path(sys.argv[1]).read_text()).items():
        output = io.StringIO()
        errors = io.StringIO()
        with redirect_stdout(output), redirect_stderr(errors):
            status = main(words)
        answers[name] = (status, output.getvalue(), errors.getvalue(), os.listdir(os.environ["MEGATAPE_MARKERS"]))
    print(json.dumps(answers))
