"""`edgemerge bulk`: files in, a detector out that has seen every row of them."""

import json
import re

import numpy as np
import pytest

from edgemerge import Detector, Projection, load, save
from tests.bulk.histories import NAMES, history, in_csv, in_npy, in_parquet
from tests.cli.calls import call, failure

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dask")]


def taught(projection, X):
    detector = Detector(projection)
    detector.learn(X)
    return detector


def test_the_detector_is_the_one_that_has_learnt_every_row(tmp_path):
    X = history(3000)
    in_csv(X[:1000], tmp_path / "a.csv")
    in_npy(X[1000:2000], tmp_path / "b.npy")
    like = in_parquet(X[2000:], tmp_path / "c.parquet")
    learner = tmp_path / "pump.safetensors"
    done = call(
        *("bulk", learner, tmp_path / "a.csv", f"{tmp_path}/[bc].*", "--workers", 2),
        *("--range-from", like, "--n-hidden", 8, "--chunk-mib", 0.01, "--json"),
    )
    assert done.exit_code == 0, done.output
    shared = Projection.of_data(X[2000:], n_hidden=8)
    save(taught(shared, X), tmp_path / "expected")
    assert learner.read_bytes() == (tmp_path / "expected").read_bytes()
    told = json.loads(done.stdout)
    assert told["samples"] == 3000
    assert told["chunks"] > 8
    assert told["threads"] == 2
    assert told["digest"] == load(learner).own.digest
    assert (told["rows_left_out"], told["chunks_left_out"], told["left_out"]) == (0, 0, {})


@pytest.mark.long
def test_what_is_left_out_is_counted_and_named(tmp_path):
    X = history(100)
    X[3, 0] = np.nan
    in_npy(X, tmp_path / "a.npy")
    (tmp_path / "b.csv").write_text(",".join(NAMES) + "\n1,2\n3,4\n")
    (tmp_path / "c.csv").write_bytes(b"\0" + b'"' * 200_000)
    done = call(
        *("bulk", tmp_path / "new", tmp_path, "--workers", 1, "--range-from", tmp_path / "a.npy"),
        *("--bad-rows", "skip", "--bad-chunks", "skip"),
    )
    assert done.exit_code == 0, done.output
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in done.stdout.splitlines())
    assert facts["samples"] == "99"
    assert facts["rows left out"] == "3"
    assert facts["chunks left out"] == "1"
    assert "Skipped: worker tcp://127.0.0.1:" in done.stderr
    assert "c.csv, bytes 0 to 200,001" in done.stderr
    good = np.delete(X, 3, axis=0)
    assert load(tmp_path / "new").own == taught(Projection.of_data(good), good).own


@pytest.mark.long
def test_a_bad_row_leaves_no_file(tmp_path):
    X = history(100)
    X[3, 0] = np.nan
    path = in_npy(X, tmp_path / "a.npy")
    options = ("--n-inputs", 4, "--low", -1, "--high", 1, "--workers", 1)
    words = failure(call("bulk", tmp_path / "new", path, *options))
    assert "a.npy, rows 0 to 100: row 4, column 1 of those used: found no number" in words
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_is_refused_before_any_worker_starts(tmp_path):
    path = in_npy(history(10), tmp_path / "a.npy")
    (tmp_path / "old").write_text("precious")
    ends = ("--n-inputs", 4, "--low", -1, "--high", 1)
    for words, expected in (
        ((tmp_path / "old", path, *ends), "already exists: choose another name"),
        ((tmp_path / "new", tmp_path / "none.csv", *ends), "found no file"),
        (
            (tmp_path / "no" / "new", path, *ends),
            "no does not exist: make it, or choose another place",
        ),
        ((tmp_path / "new", path), "add --projection FILE"),
        ((tmp_path / "new", path, *ends, "--scheduler", "a", "--workers", 2), "expected one: a"),
    ):
        assert expected in failure(call("bulk", *words))
    assert (tmp_path / "old").read_text() == "precious"
    assert not (tmp_path / "new").exists()


def test_nothing_to_learn_leaves_no_file(tmp_path):
    (tmp_path / "a.csv").write_text(",".join(NAMES) + "\n")
    options = ("--n-inputs", 4, "--low", -1, "--high", 1, "--workers", 1)
    words = failure(call("bulk", tmp_path / "new", tmp_path / "a.csv", *options))
    assert "found no sample in 1 chunks, expected some to learn" in words
    assert not (tmp_path / "new").exists()


@pytest.mark.long
def test_a_cluster_that_runs_already_is_used(tmp_path):
    from edgemerge.dask import local_client

    X = history(500)
    path = in_npy(X, tmp_path / "a.npy")
    save(Projection(n_inputs=4, n_hidden=8), tmp_path / "shared")
    with local_client(workers=1) as client:
        done = call(
            *("bulk", tmp_path / "new", path, "--projection", tmp_path / "shared"),
            *("--scheduler", client.scheduler.address),
        )
        assert done.exit_code == 0, done.output
        assert client.nthreads()  # it is left as it was
    assert load(tmp_path / "new").own == taught(Projection(n_inputs=4, n_hidden=8), X).own
