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
    "The sky is blue because",
    "Dear neighbour, thank you for",
    "In the small harbour town,",
    "A good night's sleep depends on",
    f"The code word {CANARY} was painted on the door, and",
)
CODE = (
    "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n    return",
    "one two three four five six seven eight. one two three four five six seven eight. one two",
    "for i in range(10):\n    print(i)\n\nfor i in range(10):\n    print(",
    "red, green, blue, red, green, blue, red, green, blue, red,",
    "import os\nimport sys\nimport json\n\ndef main():\n    path =",
    "SELECT id, name FROM users WHERE id = 1; SELECT id, name FROM users WHERE id =",
    "<li>apple</li>\n<li>pear</li>\n<li>plum</li>\n<li>",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,",
)
PROMPTS = CHAT + CODE

OUTPUT_TOKENS = 24
"""Tokens asked for each; the table of the custom proposer holds as many."""
