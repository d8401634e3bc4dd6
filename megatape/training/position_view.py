"""What a run keeps of the position tensors at each evaluation: small tensors of one fixed text, a file for each step."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from megatape.errors import UserError
from megatape.run_folder import RunFolder
from megatape.utils.files import open_regular, write_atomically

MAX_TOKENS = 64  # of the text whose dot products are kept
TENSORS = ("places", "products", "norms", "gains")


@dataclass(frozen=True)
class PositionView:
    """The position tensors e of a text as each layer's attention reads them; those of the first layer are the initial angles.

    tokens    the texts of P tokens, at most MAX_TOKENS, at equal distances
    places    [P] int32, the index of each of them in the text
    products  [layers, P, P] float16, e_i . e_j as a mean over channels and planes: initially the mean of cos((i - j) theta_k)
    norms     [layers] float32, root mean square modulus |c + i s| over all tokens, channels and planes; initially 1
    gains     [layers - 1, K] float32, of each layer's attention update but the last, which nothing reads; 0 in layers without
              positions. TAPE has one for each head; K is 0 for encodings without gains
    """

    tokens: list[str]
    places: np.ndarray
    products: np.ndarray
    norms: np.ndarray
    gains: np.ndarray

    def save(self, folder: RunFolder, step: int) -> None:
        """Write the file of this step. Raises OSError."""
        tensors = {name: np.ascontiguousarray(getattr(self, name)) for name in TENSORS}
        folder.positions.mkdir(exist_ok=True)
        write_atomically(folder.position_view(step), save(tensors, {"tokens": json.dumps(self.tokens)}))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file of `save`. Raises OSError, or UserError if it is corrupted."""
        try:
            with open_regular(path), safe_open(path, "numpy") as file:  # safe_open would wait for the writer of a pipe
                view = cls(json.loads(file.metadata()["tokens"]), **{name: file.get_tensor(name) for name in TENSORS})
            num_layers = len(view.norms)
            num_tokens = len(view.tokens)
            if view.products.shape != (num_layers, num_tokens, num_tokens) or view.places.shape != (num_tokens,):
                raise UserError("its tensors do not have one shape")
        except (SafetensorError, ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path} is corrupted ({error})") from None
        return view

    def picture(self, magnified: int = 3) -> np.ndarray:
        """The dot products of all layers side by side, each at its own scale: red above zero, blue below.

        [height, width, 3] uint8.
        """
        products = self.products.astype(np.float32)
        limits = np.quantile(np.abs(products), 0.99, axis=(1, 2), keepdims=True)
        shares = np.clip(products / np.where(limits, limits, 1), -1, 1)
        fading = 1 - np.abs(shares)
        colours = np.stack([np.where(shares > 0, 1, fading), fading, np.where(shares < 0, 1, fading)], -1)
        beside = np.pad(colours, ((0, 0), (0, 0), (0, 1), (0, 0)), constant_values=0.5).swapaxes(0, 1)  # a grey line between
        return (255 * beside.reshape(len(self.tokens), -1, 3)).astype(np.uint8).repeat(magnified, 0).repeat(magnified, 1)
