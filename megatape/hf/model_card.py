"""The README.md of an exported model, from the template in model_card.md."""

from pathlib import Path

from megatape.config import Config
from megatape.hf.checkpoint import dtype_name, stored_dtype
from megatape.hf.families.family import Family
from megatape.model.accounting import count_parameters
from megatape.model.encodings import encoding_of
from megatape.registry import ENCODINGS

_TEMPLATE = Path(__file__).with_suffix(".md")
_BASE = " It is a base model: it continues text and has had no\ninstruction tuning or safety training."


def model_card(config: Config, family: Family, step: int, tokens: int, tokenizer: str) -> str:
    """README.md of a model that was exported as `family` after `step` optimizer steps on `tokens` tokens.

    tokenizer: a paragraph about it.
    """
    model = config.model
    description = ENCODINGS[model.encoding].description
    return _TEMPLATE.read_text(encoding="utf-8").format(
        tags=family.config_class.model_type,
        title=f"Language model with `{model.encoding}` positions",
        encoding=description + (f" (frequencies scaled: {model.scaling.kind})" if model.scaling else ""),
        origin="trained with MegaTAPE" + (" from the weights of another model" if config.training.init_from else ""),
        kind=_BASE if config.data.samples != "examples" and not config.training.init_from else "",
        trust=", trust_remote_code=True" if family.remote_code else "",
        code=family.code_note,
        parameters=count_parameters(model).total,
        layers=model.num_layers,
        hidden=model.hidden_size,
        mlp=model.mlp_size,
        heads=model.num_heads,
        kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        position=f"| position size | {model.position_size} |\n" if encoding_of(model).carries_state else "",
        vocabulary=model.vocab_size,
        tokens=tokens,
        steps=step,
        length=config.data.sequence_length,
        precision=dtype_name(stored_dtype(config)),
        imports=f"| trained with modules of a user's own | {', '.join(f'`{name}`' for name in config.run.imports)} |\n"
        if config.run.imports
        else "",
        tokenizer=tokenizer,
    )
