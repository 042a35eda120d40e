"""Tasks, and data sets of them."""
