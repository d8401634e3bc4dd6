"""Memory requirements as text."""

from megatape.tools.planner.memory_requirements import MemoryRequirements, Requirement
from megatape.utils.units import format_bytes


def requirements_by_device(requirements: MemoryRequirements) -> dict[str, Requirement]:
    """Return the requirements by the words for their device, such as "of a GPU"."""
    by_device = {"of a GPU": requirements.gpu}
    if requirements.host is not None:
        by_device["of a node's host"] = requirements.host
    return by_device


def requirement_text(requirement: Requirement) -> str:
    """Return a requirement with the memory that is available, such as "35.10 GiB of 79.00 GiB: fits"."""
    needed = format_bytes(requirement.bytes)
    if requirement.available is None:
        return f"{needed}; cluster.host_gib (--host-gib) compares it with the node's"
    result = "DOES NOT FIT"
    if requirement.fits:
        result = "fits"
    return f"{needed} of {format_bytes(requirement.available)}: {result}"
