"""`python -m aetherium`: the same as the `aetherium` command."""

from aetherium.cli import main

if __name__ == "__main__":
    main()
