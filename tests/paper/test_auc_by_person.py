"""ROC-AUC by person: the protocol of `auc` with another split, and its claims on real data."""

import numpy as np
import pytest

from edgemerge.paper import auc, auc_by_person
from edgemerge.paper.dataset import Trial, split_by_person
from edgemerge.paper.plan import Plan, Scope
from tests.paper.real import FOLDER, needs_data
from tests.paper.toys import ToyScope, noting

pytestmark = pytest.mark.slow

SCOPE = ToyScope(patterns=6, samples=120, inputs=8, origins=10)


def jobs_of(plan):
    seen = []
    auc_by_person.run(Plan(plan.scope, trials=plan.trials, spread=noting(seen, lambda *_: [])))
    return seen[0][1]


def test_each_method_that_merges_is_run_on_har_and_its_settings_name_the_split():
    jobs = jobs_of(Plan(Scope(FOLDER), trials=2))
    assert [(job.method, job.trial) for job in jobs] == [
        (method, trial) for method in ("OS-ELM", "bank", "ours") for trial in (0, 1)
    ]
    assert {(job.result, job.dataset) for job in jobs} == {("auc-by-person", "har")}
    assert all(job.settings.endswith("0.8 learnt, 0.1 odd, by person") for job in jobs)


def test_rows_are_those_of_the_protocol_with_the_split_by_person():
    for job in jobs_of(Plan(SCOPE, trials=1)):
        rows = auc_by_person.work(job, SCOPE)
        assert rows == auc.merging_rows(Trial(job, SCOPE, split_by_person))
        if job.method == "OS-ELM":  # our banks make no mistake on a toy, however it is split
            assert rows != auc.merging_rows(Trial(job, SCOPE))


def test_the_claims_compare_each_step_with_the_one_before():
    def rows(**means):
        return [
            {"dataset": "har", "method": method, "device_a": auc.ALL, "device_b": auc.OTHERS,
             "trials": 1, "auc": mean, "spread": 0.0}
            for method, mean in means.items()
        ]  # fmt: skip

    rising = auc_by_person.claims(rows(before=0.7, after=0.8, bank=0.85, ours=0.9))
    assert [claim.holds for claim in rising] == [True, True, True]
    assert rising[0].found == "0.700 → 0.800"
    falling = auc_by_person.claims(rows(before=0.8, after=0.7, bank=0.6, ours=0.5))
    assert [claim.holds for claim in falling] == [False, False, False]
    assert auc_by_person.claims(rows(before=0.7)) == []


def test_the_figure_says_how_it_was_split():
    rows = auc_by_person.summarise(
        row for job in jobs_of(Plan(SCOPE, trials=1)) for row in auc_by_person.work(job, SCOPE)
    )
    figures = auc_by_person.plot(rows)
    assert list(figures) == ["har"]
    assert "split by person" in figures["har"].get_suptitle()


@pytest.mark.long
@needs_data
def test_on_real_data_the_claims_hold_for_people_not_seen_in_training():
    rows = auc_by_person.run(Plan(Scope(FOLDER, quick=True), trials=1))
    assert [claim.holds for claim in auc_by_person.claims(rows)] == [True, True, True]
    means = auc.means(rows, "har")
    assert np.isfinite(list(means.values())).all()
