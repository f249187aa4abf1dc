"""The unit for several servers is sound to systemd, and fits nginx and the settings beside it."""

import re

import pytest

from edgemerge.cli.serve import serve
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
    assert "EDGEMERGE_ADMIN_TOKEN_FILE=%S/edgemerge-servers/admin.token" in UNIT


@pytest.mark.parametrize("example", ["server.env.example", "servers.env.example"])
def test_the_example_names_only_variables_that_serve_reads(example):
    text = (DEPLOY / example).read_text(encoding="utf-8")
    named = set(re.findall(r"^(?:# )?(EDGEMERGE_\w+)=", text, re.MULTILINE))
    assert {"EDGEMERGE_DATABASE", "EDGEMERGE_HOST"} <= named
    assert named <= {name for option in serve.params for name in option.envvar or ()}


@pytest.mark.parametrize("unit", ["edgemerge-server.service", "edgemerge-server@.service"])
def test_a_unit_sets_only_variables_that_serve_reads(unit):
    lines = (DEPLOY / unit).read_text(encoding="utf-8").splitlines()
    words = " ".join(line.removeprefix("Environment=") for line in lines if "Environment=" in line)
    named = set(re.findall(r"(EDGEMERGE_\w+)=", words)) - {"EDGEMERGE_SERVE_OPTIONS"}
    assert named <= {name for option in serve.params for name in option.envvar or ()}
    assert "EDGEMERGE_HOST" in named


def test_what_protects_a_single_server_protects_each_of_several():
    single = (DEPLOY / "edgemerge-server.service").read_text(encoding="utf-8")
    assert _protection(single) <= _protection(UNIT)


def _protection(unit: str) -> set[str]:
    words = ("Protect", "Private", "Restrict", "System", "Capability", "Lock", "NoNew", "UMask")
    return {line for line in unit.splitlines() if line.startswith(words)}
