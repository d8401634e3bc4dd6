"""Code of exported models: each has the code of its own encoding, also of one from outside the package."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from megatape.checkpoint.load.reader import CheckpointReader
from megatape.config import parse_config
from megatape.data.training.batches import positions
from megatape.distributed import layout, mesh
from megatape.errors import UserError
from megatape.hf.exporting.exporter import export
from megatape.hf.loading.load import load_exported
from megatape.hf.modeling import stand_ins
from megatape.imports import import_given
from megatape.model.build import build_model
from megatape.nn import linear, parameters
from megatape.registry import ENCODINGS, EncodingEntry
from megatape.tools.planner.report.report import report
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.exports import MIXED
from tests.helpers.models.learned_slopes import START
from tests.helpers.models.memory_checkpoint import memory_checkpoint
from tests.helpers.models.own_encoding import LINE
from tests.helpers.processes.load import scaled
from tests.helpers.processes.workers import ROOT, run_workers

CARRIED = {"configuration_tape", "modeling_tape", "attention_layer", "layers", "new_tokens", "attention", "cache", "positions"}
CARRIED |= {"cache_buffer", "cache_layers", "stand_ins", "encodings"}
# Modules also used in training
CARRIED |= {"encoding", "bias", "rotation", "log_scale", "layer_pattern", "windows"}


@pytest.mark.slow
def test_own_encoding_trains_plans_and_exports(
    raw_config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENCODINGS, *next(iter(LINE.items())))
    raw_config["model"]["encoding"] = "learned_slopes"
    case = {"name": "new", "set": {"zero.stage": 3, "parallel.tp": 2}}
    (answers, _) = run_workers(
        "tests.helpers.models.own_encoding:train", 2, {"config": raw_config, "cases": [case]}, tmp_path / "workers"
    )
    assert answers == [{"step": 0, "samples": 0}]

    checkpoint = CheckpointReader(tmp_path / "run" / "new" / "checkpoints" / "step-00000004")
    slope = checkpoint.tensor("blocks.0.attention.bias.slope")
    # each head's went its own way
    assert slope.shape == (8,)
    assert slope.unique().numel() == 8
    assert 1e-3 < float((slope - START).abs().max()) < 4 * 3 * 1e-2  # four Adam steps at three times the learning rate

    assert "parameters" in report(parse_config(raw_config, "test"))

    export(checkpoint, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").glob("*.py")}
    assert names == {f"{name}.py" for name in CARRIED | {"learned_slopes"}}
    model = build_model(checkpoint.config.model)
    model.load_state_dict({name: checkpoint.tensor(name) for name in checkpoint.names()})
    tokens = torch.arange(3, 33)[None]
    with torch.no_grad():
        expected = model(tokens, torch.arange(30)[None])
        assert_close(load_exported(tmp_path / "out").model(tokens).logits, expected, bounds.EXPORTED)
        remote = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
        assert remote.__module__.startswith("transformers_modules.")
        assert_close(remote(tokens).logits, expected, bounds.EXPORTED)


def write_own(monkeypatch: pytest.MonkeyPatch, path: Path, code: str) -> None:
    """Write `code`, which defines the encoding class Own, to a new file, import it and register it as `own`."""
    path.write_text(code)
    import_given(str(path))
    monkeypatch.setitem(ENCODINGS, "own", EncodingEntry(f"{path.stem}:Own", "own"))


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        (
            "own",
            "from megatape.nn.linear import RowLinear\nclass Own(Encoding): layer = RowLinear",
            "own.py, line 2: megatape.nn.linear.RowLinear is not in exported models, .* and Own needs it: write",
        ),
        (
            "own",
            "import torch, megatape.config\nclass Own(Encoding): config_class = megatape.config.Config",
            "own.py, line 2: megatape.config is not in exported models",
        ),
        (
            "own",
            "class Own(Encoding):\n    def state(self, positions):\n        from megatape.config import Config\n",
            "own.py, line 4: megatape.config.Config is not in exported models",
        ),
        (
            "own",
            "from megatape.config import Config\nFIELDS = tuple(Config.model_fields)\nclass Own(Encoding): size = len(FIELDS)",
            "own.py, line 2: megatape.config.Config is not in exported models, .* and Own needs it",
        ),
        (
            "own",
            "from megatape.config import Config\nNAMES = []\nNAMES.extend(Config.model_fields)\nclass Own(Encoding): a = NAMES",
            "own.py, line 2: megatape.config.Config is not in exported models, .* and NAMES needs it",
        ),
        ("cache", "class Own(Encoding): pass", "cache.py: exports have another cache.py: rename the file"),
    ],
)
def test_files_that_exports_cannot_carry(
    name: str, lines: str, message: str, sentencepiece_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"from megatape.encodings.encoding import Encoding\n{lines}"
    write_own(monkeypatch, tmp_path / f"{name}.py", code)
    checkpoint, _ = memory_checkpoint(sentencepiece_model, encoding="own")
    with pytest.raises(UserError, match=message):
        export(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("own_modules")
def test_files_beside_an_encoding_are_carried(
    sentencepiece_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sizes.py").write_text("SIZE = 3")
    code = "from megatape.encodings.encoding import Encoding\n{line}\nclass Own(Encoding): size = SIZE"
    monkeypatch.syspath_prepend(tmp_path)
    for name, line in (("good", "from .sizes import SIZE"), ("bad", "from . import sizes\nSIZE = sizes.SIZE")):
        (package / f"{name}.py").write_text(code.replace("{line}", line))
        monkeypatch.setitem(ENCODINGS, name, EncodingEntry(f"own_package.{name}:Own", "own"))
    export(memory_checkpoint(sentencepiece_model, encoding="good")[0], tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert model.model.encoding.size == 3
    with pytest.raises(UserError, match="bad.py, line 2: .*sizes is not in exported models"):
        export(memory_checkpoint(sentencepiece_model, encoding="bad")[0], tmp_path / "bad")


@pytest.mark.usefixtures("own_modules")
def test_what_only_training_needs_is_not_carried(
    sentencepiece_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A multi-line import, the registry line and the program are dropped. A constant below them stays."""
    kept = """class Own(Encoding):
    def __init__(self, config): super().__init__(config); self.size = SIZE
"""
    code = (
        f"""from megatape.encodings.encoding import (
    Encoding,
)
from megatape.registry import (
    ENCODINGS, EncodingEntry
)
{kept}"""
        + """
ENCODINGS["other"] = EncodingEntry(
    f"{__name__}:Own", "other"
)
if __name__ == "__main__":
    import of_no_package
SIZE = 3
"""
    )
    monkeypatch.delitem(ENCODINGS, "other", raising=False)
    write_own(monkeypatch, tmp_path / "own.py", code)
    export(memory_checkpoint(sentencepiece_model, encoding="own")[0], tmp_path / "out")
    carried = (tmp_path / "out" / "own.py").read_text()
    assert carried == f"from .encoding import (\n    Encoding,\n)\n{kept}\nSIZE = 3\n"
    del ENCODINGS["other"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert model.model.encoding.size == 3


@pytest.mark.usefixtures("own_modules")
def test_an_encoding_is_carried_without_the_optimizer_beside_it(sentencepiece_model: Path, tmp_path: Path) -> None:
    """One file has an encoding, an optimizer, a schedule and their registry lines, and imports modules missing from exports."""
    encoding = (ROOT / "examples/add_encoding.py").read_text()
    others = (ROOT / "tests/helpers/models/own_optimizer.py").read_text()
    added = 'import fractions\nregistry.SCHEDULES["stairs"] = STAIRS\nprint(fractions.Fraction(STAIRS.options.count("o")))\n'
    path = tmp_path / "everything.py"
    path.write_text(encoding + others + added)
    import_given(str(path))
    checkpoint, ours = memory_checkpoint(sentencepiece_model, encoding="kerple")
    export(checkpoint, tmp_path / "out")
    carried = (tmp_path / "out" / "everything.py").read_text()
    assert "class Kerple(Encoding)" in carried
    for absent in ("megatape", "Spectral", "pydantic.Field", "ENCODINGS", "__main__", "fractions"):
        assert absent not in carried.partition('"""\n')[2], absent
    assert "from pydantic import" not in carried
    tokens = torch.arange(3, 33)[None]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
    with torch.no_grad():
        expected = ours.eval()(tokens, torch.arange(30)[None])
        assert_close(model(tokens).logits, expected, bounds.EXPORTED)


def test_the_stand_ins_have_the_signatures_of_training() -> None:
    """Stand-ins take the parameters of the functions that they replace. Only loading an export would notice a missing one."""
    places = {
        mesh: ("Axis",),
        parameters: ("parameter", "Uniform"),
        linear: ("ColumnLinear",),
        layout: ("local_tokens", "channels_to_tokens"),
        positions: ("Positions",),
    }
    for module, names in places.items():
        for name in names:
            theirs, ours = (list(inspect.signature(getattr(place, name)).parameters) for place in (module, stand_ins))
            if name == "Axis":
                theirs = [word for word in theirs if word in ("size", "rank")]
            elif name == "parameter":
                theirs = [*theirs[: theirs.index("init") + 1], "training"]
            elif name == "ColumnLinear":
                theirs.remove("linear_function")  # Chosen by training, not by encodings
            elif name == "channels_to_tokens":
                theirs = theirs[1:]
                ours = ours[1:]
            assert ours == theirs, name


def test_folders_of_one_name_keep_their_own_code(sentencepiece_model: Path, tmp_path: Path) -> None:
    """transformers maps configuration classes to model classes for the whole process."""
    for encoding in ("alibi", "fire", "alibi"):
        folder = tmp_path / encoding / "exported"
        if not folder.exists():
            export(memory_checkpoint(sentencepiece_model, encoding=encoding)[0], folder)
        model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
        assert type(model.model.encoding).__name__.lower() == model.config.encoding == encoding


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_exported_code_imports_only_torch_and_transformers(encoding: str, sentencepiece_model: Path, tmp_path: Path) -> None:
    """The code also imports the other exported files, and needs all of them."""
    export(memory_checkpoint(sentencepiece_model, encoding=encoding, **MIXED)[0], tmp_path / "out")
    needed = {"modeling_tape", "new_tokens"}
    for path in (tmp_path / "out").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1
                assert node.module
                needed.add(node.module)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
                allowed = {"torch", "transformers", *sys.stdlib_module_names}
                assert {name.split(".")[0] for name in names} <= allowed, path
    assert {path.stem for path in (tmp_path / "out").glob("*.py")} == needed >= CARRIED


@pytest.mark.slow
def test_every_encoding_runs_without_this_package(sentencepiece_model: Path, tmp_path: Path) -> None:
    """Logits equal those of the installed classes, and a new model can be created, in one process."""
    program = """
import sys
sys.modules["megatape"] = None
import torch
from transformers import AutoModelForCausalLM
for folder in sys.argv[1:]:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    with torch.no_grad():
        torch.save(model(torch.arange(3, 33)[None]).logits, f"{folder}/logits.pt")
    AutoModelForCausalLM.from_config(model.config, trust_remote_code=True)
"""
    folders = [tmp_path / encoding for encoding in ENCODINGS]
    for folder in folders:
        export(memory_checkpoint(sentencepiece_model, encoding=folder.name, **MIXED)[0], folder)
    subprocess.run([sys.executable, "-c", program, *map(str, folders)], check=True, timeout=scaled(240), cwd="/")
    for folder in folders:
        with torch.no_grad():
            expected = load_exported(folder).model(torch.arange(3, 33)[None]).logits
        assert_close(torch.load(folder / "logits.pt"), expected, bounds.EXPORTED, what=folder.name)
