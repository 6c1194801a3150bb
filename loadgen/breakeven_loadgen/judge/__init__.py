"""From result folders to a decision: dataset, figures, statistics, gates, facts, decision, report.

Reads folders and never talks to a server. The unit of inference is the block.
"""
