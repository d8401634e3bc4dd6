"""DeepSpeed: its configuration, the engine, a class per ZeRO stage, its private names."""
