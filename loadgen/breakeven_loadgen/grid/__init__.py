"""The grid: run cells in blocks over arms and rates, on top of `replay`. Decides nothing."""
