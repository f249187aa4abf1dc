"""Invitations for a list of devices."""

import stat

import pytest

from edgemerge.cli.fleet import read_device_list
from edgemerge.core.errors import SettingError
from tests.cli.calls import call, failure


@pytest.fixture
def listed(tmp_path):
    """Return what writes a list of devices."""

    def write(text, encoding="utf-8"):
        path = tmp_path / "devices.csv"
        path.write_text(text, encoding=encoding)
        return path

    return write


def test_a_list_has_names_and_labels(listed):
    text = 'Device,label,hall\npump-1,"Pump 1, left",B\n\npump-2,,C\n'
    assert read_device_list(listed(text)) == {"pump-1": "Pump 1, left", "pump-2": ""}
    assert read_device_list(listed("device\npump-1\n")) == {"pump-1": ""}
    excel = listed("label;device\nLinks;pump-1\n", "utf-8-sig")
    assert read_device_list(excel) == {"pump-1": "Links"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", r"found the columns \[\] in .*, expected one named device"),
        ("name\npump-1\n", r"found the columns \['name'\]"),
        ("device\n", "names no device"),
        ("device\npump-1\npump-2\npump-1\n", "line 4: pump-1 is in line 2 already"),
        ("device\npump 1\n", "line 2: found the device name 'pump 1'.*such as pump-1"),
        ("device,label\n,left\n", "line 2: no device"),
        ("device,label\npump-1," + "x" * 101 + "\n", "line 2: the label of pump-1 is too long"),
        ("device\n" + "a b\n" * 12, r"line 11: .*; and 2 more. Nothing was made."),
    ],
)
def test_a_list_that_cannot_be_is_refused_with_its_lines(listed, text, why):
    with pytest.raises(SettingError, match=why):
        read_device_list(listed(text))


@pytest.mark.slow
def test_each_device_of_a_list_gets_its_invitation_and_repeating_is_safe(
    hub, fleet, tmp_path, listed
):
    path, out = listed("device,label\npump-1,Left\npump-2,\n"), tmp_path / "invitations"
    made = hub.fleet("invite", fleet, "--from", path, "--out", out)
    assert made.exit_code == 0, made.stderr
    assert "2 of 2 devices invited, each once, until" in made.stderr
    files = [out / "pump-1", out / "pump-2"]
    assert [stat.S_IMODE(each.stat().st_mode) for each in files] == [0o600, 0o600]
    words = ("--invitation-file", files[0], "--token-file", tmp_path / "token")
    assert call("enrol", hub.url, fleet, "pump-1", *words).exit_code == 0
    assert hub.told("settings", fleet, "pump-1")["label"] == "Left"
    before = [each.read_text() for each in files]
    path = listed("device\npump-1\npump-2\npump-3\n")
    again = hub.told("invite", fleet, "--from", path, "--out", out)
    assert [each["what"] for each in again] == [
        "left out: enrolled before",
        "left out: invited before",
        "invited",
    ]
    assert [each.read_text() for each in files] == before
    made = hub.fleet("invite", fleet, "--from", path, "--out", out, "--again")
    assert "3 of 3 devices invited" in made.stderr
    assert [each.read_text() for each in files] != before
    assert hub.told("settings", fleet, "pump-1")["label"] == "Left"


@pytest.mark.slow
def test_nothing_is_made_of_a_list_with_a_mistake(hub, fleet, tmp_path, listed):
    out = tmp_path / "invitations"
    words = failure(hub.fleet("invite", fleet, "--from", listed("device\na\na\n"), "--out", out))
    assert "line 3: a is in line 2 already" in words
    assert not out.exists()
    path = listed("device\na\n")
    assert "--from needs --out FOLDER" in hub.fleet("invite", fleet, "--from", path).stderr
    wrong = hub.fleet("invite", fleet, "b", "--from", path, "--out", out)
    assert "takes no DEVICE" in wrong.stderr
    assert "--again is for --from" in hub.fleet("invite", fleet, "b", "--again").stderr
