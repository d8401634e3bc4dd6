"""Family of the transformer in megatape/hf/modeling/, which supports any position encoding.

An exported folder contains the model code, the encoding's file from training, and the files that they import. stand_ins.py
replaces everything else that the encoding's file imports from this package.
"""

from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig
from transformers.dynamic_module_utils import get_relative_import_files, get_relative_imports

from megatape.config import ModelConfig
from megatape.config.layers.layer_pattern import NO_ENCODING, shortest_pattern
from megatape.errors import UserError
from megatape.hf.exporting.carried.carried_file import file_of
from megatape.hf.exporting.carried.collect import collect_files
from megatape.hf.families.exported_model import ExportedModel
from megatape.hf.families.family import FIELDS, REQUIREMENTS, Family, llama_fields
from megatape.hf.families.llama_like import rotary_fields
from megatape.hf.modeling.configuration_tape import TapeConfig
from megatape.hf.modeling.modeling_tape import TapeForCausalLM
from megatape.registry import ENCODINGS

# Template of encodings.py in an exported folder. The configuration imports it, so that each encoding has its own configuration
# class: transformers remembers one model class per configuration class.
TABLE = '''"""Position encodings in this folder, by their names in config.json ("encoding" and "layers")."""

{imports}
from .stand_ins import Entry

ENCODINGS = {{
{entries}
}}
'''

# End of each file named in config.json. `if TYPE_CHECKING` keeps the imports from running: transformers only reads their text.
NAMED_FILES = """

from typing import TYPE_CHECKING  # noqa: E402

if TYPE_CHECKING:  # transformers before 5.10.1 copies only the files that are named in this one
{imports}
"""

# Fields that TapeConfig and our model section have under the same name.
_SAME_NAMES = (
    "encoding",
    "head_dim",
    "position_size",
    "attention_bias",
    "qk_norm",
    "layers",
    "nope_every",
    "rotary_fraction",
    "attention_scale",
    "logit_softcap",
)

# Prefixes of an encoding's parameters in attention. Names after "attention." stay the same in exports.
_IN_ATTENTION = ("attention.bias.", "attention.token_features.", "attention.sequence_features.", "attention.log_scale.")


class Tape(Family):
    """Family of TapeForCausalLM, whose exports contain model code."""

    remote_code = True
    undeclared = frozenset({"imports"})

    model_class = TapeForCausalLM

    @property
    def code_note(self) -> str:
        return (
            "The model's code is `modeling_tape.py` in this folder, and `encodings.py` names its position encoding.\n"
            f"They need {REQUIREMENTS}, and nothing else. Flash and flex attention are not supported."
        )

    def parameter_name(self, name: str) -> str:
        if name.startswith(("position_embedding.", "state_start.")):
            return f"model.{name}"
        return super().parameter_name(name)

    def layer_name(self, name: str) -> str:
        if name.startswith(_IN_ATTENTION):
            return f"self_attn.{name.removeprefix('attention.')}"
        if name.startswith("position."):
            return name
        return super().layer_name(name)

    def config(self, exported: ExportedModel) -> PreTrainedConfig:
        model = exported.model
        if model.normalization != "rms":
            raise UserError(
                f"model.normalization {model.normalization}: hf/modeling/layers.py computes rms only, so an export would be "
                "another model: add it there first"
            )
        fields = llama_fields(exported)
        for name in _SAME_NAMES:
            fields[name] = getattr(model, name)
        if model.sliding_window is not None:
            fields["layers"] = str(shortest_pattern(model.layer_kinds))
            fields["nope_every"] = None
        # Encodings that draw positions have to draw the same ones as when the run is evaluated.
        fields["position_length"] = exported.sample_length
        fields["position_seed"] = exported.seed
        fields["auto_map"] = {
            "AutoConfig": "configuration_tape.TapeConfig",
            "AutoModel": "modeling_tape.TapeModel",
            "AutoModelForCausalLM": "modeling_tape.TapeForCausalLM",
        }
        if exported.imports:
            fields["imports"] = list(exported.imports)
        return TapeConfig(**fields, architectures=["TapeForCausalLM"])

    def model_fields(self, config: PreTrainedConfig) -> dict[str, Any]:
        fields = {ours: getattr(config, theirs) for theirs, ours in FIELDS.items()}
        for name in _SAME_NAMES:
            fields[name] = getattr(config, name)
        return fields | rotary_fields(config)

    def code(self, model: ModelConfig) -> dict[str, str]:
        others = [name for name in model.pattern.encodings if name not in (model.encoding, NO_ENCODING)]
        modules: dict[str, set[str]] = {}
        imports = []
        entries = []
        for name in (model.encoding, *others):
            entry = ENCODINGS[name]
            encoding = entry.load()
            modules.setdefault(encoding.__module__, set()).add(encoding.__name__)
            imports.append(f"from .{file_of(encoding.__module__).stem} import {encoding.__name__}")
            entries.append(f'    "{name}": Entry({encoding.__name__}, scalable={entry.scalable}),')
        table = TABLE.format(imports="\n".join(imports), entries="\n".join(entries))
        modeling = TapeForCausalLM.__module__
        modules[modeling] = {"TapeModel", "TapeForCausalLM"}
        modeling_package = modeling.rpartition(".")[0]
        replaced = file_of(f"{modeling_package}.encodings")
        return {"encodings.py": table} | collect_files(modules, {"encodings.py": replaced})

    def write_code(self, model: ModelConfig, folder: Path) -> None:
        super().write_code(model, folder)
        for module in (TapeConfig.__module__, TapeForCausalLM.__module__):
            _name_needed_files(folder / file_of(module).name)


def _name_needed_files(path: Path) -> None:
    """Append imports of all files that an exported folder's entry point needs indirectly.

    transformers copies code from a local folder into a cache before running it. Until 5.10, it copied the entry point and the
    files imported by it, but not the files imported by those.

    Args:
        path: File in the exported folder that `auto_map` in config.json names. All files that it needs must exist.
    """
    needed = {Path(file).stem for file in get_relative_import_files(path)}
    unnamed = sorted(needed.difference(get_relative_imports(path)))
    imports = "\n".join(f"    from .{name} import *  # noqa: F403" for name in unnamed)
    code = path.read_text(encoding="utf-8")
    path.write_text(code + NAMED_FILES.format(imports=imports), encoding="utf-8")
