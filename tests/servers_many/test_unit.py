"""The unit for several servers is sound to systemd, and fits nginx and the settings beside it."""

import re

import pytest

from tests.cli.test_deploy import DEPLOY, PROGRAM, judged, systemd

UNIT = (DEPLOY / "edgemerge-server@.service").read_text(encoding="utf-8")


@systemd
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    assert PROGRAM in UNIT
    done = judged(UNIT, tmp_path / "edgemerge-server@8471.service")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_all_instances_share_one_user_so_that_they_share_the_operators_token():
    lines = UNIT.splitlines()
    assert {"DynamicUser=yes", "User=edgemerge-servers"} <= set(lines)
    assert "StateDirectory=edgemerge-servers" in lines
    assert "--operator-token-file %S/edgemerge-servers/operator.token" in UNIT


@pytest.mark.parametrize(
    "name", ["EDGEMERGE_DATABASE", "EDGEMERGE_HOST", "EDGEMERGE_SERVE_OPTIONS"]
)
def test_the_example_of_settings_names_what_the_unit_reads(name):
    example = (DEPLOY / "servers.env.example").read_text(encoding="utf-8")
    assert re.search(rf"^(# )?{name}=", example, re.MULTILINE)
    assert re.search(rf"\${{?{name}\b", UNIT)


def test_what_protects_a_single_server_protects_each_of_several():
    single = (DEPLOY / "edgemerge-server.service").read_text(encoding="utf-8")
    assert _protection(single) <= _protection(UNIT)


def _protection(unit: str) -> set[str]:
    words = ("Protect", "Private", "Restrict", "System", "Capability", "Lock", "NoNew", "UMask")
    return {line for line in unit.splitlines() if line.startswith(words)}
