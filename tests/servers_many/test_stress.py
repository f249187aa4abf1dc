"""Four servers on one PostgreSQL behind nginx, devices, kills: every answer is a true sum.

EDGEMERGE_KILLS=50 makes it a long run; `python -m tests.servers_many` tells what happens.
"""

import os

import pytest

from tests.servers_many.scene import scene

KILLS = int(os.environ.get("EDGEMERGE_KILLS", "6"))
DEVICES = 200
SEED = int(os.environ.get("EDGEMERGE_SEED", "0"))
PATIENCE_S = 30.0  # for one kill, and all that happens around it

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.long
def test_servers_that_are_killed_tell_the_union_of_what_was_acknowledged(tmp_path):
    with scene(tmp_path, devices=DEVICES, seed=SEED) as everything:
        everything.run(kills=KILLS, seconds=PATIENCE_S * KILLS)
        everything.judge()
        written = everything.must_have_left_a_sound_database()
    counts = everything.counts
    told = f"{KILLS} kills of four servers behind nginx, {counts['pushes']} acknowledged pushes"
    print(f"\n{told}, 0 lost")  # noqa: T201 - scripts/faults.py counts it
    assert counts["kills"] == KILLS
    assert counts["pushes"] > 10 * KILLS
    assert counts["answers judged"] > 2 * KILLS
    assert counts["totals judged"] == 5 * 2 * 6, "at four servers and through nginx"
    if KILLS > 2:  # then all that can happen has happened
        troubles = ("connection losses", "drops", "choices", "revoked")
        assert min(counts[trouble] for trouble in troubles) > 0
    assert written > counts["pushes"]
