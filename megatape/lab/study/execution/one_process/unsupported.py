"""Settings of runs that only `pretrain` supports."""

from megatape.config import Config
from megatape.config.section import Section

# Settings that a Learner reads, or that change nothing about the result of a run on one rank. All others need their default.
SUPPORTED = {
    "training": {
        "steps",
        "global_batch_size",
        "micro_batch_size",
        "seed",
        "gradient_clip",
        "replica_check_interval",
        "memory_check_interval",
        "computation_check_interval",
        "max_skipped_steps",
    },
    "optimizer": {"learning_rate", "weight_decay", "beta1", "beta2", "eps"},
    "parallel": set(),
}


def unsupported_reason(config: Config) -> str | None:
    """Return the setting because of which only `pretrain` can train a run, with its value, or None.

    Args:
        config: Resolved configuration of the run.
    """
    sections: dict[str, Section] = {
        "training": config.training,
        "optimizer": config.optimizer,
        "parallel": config.parallel,
    }
    for name, section in sections.items():
        for field, information in type(section).model_fields.items():
            value = getattr(section, field)
            if field not in SUPPORTED[name] and value != information.get_default(call_default_factory=True):
                return f"{name}.{field} is {value}"
    if config.model.lora is not None:
        return "model.lora is set"
    if config.evaluation.interval != config.training.steps:
        return f"evaluation.interval is {config.evaluation.interval}"
    if config.training.micro_batch_size != config.training.global_batch_size:
        return f"training.micro_batch_size is {config.training.micro_batch_size}"
    return None
