"""Record of the software and hardware behind a run's rounding errors, which tells a reader why a repeated run differs."""

import torch

from megatape.software import package_version, versions


def numerical_environment() -> dict[str, str]:
    """Return versions, instruction set or GPU, and number of threads of this process."""
    environment = {
        "megatape": package_version(),
        "python/torch/deepspeed": versions(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
    }
    if torch.cuda.is_available():
        environment["GPU"] = torch.cuda.get_device_name()
    return environment
