"""`python -m fxpasses`."""

from fxpasses.cli import main

if __name__ == "__main__":
    main()
