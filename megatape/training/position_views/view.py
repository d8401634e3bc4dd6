"""Position views: summaries of one text's position tensors, one file per evaluation."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from megatape.errors import UserError
from megatape.run_folder import RunFolder
from megatape.utils.files.atomic import write_atomically
from megatape.utils.files.files import open_regular

# Maximum number of selected tokens, whose dot products are stored.
MAX_TOKENS = 64

# Names of the tensors in a file.
TENSORS = ("places", "products", "norms", "gains")


@dataclass(frozen=True)
class PositionView:
    """Summary of a text's position tensors e, as read by each layer's attention.

    The first layer reads the initial angles. P <= MAX_TOKENS tokens are selected, at equal distances.

    Attributes:
        tokens: Texts of the selected tokens [P].
        places: Indices of the selected tokens in the text, int32 [P].
        products: Dot products e_i . e_j averaged over channels and planes, float16 [layers, P, P]; initially the mean of
            cos((i - j) theta_k).
        norms: Root mean square modulus |c + i s| over all tokens, channels and planes, float32 [layers]; initially 1.
        gains: Gains of each layer's attention update, float32 [layers - 1, K]; 0 in layers without positions. The last layer is
            skipped, because nothing reads its update. TAPE has a gain per head; K is 0 for encodings without gains.
    """

    tokens: list[str]
    places: np.ndarray
    products: np.ndarray
    norms: np.ndarray
    gains: np.ndarray

    def save(self, folder: RunFolder, step: int) -> None:
        """Write the file for a step.

        Raises:
            OSError: The file cannot be written.
        """
        tensors = {name: np.ascontiguousarray(getattr(self, name)) for name in TENSORS}
        folder.positions.mkdir(exist_ok=True)
        write_atomically(folder.position_view(step), save(tensors, {"tokens": json.dumps(self.tokens)}))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file written by `save`.

        Raises:
            OSError: The file cannot be read.
            UserError: The file is corrupted.
        """
        try:
            # safe_open alone would wait for the writer of a pipe.
            with open_regular(path), safe_open(path, "numpy") as file:
                tokens = json.loads(file.metadata()["tokens"])
                tensors = {name: file.get_tensor(name) for name in TENSORS}
            view = cls(tokens, **tensors)
            num_layers = len(view.norms)
            num_tokens = len(view.tokens)
            products_fit = view.products.shape == (num_layers, num_tokens, num_tokens)
            places_fit = view.places.shape == (num_tokens,)
            if not (products_fit and places_fit):
                raise UserError("its tensors do not have one shape")
        except (SafetensorError, ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path} is corrupted ({error})") from None
        return view

    def picture(self, magnified: int = 3) -> np.ndarray:
        """Draw the dot products of all layers side by side, each at its own scale: red above zero, blue below.

        Args:
            magnified: Width and height of a dot product in pixels.

        Returns:
            Image, uint8 [height, width, 3].
        """
        products = self.products.astype(np.float32)
        limits = np.quantile(np.abs(products), 0.99, axis=(1, 2), keepdims=True)
        # Layers without products keep their zeros.
        limits = np.where(limits, limits, 1)
        shares = np.clip(products / limits, -1, 1)

        fading = 1 - np.abs(shares)
        red = np.where(shares > 0, 1, fading)
        blue = np.where(shares < 0, 1, fading)
        layers = np.stack([red, fading, blue], -1)

        # A gray line separates the layers.
        lined = np.pad(layers, ((0, 0), (0, 0), (0, 1), (0, 0)), constant_values=0.5)
        side_by_side = lined.swapaxes(0, 1).reshape(len(self.tokens), -1, 3)
        pixels = (255 * side_by_side).astype(np.uint8)
        return pixels.repeat(magnified, 0).repeat(magnified, 1)
