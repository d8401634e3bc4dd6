"""Part of the GPU benchmark that runs the tests marked gpu."""

import io
from pathlib import Path

import pytest

from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.results import Key
from megatape.lab.benchmark.gpu.tests import measure


@pytest.mark.parametrize("fault", ["no tests", "pytest cannot start"])
def test_part_fails_if_pytest_cannot_run(tmp_path: Path, fault: str) -> None:
    folder = tmp_path / "tests/gpu"
    folder.mkdir(parents=True)
    if fault == "pytest cannot start":
        (folder / "conftest.py").write_text("import no_such_package")
        (folder / "test_any.py").write_text("def test_any(): pass")
    with pytest.raises(RuntimeError, match="pytest ran none of the tests"):
        measure(Bench("tests", "cpu", True, set(), io.StringIO()), folder)


def test_part_does_not_fail_if_all_tests_have_results(tmp_path: Path) -> None:
    """pytest runs none of them."""
    folder = tmp_path / "tests/gpu"
    folder.mkdir(parents=True)
    (folder / "test_known.py").write_text("import pytest\n\n@pytest.mark.gpu\ndef test_known(): pass")
    measure(Bench("tests", "cpu", True, {Key("tests", ("test_known.py::test_known",))}, io.StringIO()), folder)
