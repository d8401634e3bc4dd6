"""Journal of a soak, for repeating failures."""

import json
import time
from pathlib import Path
from typing import Any


class Journal:
    """File with a JSON line for each event."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._started = time.monotonic()

    def write(self, **facts: Any) -> None:
        """Add and print a line, with the seconds since the soak started."""
        line = json.dumps({"seconds": round(time.monotonic() - self._started, 2), **facts})
        with self._path.open("a") as file:
            print(line, file=file)
        print(line, flush=True)
