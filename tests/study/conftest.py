"""Children of studies that import nothing."""

import importlib
from pathlib import Path

import pytest

from megatape.study.children import Children
from tests.workers import Workers


@pytest.fixture
def quick_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children of a study are forks of the test server, which train, or functions of this process, which measure."""

    def run(self: Children, words: list[str], environment: dict[str, str], log: Path) -> int:
        if "pretrain" not in words:
            _, _, module, *arguments = words
            code: int = importlib.import_module(module).main(arguments)
            return code
        with Workers(words[words.index("pretrain") :], 1, log.parent / "workers") as workers:
            (status,) = workers.statuses()
            log.write_text(workers.logs())
        assert status is not None
        return status

    monkeypatch.setattr(Children, "run", run)
