"""Which files are collected: importing one takes longer than running many tests."""

import re

LONG = re.compile(r"\bpytest\.mark\.long\b")
SLOW = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.slow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path, config):
    """Leave out sources without an example, and files that `quick` or `long` has no use for."""
    if collection_path.suffix != ".py" or collection_path.name == "__init__.py":
        return None  # a package must be imported before its modules, or these are made twice
    text = collection_path.read_text(encoding="utf-8")
    chosen = config.option.markexpr
    if chosen == "long" and collection_path.name != "conftest.py":
        return True if not LONG.search(text) else None
    if "src" in collection_path.relative_to(config.rootpath).parts:
        return True if ">>>" not in text else None
    return True if chosen == "not slow" and SLOW.search(text) else None
