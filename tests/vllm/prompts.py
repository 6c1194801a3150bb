"""Prompts of the engine tests: written for them, nobody's text. Short, so that a CPU carries them.

The repetitive ones give an n-gram draft something to find; the canary proves that nothing is
logged.
"""

from __future__ import annotations

CANARY = "zanzibar-heliotrope-7431"
"""A word that no model knows; found in any output, it has leaked."""

CHAT = (
    "Once upon a time",
    "The history of the city goes back",
    "My favourite way to cook potatoes is",
    "In the small harbour town,",
    f"The code word {CANARY} was painted on the door, and",
)
CODE = (
    "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n    return",
    "one two three four five six seven eight. one two three four five six seven eight. one two",
    "for i in range(10):\n    print(i)\n\nfor i in range(10):\n    print(",
    "red, green, blue, red, green, blue, red, green, blue, red,",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,",
)
PROMPTS = CHAT + CODE

OUTPUT_TOKENS = 20
"""Tokens asked for each; the table of the custom proposer holds as many."""
