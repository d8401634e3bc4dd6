"""The README.md of an exported model."""

from megatape.config import Config
from megatape.hf.mapping import is_llama
from megatape.model.accounting import count_parameters
from megatape.registry import ENCODINGS

_TEMPLATE = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [{tags}]
---
# {title}

A decoder-only language model with {encoding}, pretrained with MegaTAPE. It is a base model: it continues text and has had no
instruction tuning or safety training.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # this folder
tokenizer = AutoTokenizer.from_pretrained(folder{trust})
model = AutoModelForCausalLM.from_pretrained(folder{trust})
prompt = tokenizer("Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**prompt, max_new_tokens=50)[0], skip_special_tokens=True))
```

{code}

| | |
|---|---|
| parameters | {parameters:,} |
| layers | {layers} |
| hidden size, MLP size | {hidden}, {mlp} |
| query heads, key/value heads, head size | {heads}, {kv_heads}, {head_dim} |
{position}| vocabulary | {vocabulary:,} |
| trained on | {tokens:,} tokens, {steps:,} steps |
| training samples | {length:,} tokens each |
| weights stored as | {precision} |

The tokenizer puts `<s>` in front of a text, as every training document had it, and does not add `</s>`. Batches are padded on the
left, with `<unk>`. The texts that the model was trained on, its license and its evaluation are not recorded in the checkpoint: add
them here before publishing.
"""


def model_card(config: Config, step: int, tokens: int) -> str:
    """README.md of a model that was exported after `step` optimizer steps on `tokens` tokens."""
    model = config.model
    tape = model.encoding.startswith("tape")
    own_code = not is_llama(model)
    return _TEMPLATE.format(
        tags="tape" if own_code else "llama",
        title="TAPE language model" if tape else f"Language model with {ENCODINGS[model.encoding].description}",
        encoding=ENCODINGS[model.encoding].description
        + (f" (frequencies scaled: {model.scaling.kind})" if model.scaling else ""),
        trust=", trust_remote_code=True" if own_code else "",
        code=(
            "The model's code is `modeling_tape.py` in this folder; it needs PyTorch and transformers > 5.3 and nothing else. Flash and\n"
            "flex attention are not supported."
            if own_code
            else "It is a plain Llama: it needs PyTorch and transformers > 5.3, and no code of its own."
        ),
        parameters=count_parameters(model).total,
        layers=model.num_layers,
        hidden=model.hidden_size,
        mlp=model.mlp_size,
        heads=model.num_heads,
        kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        position=f"| position size | {model.position_size} |\n" if tape else "",
        vocabulary=model.vocab_size,
        tokens=tokens,
        steps=step,
        length=config.data.sequence_length,
        precision=config.training.precision,
    )
