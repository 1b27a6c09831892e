"""`python -m fedkin`: the command line, where the script is not on the path."""

from fedkin.cli import main

if __name__ == "__main__":
    main()
