"""The paper's figures (arXiv 2501.00712), which studies and benchmarks print next to their own. paper.json holds them.

* costs: Models with COST_LAYERS layers of SHAPE, on one sequence of COST_LENGTH tokens. TAPE's attention layer uses the
  authors' fused kernel. Without the kernel, the layer takes 5.63e-4 seconds.
* extension: Llama 2 7B extended from 4096 to 8192 tokens, by method: perplexity (Table 4), right passkeys in % of 20 prompts
  each (Figure 5), and answers, scored by lm-eval at 8192 tokens. The paper does not state the number of examples.
* scrolls: F1, exact match or ROUGE for models with 155M parameters.
* shift: Values at SHIFT_LAYERS, by kind of shift and encoding: attention in 10^-2, dot products in percent. The paper's
  "without equivariance" is our tape_no_equivariance.
"""

import json
from dataclasses import dataclass
from importlib.resources import files

_FIGURES = json.loads((files("megatape.lab") / "paper.json").read_text(encoding="utf-8"))

# Shape of the 155M model, without layers and length.
SHAPE = {"hidden_size": 768, "num_heads": 12, "mlp_size": 3072, "vocab_size": 32000, "position_size": 48}
COST_LAYERS = 12
COST_LENGTH = 1024


@dataclass(frozen=True)
class PaperCost:
    """Costs of a model with one encoding.

    Attributes:
        parameters: Number of weights, in units of 2^20.
        flops: Forward FLOPs, in units of 10^9.
        multiply_adds: Forward multiply-adds, in units of 10^9.
        attention_seconds: Seconds per attention layer.
    """

    parameters: float
    flops: float
    multiply_adds: float
    attention_seconds: float


@dataclass(frozen=True)
class PaperTable:
    """Figures of methods at several lengths.

    Attributes:
        lengths: Lengths in tokens.
        rows: Figures by method.
    """

    lengths: list[int]
    rows: dict[str, list[float]]


Rows = dict[str, list[float]]

COSTS = {encoding: PaperCost(**cost) for encoding, cost in _FIGURES["costs"].items()}

_EXTENSION = _FIGURES["extension"]
# Method names used in the paper.
EXTENSION_NAMES: dict[str, str] = _EXTENSION["names"]
EXTENSION_PERPLEXITY = {text: PaperTable(**table) for text, table in _EXTENSION["perplexity"].items()}
EXTENSION_PASSKEY = PaperTable(**_EXTENSION["passkey"])
EXTENSION_ANSWERS_COLUMNS: list[str] = _EXTENSION["answers_columns"]
EXTENSION_ANSWERS: Rows = _EXTENSION["answers"]

SCROLLS_SETS: list[str] = _FIGURES["scrolls"]["sets"]
SCROLLS: Rows = _FIGURES["scrolls"]["rows"]

SHIFT_LAYERS: list[int] = _FIGURES["shift"]["layers"]
SHIFT_ATTENTION: dict[str, Rows] = _FIGURES["shift"]["attention"]
SHIFT_DOT_PRODUCTS: dict[str, Rows] = _FIGURES["shift"]["dot_products"]
