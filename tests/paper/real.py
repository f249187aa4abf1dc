"""The real data sets, when EDGEMERGE_DATA names the folder that holds them."""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("EDGEMERGE_DATA", "no such folder"))
needs_data = pytest.mark.skipif(
    not FOLDER.exists(), reason="EDGEMERGE_DATA does not name the folder of the data sets"
)
