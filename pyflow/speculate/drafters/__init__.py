"""The drafters, one file each; METHODS in pyflow/speculate/methods.py lists them."""
