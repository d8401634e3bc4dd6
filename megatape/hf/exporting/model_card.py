"""Fills the template model_card.md, the README.md of an export."""

from pathlib import Path
from typing import NamedTuple

from megatape.accounting.whole_model.parameters import count_parameters
from megatape.config import ModelConfig
from megatape.encodings import encoding_of
from megatape.hf.dtypes import dtype_name
from megatape.hf.exporting.origins import Origins
from megatape.hf.families.exported_model import ExportedModel
from megatape.hf.families.family import Family
from megatape.registry import ENCODINGS

UNKNOWN_ORIGINS = Origins()
TEMPLATE = Path(__file__).with_suffix(".md")
HUB_URL = "https://huggingface.co"
BASE_MODEL_NOTE = " It is a base model: it continues text and has had no\ninstruction tuning or safety training."


class TrainingSummary(NamedTuple):
    """Training of a model, as described in its card.

    Attributes:
        steps: Number of optimizer steps.
        tokens: Number of training tokens.
        init_from: Model that training started from, None for random initial weights.
        samples: Kind of training samples (data.samples).
    """

    steps: int
    tokens: int
    init_from: str | None
    samples: str


def model_card(
    exported: ExportedModel,
    family: Family,
    training: TrainingSummary,
    tokenizer: str,
    origins: Origins = UNKNOWN_ORIGINS,
) -> str:
    """Return the README.md of an exported model.

    Args:
        exported: Exported model.
        family: Family of the exported model.
        training: Summary of the training.
        tokenizer: Paragraph about the tokenizer.
        origins: Base model, license and data sets.
    """
    model = exported.model
    encoding = ENCODINGS[model.encoding].description
    if model.scaling is not None:
        encoding += f" (frequencies scaled: {model.scaling.kind})"

    origin = "trained with MegaTAPE"
    kind = ""
    if training.init_from:
        origin += " from the weights of another model"
    elif training.samples != "examples":
        kind = BASE_MODEL_NOTE

    trust = ""
    if family.remote_code:
        trust = ", trust_remote_code=True"

    return TEMPLATE.read_text(encoding="utf-8").format(
        tags=family.config_class.model_type,
        title=f"Language model with `{model.encoding}` positions",
        encoding=encoding,
        origin=origin,
        kind=kind,
        trust=trust,
        code=family.code_note,
        tokens=training.tokens,
        steps=training.steps,
        length=exported.sample_length,
        precision=dtype_name(exported.dtype),
        imports=_imports_row(exported),
        tokenizer=tokenizer,
        metadata=_metadata(origins),
        started=_base_model_row(origins),
        data_sets=_data_sets_row(origins),
        unknown=_unknown(origins),
        **_shape_fields(model),
    )


def _shape_fields(model: ModelConfig) -> dict[str, object]:
    """Return the fields of the template about the shape of a model."""
    position = ""
    if encoding_of(model).carries_state:
        position = f"| position size | {model.position_size} |\n"
    return {
        "parameters": count_parameters(model).total,
        "layers": model.num_layers,
        "hidden": model.hidden_size,
        "mlp": model.mlp_size,
        "heads": model.num_heads,
        "kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "position": position,
        "vocabulary": model.vocab_size,
    }


def _imports_row(exported: ExportedModel) -> str:
    """Return the table row about the user's modules, "" if there are none."""
    if not exported.imports:
        return ""
    names = ", ".join(f"`{name}`" for name in exported.imports)
    return f"| trained with user modules | {names} |\n"


def _metadata(origins: Origins) -> str:
    """Return the lines of YAML metadata about a model's origins, with the keys of the Hugging Face hub."""
    lines = []
    if origins.base_model is not None:
        lines.append(f"base_model: {origins.base_model}\n")
    if origins.license is not None:
        lines.append(f"license: {origins.license}\n")
    if origins.data_sets:
        lines.append("datasets:\n")
        lines += [f"- {name}\n" for name in origins.data_sets]
    return "".join(lines)


def _base_model_row(origins: Origins) -> str:
    """Return the table row about the base model, "" if it is unknown."""
    name = origins.base_model
    if name is None:
        return ""
    return f"| started from | [{name}]({HUB_URL}/{name}) |\n"


def _data_sets_row(origins: Origins) -> str:
    """Return the table row about the data sets, "" if they are unknown."""
    if not origins.data_sets:
        return ""
    links = ", ".join(f"[{name}]({HUB_URL}/datasets/{name})" for name in origins.data_sets)
    return f"| training data | {links} |\n"


def _unknown(origins: Origins) -> str:
    """Return the beginning of the sentence about what the user has to add to the card."""
    unknown = []
    if not origins.data_sets:
        unknown.append("the texts that the model was trained on")
    if origins.license is None:
        unknown.append("its license")
    subject = ", ".join(unknown)
    if not subject:
        return "Its evaluation is"
    return f"{subject[0].upper()}{subject[1:]} and its evaluation are"
