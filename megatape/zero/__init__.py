"""DeepSpeed: its configuration, the engine, the layout of its state at each ZeRO stage, its private names."""
