"""The transformer of megatape/hf/modeling/, with any position encoding that has code there.

An exported folder carries the model's code and that of its own encoding: transformers copies a file with what it imports
relatively.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig
from transformers.dynamic_module_utils import get_relative_imports

from megatape.config import Config, ModelConfig
from megatape.hf import modeling
from megatape.hf.families.family import FIELDS, Family, llama_fields
from megatape.hf.families.relative import rotary_fields
from megatape.hf.modeling.configuration_tape import TapeConfig
from megatape.hf.modeling.modeling_tape import TapeForCausalLM
from megatape.hf.tokenizer import SpecialTokens
from megatape.registry import ENCODINGS

CODE = Path(modeling.__path__[0])
MODEL = "modeling_tape"
# The files of an exported folder that differ by encoding. The configuration imports the name, which makes it a class of its own
# for each encoding: transformers remembers one model class for each configuration class and would run the first model's code
# for all.
NAME, CHOICE = "encoding_name", "model_encoding"

# Fields that our model section has under the same name.
_OWN = ("encoding", "head_dim", "position_size", "attention_bias", "qk_norm")

# What belongs to a position encoding keeps the end of its name.
_PREFIXES = {"position.": "position.", "attention.bias.": "self_attn.bias."}


class Tape(Family):
    """See above."""

    tag = "tape"
    code_note = (
        "The model's code is `modeling_tape.py` in this folder, and the files that it imports; it needs\n"
        "PyTorch and transformers > 5.3 and nothing else. Flash and flex attention are not supported."
    )
    remote_code = True
    undeclared = frozenset({"imports"})

    model_class = TapeForCausalLM

    def layer_name(self, name: str) -> str:
        for ours, theirs in _PREFIXES.items():
            if name.startswith(ours):
                return theirs + name.removeprefix(ours)
        return super().layer_name(name)

    def config(self, config: Config, special: SpecialTokens) -> PreTrainedConfig:
        own: dict[str, Any] = {name: getattr(config.model, name) for name in _OWN} | {
            # Positions that are drawn are those of the run's evaluations.
            "position_length": config.data.sequence_length,
            "position_seed": config.training.seed,
            "auto_map": {
                "AutoConfig": "configuration_tape.TapeConfig",
                "AutoModel": f"{MODEL}.TapeModel",
                "AutoModelForCausalLM": f"{MODEL}.TapeForCausalLM",
            },
        }
        if config.run.imports:
            own["imports"] = list(config.run.imports)
        return TapeConfig(**llama_fields(config, special) | own, architectures=["TapeForCausalLM"])

    def model_fields(self, config: PreTrainedConfig) -> dict[str, Any]:
        shared = {ours: getattr(config, theirs) for theirs, ours in FIELDS.items()}
        return shared | {name: getattr(config, name) for name in _OWN} | rotary_fields(config)

    def write_code(self, model: ModelConfig, folder: Path) -> None:
        entry = ENCODINGS[model.encoding]
        assert entry.exported is not None  # else this family does not represent the model
        module, _, name = entry.exported.partition(":")
        spec = find_spec(module)
        assert spec is not None and spec.origin is not None, f"{module}, named by megatape/registry.py, does not exist"
        source = Path(spec.origin)
        (folder / f"{NAME}.py").write_text(_name(model.encoding, entry.scalable), encoding="utf-8")
        (folder / f"{CHOICE}.py").write_text(_choice(source.stem, name), encoding="utf-8")
        shutil.copyfile(source, folder / source.name)
        needed = [CODE / f"{MODEL}.py", *_imports(source)]
        while needed:
            file = needed.pop()
            if not (folder / file.name).exists():
                shutil.copyfile(file, folder / file.name)
                needed += _imports(file)


def _imports(file: Path) -> list[Path]:
    return [CODE / f"{module}.py" for module in get_relative_imports(file)]


def _name(encoding: str, scalable: bool) -> str:
    return f'''"""The name of this model's position encoding."""

NAME = "{encoding}"
SCALABLE = {scalable}  # whether rope_parameters may change its frequencies
'''


def _choice(file: str, name: str) -> str:
    return f'''"""The position encoding of this model."""

from .encoding import Encoding
from .{NAME} import NAME, SCALABLE
from .{file} import {name}


def find_encoding(name: str) -> tuple[type[Encoding], bool]:
    """Its class, and whether rope_parameters may change its frequencies. Raises ValueError for another name."""
    if name != NAME:
        raise ValueError(f"encoding is {{name!r}}, but the code beside this configuration is that of {{NAME!r}}")
    return {name}, SCALABLE
'''
