"""Which files are collected: importing one takes longer than running many tests."""

import re

LONG = re.compile(r"\bpytest\.mark\.long\b")
ALL_OF_IT = r"^pytestmark = (\[\s*)?pytest\.mark\.(%s)\b"
LEFT_OUT = {  # files all of whose tests are left out, by how the chosen marks begin
    "not slow": re.compile(ALL_OF_IT % "slow|long", re.MULTILINE),
    "not long": re.compile(ALL_OF_IT % "long", re.MULTILINE),
}


def pytest_ignore_collect(collection_path, config):
    """Leave out sources without an example, and files that `quick` or `long` has no use for."""
    if collection_path.suffix != ".py" or collection_path.name == "__init__.py":
        return None  # a package must be imported before its modules, or these are made twice
    text = collection_path.read_text(encoding="utf-8")
    chosen = config.option.markexpr
    if chosen.startswith("long") and collection_path.name != "conftest.py":
        return True if not LONG.search(text) else None
    if "src" in collection_path.relative_to(config.rootpath).parts:
        return True if ">>>" not in text else None
    left_out = LEFT_OUT.get(chosen[: len("not long")])
    return True if left_out and left_out.search(text) else None
