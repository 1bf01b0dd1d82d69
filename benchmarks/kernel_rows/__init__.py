"""Measurements of `kernels.py`: a module for each group of rows."""
