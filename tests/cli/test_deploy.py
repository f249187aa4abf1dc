"""What deploy/ offers is sound to systemd and to edgemerge itself."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgemerge.agent.config import read_config
from edgemerge.cli.agent import enrol

DEPLOY = Path(__file__).parents[2] / "deploy"
PROGRAM = "/opt/edgemerge/bin/edgemerge"
UNITS = {
    "edgemerge-server.service": "edgemerge-server.service",
    "edgemerge-agent@.service": "edgemerge-agent@pump-3.service",
    "edgemerge-enrol@.service": "edgemerge-enrol@pump-3.service",
}
DAEMONS = ["edgemerge-server.service", "edgemerge-agent@.service"]
systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")


def judged(text: str, path: Path) -> subprocess.CompletedProcess[str]:
    path.write_text(text.replace(PROGRAM, sys.executable), encoding="utf-8")
    return subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@systemd
@pytest.mark.parametrize(("unit", "instance"), UNITS.items())
def test_systemd_finds_nothing_wrong_with_a_unit(tmp_path, unit, instance):
    text = (DEPLOY / unit).read_text(encoding="utf-8")
    assert PROGRAM in text
    done = judged(text, tmp_path / instance)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@systemd
def test_a_wrong_setting_would_be_noticed(tmp_path):
    text = (DEPLOY / "edgemerge-server.service").read_text(encoding="utf-8")
    done = judged(text.replace("ProtectHome=yes", "ProtectHone=yes"), tmp_path / "a.service")
    assert "ProtectHone" in done.stderr


@pytest.mark.parametrize("unit", DAEMONS)
def test_units_tell_when_they_are_ready_and_run_as_nobody_in_particular(unit):
    lines = (DEPLOY / unit).read_text(encoding="utf-8").splitlines()
    wanted = {"Type=notify", "DynamicUser=yes", "Restart=on-failure", "NoNewPrivileges=yes"}
    assert wanted <= set(lines)
    assert "Environment=OPENBLAS_NUM_THREADS=1" in lines


def test_an_agent_enrols_first_if_it_has_an_invitation_and_no_token():
    agent = (DEPLOY / "edgemerge-agent@.service").read_text(encoding="utf-8")
    assert re.findall(r"^(Wants|After)=.*edgemerge-enrol@%i\.service", agent, re.MULTILINE) == [
        "Wants",
        "After",
    ]
    unit = (DEPLOY / "edgemerge-enrol@.service").read_text(encoding="utf-8").splitlines()
    assert "ConditionPathExists=/etc/edgemerge/%i.invitation" in unit
    assert "ConditionPathExists=!/etc/edgemerge/%i.token" in unit
    assert {"UMask=0077", "ReadWritePaths=/etc/edgemerge", "ProtectSystem=strict"} <= set(unit)
    (command,) = [line for line in unit if line.startswith("ExecStart=")]
    known = {name for each in enrol.params for name in each.opts}
    assert set(re.findall(r"--[\w-]+", command)) == {
        "--config",
        "--invitation-file",
        "--token-file",
    }
    assert set(re.findall(r"--[\w-]+", command)) <= known


def test_the_example_of_a_configuration_can_be_read_with_what_the_unit_sets(tmp_path):
    lines = (DEPLOY / "edgemerge-agent@.service").read_text(encoding="utf-8").splitlines()
    values = [
        line.removeprefix("Environment=") for line in lines if line.startswith("Environment=")
    ]
    environment = dict(value.split("=", 1) for value in values)
    example = (DEPLOY / "agent.env.example").read_text(encoding="utf-8").splitlines()
    environment |= dict(line.split("=", 1) for line in example if "=" in line and line[0] != "#")
    (tmp_path / "pump-3.toml").write_bytes((DEPLOY / "agent.example.toml").read_bytes())
    config = read_config(tmp_path / "pump-3.toml", environment=environment)
    assert config.device == "pump-3"
    assert str(config.state).endswith("%S/edgemerge/%i")
    assert str(config.exchange.token_file).endswith("%d/token")


def test_the_dockerfile_says_first_that_it_was_not_tried():
    first = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# Not tried on a Docker engine")
