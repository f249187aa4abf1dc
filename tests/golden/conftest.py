"""The generator is a record: it imports names of the commit at which it ran."""

collect_ignore = ["make.py"]
