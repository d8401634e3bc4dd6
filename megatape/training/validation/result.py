"""Result of an evaluation during training."""

from dataclasses import dataclass, field

from megatape.data.training.selection import NEW_SELECTION, Selection
from megatape.training.position_views.view import PositionView


@dataclass(frozen=True)
class Validation:
    """Losses in nats per target, and the position view.

    Attributes:
        loss: Mean loss; of a mixture, the mean of the corpora's losses by their first shares.
        positions: Position view on the main rank. None elsewhere, and for an encoding whose blocks change no position tensor.
        corpora: Loss on each corpus of a mixture.
        inputs: Loss on each input of a data directory that has several. Of a mixture, the name begins with the corpus.
        ema_loss: Loss of the average of the weights; None if the run keeps no average.
        selection: Selection of the samples (data/training/selection.py).
    """

    loss: float
    positions: PositionView | None
    corpora: dict[str, float] = field(default_factory=dict)
    inputs: dict[str, float] = field(default_factory=dict)
    ema_loss: float | None = None
    selection: Selection = NEW_SELECTION

    @property
    def parts(self) -> dict[str, float]:
        """Losses on the corpora and inputs, by name."""
        return self.corpora | self.inputs
