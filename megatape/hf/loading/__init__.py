"""Loading of trained models from any kind of model folder, ready to run."""
