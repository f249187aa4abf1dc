"""`python -m edgemerge.cli` is `edgemerge`."""

from edgemerge.cli import main

if __name__ == "__main__":
    main(prog_name="edgemerge")
