"""Compares the stand-in with a wheel of vLLM: `python -m tests.helpers.vllm.compare WHEEL`. Nothing of vLLM runs."""

import argparse
import ast
import inspect
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.helpers.vllm.modules import CONTENT

Definition = ast.FunctionDef | ast.ClassDef


def main() -> None:
    """Compare the stand-in with a wheel of vLLM."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("wheel", type=Path, help="wheel of vLLM; nothing of it runs")
    path = parser.parse_args().wheel
    with zipfile.ZipFile(path) as wheel:
        sources = {name: wheel.read(name).decode() for name in wheel.namelist() if name.endswith(".py")}
    differences = list(_differences(sources))
    for line in differences:
        print(line)
    if differences:
        sys.exit(1)
    print(f"{path.name} has every class, function and parameter that the stand-in has")


def _differences(sources: dict[str, str]) -> Iterator[str]:
    """Yield what the stand-in has and vLLM has not: definitions, and parameters of functions and methods."""
    for module, content in CONTENT.items():
        for ours in content:
            theirs = _find_definition(sources, module, ours.__name__)
            # The package itself imports its names from elsewhere.
            is_missing = theirs is None and module != "vllm"
            if is_missing:
                yield f"{module}.{ours.__name__}: not in vLLM"
            if theirs is not None:
                for label, function, node in _functions(ours, theirs):
                    yield from _missing_parameters(label, function, node)


def _find_definition(sources: dict[str, str], module: str, name: str) -> Definition | None:
    """Find a class or function of vLLM in the file or package of a module."""
    path = module.replace(".", "/")
    for file, source in sorted(sources.items()):
        in_module = file == f"{path}.py" or file.startswith(f"{path}/")
        if not in_module or name not in source:
            continue
        for node in ast.parse(source).body:
            if isinstance(node, Definition) and node.name == name:
                return node
    return None


def _functions(ours: Any, theirs: Definition) -> Iterator[tuple[str, Callable[..., Any], ast.FunctionDef]]:
    """Yield the name, our function and vLLM's definition of a function, or of each method that both classes have."""
    if isinstance(theirs, ast.FunctionDef):
        yield ours.__name__, ours, theirs
        return
    # The plugin makes no configuration: it takes vLLM's.
    if ours.__name__ == "VllmConfig":
        return
    for node in theirs.body:
        method = vars(ours).get(getattr(node, "name", ""))
        if isinstance(node, ast.FunctionDef) and inspect.isfunction(method):
            yield f"{ours.__name__}.{node.name}", method, node


def _missing_parameters(label: str, function: Callable[..., Any], node: ast.FunctionDef) -> Iterator[str]:
    """Yield a line for each parameter of our function that vLLM's does not have."""
    theirs = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    for parameter in inspect.signature(function).parameters:
        if parameter not in theirs:
            yield f"{label}: no parameter {parameter}, only {', '.join(theirs)}"


if __name__ == "__main__":
    main()
