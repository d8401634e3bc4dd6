"""Outcomes of trained models on text: metrics of training and evaluation, their report and their plots."""
