"""The open-loop generator, the grid, the statistics, the decision and the report."""
