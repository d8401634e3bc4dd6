"""The GPU benchmark's part running the tests marked gpu."""

import io
from pathlib import Path

import pytest

from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.parts.tests import measure
from megatape.lab.benchmark.gpu.results import ResultKey


@pytest.mark.parametrize("fault", ["no tests", "pytest cannot start"])
def test_part_fails_if_pytest_cannot_run(tmp_path: Path, fault: str) -> None:
    folder = tmp_path / "tests/gpu"
    folder.mkdir(parents=True)
    if fault == "pytest cannot start":
        (folder / "conftest.py").write_text("import no_such_package")
        (folder / "test_any.py").write_text("def test_any(): pass")
    with pytest.raises(RuntimeError, match="pytest ran none of the tests"):
        measure(Bench("tests", "cpu", True, set(), io.StringIO()), folder)


def test_tests_run_although_another_file_cannot_be_imported(tmp_path: Path) -> None:
    """pytest's default is to end before the first test. The table would then not mention the tests that have not run."""
    folder = tmp_path / "tests/gpu"
    folder.mkdir(parents=True)
    (folder / "test_broken.py").write_text("import no_such_package")
    (folder / "test_good.py").write_text("import pytest\n\n@pytest.mark.gpu\ndef test_good(): pass")
    output = io.StringIO()
    measure(Bench("tests", "cpu", True, set(), output), folder)
    assert "no_such_package" in output.getvalue()
    assert "test_good.py::test_good" in output.getvalue()


def test_part_fails_if_a_test_ends_the_session(tmp_path: Path) -> None:
    """The tests after it have no outcome."""
    folder = tmp_path / "tests/gpu"
    folder.mkdir(parents=True)
    ending = "import pytest\n\n@pytest.mark.gpu\ndef test_ending(): raise KeyboardInterrupt\n"
    (folder / "test_ending.py").write_text(ending + "\n@pytest.mark.gpu\ndef test_next(): pass\n")
    with pytest.raises(RuntimeError, match="not all of them"):
        measure(Bench("tests", "cpu", True, set(), io.StringIO()), folder)


def test_part_does_not_fail_if_all_tests_have_results(tmp_path: Path) -> None:
    """pytest runs none of them."""
    folder = tmp_path / "tests/gpu"
    folder.mkdir(parents=True)
    (folder / "test_known.py").write_text("import pytest\n\n@pytest.mark.gpu\ndef test_known(): pass")
    measure(Bench("tests", "cpu", True, {ResultKey("tests", ("test_known.py::test_known",))}, io.StringIO()), folder)
