"""`python -m edgemerge`: the command line, where its script is not on the path."""

from edgemerge.cli import main

if __name__ == "__main__":
    main(prog_name="edgemerge")
