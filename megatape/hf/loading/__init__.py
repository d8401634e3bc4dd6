"""Loads trained models from any kind of model folder."""
