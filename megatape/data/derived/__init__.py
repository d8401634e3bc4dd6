"""Data directories made of others: merged ones, and subsets."""
