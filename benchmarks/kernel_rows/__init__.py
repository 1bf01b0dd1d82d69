"""What `kernels.py` measures: a module for each group of rows."""
