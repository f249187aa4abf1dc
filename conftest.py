"""Which files are collected: importing one takes longer than running many tests."""

import re

SLOW = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.slow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path, config):
    """Leave out sources without an example, and files that are slow as a whole from `quick`."""
    if collection_path.suffix != ".py" or collection_path.name == "__init__.py":
        return None  # a package must be imported before its modules, or these are made twice
    text = collection_path.read_text(encoding="utf-8")
    if "src" in collection_path.relative_to(config.rootpath).parts:
        return True if ">>>" not in text else None
    return True if config.option.markexpr == "not slow" and SLOW.search(text) else None
