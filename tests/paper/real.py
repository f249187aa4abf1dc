"""The real data sets, when EDGEMERGE_DATA names the folder that holds them."""

import os
from pathlib import Path

import pytest

from tests.services.missing import NO_DATA

FOLDER = Path(os.environ.get("EDGEMERGE_DATA", "no such folder"))
needs_data = pytest.mark.skipif(not FOLDER.exists(), reason=NO_DATA)
