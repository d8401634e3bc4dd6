"""Names of the layers with LoRA adapters, and of the adapters' parameters."""

# Module path, inside a block, of each name allowed in model.lora.targets.
TARGETS = {name: f"attention.{name}" for name in ("query", "key", "value", "output")}
TARGETS |= {name: f"mlp.{name}" for name in ("gate", "up", "down")}


def in_adapter(name: str) -> bool:
    """Whether the parameter `name` belongs to an adapter."""
    return ".adapter." in name
