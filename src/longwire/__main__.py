"""``python -m longwire``: the command line where its script is not on the path."""

from longwire.cli import main

if __name__ == "__main__":
    main()
