"""Private names of DeepSpeed and torch are only used in the files that tests/private_names.md lists."""

import ast
import re

from tests.helpers.checks.pages import ROOT
from tests.helpers.checks.private_names import PRIVATE_NAMES

# File and folder with private names of DeepSpeed
USERS_OF_DEEPSPEED = ("megatape/zero/setup/internals.py", "megatape/zero/stages/")
# Private attributes on torch's tensors, storages and operators
TORCH_ATTRIBUTES = {"_backward_hooks", "_cdata", "_schema", "_type", "_version"}


def test_names_of_deepspeed_are_in_one_file_and_one_folder() -> None:
    private: set[str] = set()
    for names in PRIVATE_NAMES.values():
        private.update(names)
    # These names are public in other classes.
    private -= {"compile", "original_muon", "enable_nvtx"}

    for path in (ROOT / "megatape").rglob("*.py"):
        if path.relative_to(ROOT).as_posix().startswith(USERS_OF_DEEPSPEED):
            continue
        attributes = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        used = attributes & private
        assert not used, f"{path}: {used} belong to megatape/zero/setup/internals.py or stages/"


def test_files_with_names_of_torch_are_listed() -> None:
    """The last table of tests/private_names.md has exactly these files. Others use utils/pytorch/torch_internals.py."""
    page = (ROOT / "tests/private_names.md").read_text()
    table = page.partition("Names of torch in other files")[2]
    listed = set(re.findall(r"`([\w/]+\.py)`", table))
    using = {}
    for path in (ROOT / "megatape").rglob("*.py"):
        name = path.relative_to(ROOT / "megatape").as_posix()
        # Exports carry hf/modeling/, so it cannot import torch_internals.py.
        if name == "utils/pytorch/torch_internals.py" or name.startswith("hf/modeling/"):
            continue
        code = path.read_text()
        # Parsing all files takes seconds.
        if not re.search(r"_cdata|_schema|_type|_version|torch[\w.]*\._|from torch[\w.]* import _", code):
            continue
        private = {text for node in ast.walk(ast.parse(code)) for text in private_names(node)}
        if private:
            using[name] = private
    assert using.keys() == listed, using


def private_names(node: ast.AST) -> list[str]:
    """Return the private names of torch in a node of a syntax tree: attributes, imports, and names of modules as text."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str) and re.fullmatch(r"torch(\.\w+)*\._\w+(\.\w+)*", node.value):
            return [node.value]
        return []
    if not isinstance(node, ast.Attribute | ast.Import | ast.ImportFrom):
        return []
    text = ast.unparse(node)
    if isinstance(node, ast.Attribute) and node.attr in TORCH_ATTRIBUTES and not text.startswith("self."):
        return [text]
    return re.findall(r"\btorch\.(?:\w+\.)*_\w+|from torch[\w.]* import _\w+", text)
