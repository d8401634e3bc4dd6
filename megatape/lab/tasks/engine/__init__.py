"""Running evaluation tasks: lengths, runner, tensor-parallel models."""
