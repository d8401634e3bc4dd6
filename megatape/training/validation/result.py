"""Result of an evaluation while training."""

from dataclasses import dataclass, field

from megatape.data.training.selection import NEW_SELECTION, Selection
from megatape.training.position_views.view import PositionView


@dataclass(frozen=True)
class Validation:
    """Losses in nats per target, and the position view.

    Attributes:
        loss: Mean loss. In a mixture, the corpora's losses are weighted by their first shares.
        positions: Position view on the main rank. None elsewhere, and for encodings whose blocks change no position tensor.
        corpora: Corpus of a mixture -> loss.
        inputs: Input -> loss, for data directories with several inputs. In a mixture, names begin with the corpus.
        ema_loss: Loss of the averaged weights, or None if the run keeps no average.
        selection: Rule by which samples were selected (data/training/selection.py).
    """

    loss: float
    positions: PositionView | None
    corpora: dict[str, float] = field(default_factory=dict)
    inputs: dict[str, float] = field(default_factory=dict)
    ema_loss: float | None = None
    selection: Selection = NEW_SELECTION

    @property
    def parts(self) -> dict[str, float]:
        """Losses by name of corpus or input."""
        return self.corpora | self.inputs
