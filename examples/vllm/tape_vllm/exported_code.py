"""Code of the position encoding, from the exported folder: the file that trained the model."""

from importlib import import_module
from typing import Any, NamedTuple

from transformers.dynamic_module_utils import get_class_from_dynamic_module


class LayerCode(NamedTuple):
    """Position encoding of a layer.

    Attributes:
        encoding: Position encoding, an instance of `Encoding` in encoding.py.
        reads_updates: Whether the layer has the model's encoding, and so reads the updates of the position state. Layers with
            another encoding read the state as it started.
        is_last: Whether it is the last layer with the model's encoding, after which no layer reads the state's updates.
        window: Number of tokens that a token attends to, None for all earlier ones.
    """

    encoding: Any
    reads_updates: bool
    is_last: bool
    window: int | None


class ExportedCode(NamedTuple):
    """Definitions from an exported folder.

    Attributes:
        encoding: Position encoding of the model, which makes the position state.
        layers: Encoding of each layer.
        single: Axis of a model that is not sharded.
        PositionState: Class of the state that layers pass on, in rotation.py.
        rotate_qk: Function that rotates queries and keys by a position tensor, in rotation.py.
    """

    encoding: Any
    layers: list[LayerCode]
    single: Any
    PositionState: Any
    rotate_qk: Any


def load_exported_code(folder: str, config: Any, revision: str | None = None) -> ExportedCode:
    """Import the code of a model's position encoding.

    Args:
        folder: Exported folder, or its id on the Hugging Face hub.
        config: Configuration of the model, a TapeConfig.
        revision: Revision of the code on the hub.

    Raises:
        ValueError: The encoding needs something that vLLM's attention does not have.
    """
    table = get_class_from_dynamic_module("encodings.ENCODINGS", folder, code_revision=revision)
    encoding = table[config.encoding].load()(config)
    package = type(encoding).__module__.rpartition(".")[0]
    base = import_module(".encoding", package)
    rotation = import_module(".rotation", package)
    single = import_module(".stand_ins", package).SINGLE
    encodings = {config.encoding: encoding}
    positioned = base.positioned_layers(config)
    layers = []
    for layer, (name, window) in enumerate(_layer_kinds(config, positioned)):
        if name not in encodings:
            # A layer without positions has no entry in the table.
            encodings[name] = table[name].load()(config) if name in table else base.Encoding(config)
        is_last = layer == positioned[-1]
        layers.append(LayerCode(encodings[name], name == config.encoding, is_last, window))
    if config.attention_scale is not None:
        raise ValueError(f"attention_scale {config.attention_scale}: not supported here: run the model in transformers")
    for name, each in encodings.items():
        _check_supported(name, each, config.head_dim, single)
    return ExportedCode(
        encoding=encoding,
        layers=layers,
        single=single,
        PositionState=rotation.PositionState,
        rotate_qk=rotation.rotate_qk,
    )


def _layer_kinds(config: Any, positioned: list[int]) -> list[tuple[str, int | None]]:
    """Return the name of the encoding and the window of each layer."""
    if hasattr(config, "layer_kinds"):
        return [(kind.encoding, kind.window) for kind in config.layer_kinds]
    # Exports of MegaTAPE 0.1 have one encoding, and layers without positions.
    return [(config.encoding if layer in positioned else "", None) for layer in range(config.num_hidden_layers)]


def _check_supported(name: str, encoding: Any, head_dim: int, single: Any) -> None:
    """Raise ValueError if vLLM cannot run an encoding."""
    unsupported = {
        "adds an embedding of positions": encoding.embedding(single) is not None,
        "starts its state from the content": encoding.start(single) is not None,
        "reads the content of queries and keys": encoding.token_features(single) is not None,
        "adds a bias to the scores": encoding.bias(single) is not None,
        "changes the width of queries and keys": encoding.qk_width != head_dim,
        "draws random positions": encoding.positions(random_offset=False).drawn_from > 0,
    }
    for reason, is_true in unsupported.items():
        if is_true:
            raise ValueError(f"encoding {name}: it {reason}, which this plugin has no layer for: run the model in transformers")
