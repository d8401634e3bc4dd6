"""pyproject.toml declares imported packages, and constraints.txt has an allowed version of each."""

import re
import sys
import tomllib
from importlib.metadata import distributions, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from megatape.commands.cli.extras import EXTRAS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = {
    extra: {canonicalize_name(line.name): line for line in map(Requirement, lines) if line.name != PROJECT["name"]}
    for extra, lines in [("", PROJECT["dependencies"]), *PROJECT["optional-dependencies"].items()]
}
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
# Their internals are read by utils/pytorch/torch_internals.py, zero/setup/internals.py, hf/modeling/, nn/fp8.py and
# tests/kernels.
BOUNDED = ("torch", "deepspeed", "transformers", "torchao", "triton")
BROUGHT = {
    "aiohttp": "fsspec",
    "functorch": "torch",
    "huggingface-hub": "transformers",
    "markupsafe": "jinja2",
    "pydantic-core": "pydantic",
    "requests": "datasets",
}
UNPINNED = {"wandb", "trackio"}  # Extras bringing other versions of installed packages


def test_imported_packages_are_declared() -> None:
    distributions = packages_distributions()
    declared = set().union(*REQUIREMENTS.values())
    for path in (ROOT / "megatape").rglob("*.py"):
        imported = set(re.findall(r"^ *(?:from|import) (\w+)(?=$|[\w.]* import | as )", path.read_text(), re.MULTILINE))
        # Python 3.14 has this module.
        for name in imported - sys.stdlib_module_names - {"compression"}:
            found = map(canonicalize_name, distributions.get(name, [name]))
            packages = {BROUGHT.get(package, package) for package in found}
            assert not packages or packages & (declared | {PROJECT["name"]}), f"{path} imports {name}"


def test_constraints_are_within_the_bounds() -> None:
    pins = {canonicalize_name(name): version for name, version in PINS.items()}
    for extra in REQUIREMENTS.keys() - UNPINNED:
        for name, requirement in REQUIREMENTS[extra].items():
            assert requirement.specifier.contains(pins[name]), f"{requirement} [{extra}]: constraints.txt has {pins[name]}"
            has_bound = ">=" in str(requirement.specifier) or "==" in str(requirement.specifier)
            assert has_bound, f"{requirement} [{extra}] has no lower bound for make lowest"


def test_pins_install_on_the_oldest_python() -> None:
    """The oldest is the first release of 3.11. pip finds no version if a pin does not support it."""
    pins = {canonicalize_name(name) for name in PINS}
    needed = {canonicalize_name(found.name): found.metadata["Requires-Python"] or "" for found in distributions()}
    oldest = PROJECT["requires-python"].removeprefix(">=") + ".0"
    refused = {name: needed[name] for name in pins & needed.keys() if not SpecifierSet(needed[name]).contains(oldest)}
    assert not refused


def test_untested_versions_are_excluded() -> None:
    """The next minor version of a package whose internals we read is untested."""
    for name in BOUNDED:
        tried = Version(PINS[name])
        requirement = next(found[name] for found in REQUIREMENTS.values() if name in found)
        assert not requirement.specifier.contains(f"{tried.major}.{tried.minor + 1}"), requirement


def test_hints_name_extras_that_have_the_package() -> None:
    for module, extra in EXTRAS.items():
        assert canonicalize_name(module) in REQUIREMENTS[extra], module
