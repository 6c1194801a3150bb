"""Dashboards as code: Python sources here, generated JSON in json/, no clicking.

`python -m dashboards.generate` writes the JSON; `--check` fails where it drifted from the sources.
"""
