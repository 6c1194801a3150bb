"""`python -m breakeven_sim` is `breakeven-sim`."""

from .cli import main

if __name__ == "__main__":
    main()
