"""Modeling code of exports, which transformers runs without MegaTAPE."""
