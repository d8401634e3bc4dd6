"""Files that users wrote for version 0.1 keep working: old names of modules and definitions, each with a warning."""

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

from megatape.moved_modules import MOVED, RENAMED, current_name
from tests.helpers.checks.import_graph import MODULES, ROOT
from tests.helpers.processes.load import scaled

IMPORTS = """
import warnings
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    import megatape.parallel.mesh
    from megatape.runtime import topology
    from megatape import units
    from megatape.parallel.mesh import Axis
import megatape.distributed.mesh
assert megatape.parallel.mesh is megatape.distributed.mesh
assert megatape.distributed.mesh.__spec__.name == megatape.distributed.mesh.__name__ == "megatape.distributed.mesh"
assert Axis is megatape.distributed.mesh.Axis
assert [str(warning.message) for warning in found] == [
    "megatape.parallel.mesh has moved: import megatape.distributed.mesh instead",
    "megatape.runtime.topology has moved: import megatape.distributed.topology instead",
    "megatape.units has moved: import megatape.utils.text.units instead",
], found
assert all(warning.filename == "<string>" for warning in found), "a warning names the line that imports"
"""


def test_old_names_of_modules() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], cwd=ROOT, capture_output=True, text=True, timeout=scaled(120))
    assert done.returncode == 0, done.stderr


def test_every_move_leads_to_a_module() -> None:
    for package, moves in MOVED.items():
        for old, new in moves.items():
            if old == "*":
                assert any(module.startswith(new.removesuffix("*")) for module in MODULES), new
            else:
                assert new in MODULES, new
                assert current_name(f"{package}.{old}") == new
                assert f"{package}.{old}" not in MODULES, "a move must not hide a module"


def test_modules_that_never_existed() -> None:
    for name in ("megatape.runtime.nothing", "megatape.tasks.nothing", "megatape.nothing"):
        with pytest.raises(ModuleNotFoundError) as raised:
            import_module(name)
        assert raised.value.name == name
    assert find_spec("megatape.runtime.nothing") is None


@pytest.mark.parametrize("module", RENAMED)
def test_old_names_of_definitions(module: str) -> None:
    loaded = import_module(module)
    for old, target in RENAMED[module].items():
        new_module, _, new_name = target.partition(":")
        with pytest.warns(FutureWarning, match=f"{module}.{old} is now {new_module}.{new_name}"):
            found = getattr(loaded, old)
        assert found is getattr(import_module(new_module), new_name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        loaded.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("megatape.parallel.remat", "linear"),
        ("megatape.parallel.remat", "recompute"),
        ("megatape.parallel.recompute", "recompute"),
        ("megatape.runtime.launchers", "discover"),
        ("megatape.runtime.launchers", "quiet_launcher"),
        ("megatape.runtime.store", "Messages"),
        ("megatape.checkpoint.manifest", "load_manifest"),
        ("megatape.checkpoint.reader", "CheckpointReader"),
        ("megatape.checkpoint.reader", "load_model"),
        ("megatape.checkpoint.tensors", "StoredWeights"),
        ("megatape.checkpoint.writer", "write_checkpoint"),
        ("megatape.zero.distributed", "initialize_distributed"),
        ("megatape.zero.matrices", "WholeMatrices"),
        ("megatape.zero.replicas", "find_differences"),
        ("megatape.zero.state", "ZeroState"),
        ("megatape.zero.stopwatch", "Stopwatch"),
        ("megatape.report.runs", "overview"),
        ("megatape.report.suite_page", "write_page"),
    ],
)
@pytest.mark.filterwarnings("ignore:megatape")
def test_names_of_version_0_1_resolve(module: str, name: str) -> None:
    """Encodings of users import some of these, and CHANGELOG.md promises the modules of `report`."""
    assert getattr(import_module(module), name)
