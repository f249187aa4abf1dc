"""How results were made, in words: settings, seeds, data, versions, machine."""

from __future__ import annotations

from edgemerge.paper.reporting.report import Report
from edgemerge.paper.running.forecast import clock
from edgemerge.paper.running.keeping import Record

MOST = 3  # settings of one method that are told


def command(record: Record) -> str:
    """Give the command that makes a result again."""
    words = [f"edgemerge paper {record.result} --seed {record.seed} --trials {record.trials}"]
    words += [f"--baseline-trials {record.baseline_trials}"]
    return " ".join([*words, *(["--quick"] if record.quick else [])])


def facts(record: Record) -> dict[str, str]:
    """Tell how a result was made; words between backticks are code."""
    found = {"Command": f"`{command(record)}`"}
    if record.quick:
        found["Quick"] = "yes: a part of the data, so the numbers differ from those of a full run"
    if record.baselines:
        found["Baselines"] = f"not run: {record.baselines}"
    found["Rows"] = f"`{record.result}.csv`"
    found["Made"] = f"{record.date}, edgemerge {record.version}"
    found["Time"] = _time(record)
    found["Data"] = "; ".join(f"{name}, SHA-256 {key[:16]}…" for name, key in record.data.items())
    found |= {f"Settings of {name}": _few(all_) for name, all_ in record.settings.items()}
    return {word: text for word, text in found.items() if text}


def _few(settings: list[str]) -> str:
    more = f" and {len(settings) - MOST} more" if len(settings) > MOST else ""
    return ", ".join(f"`{each}`" for each in settings[:MOST]) + more


def _time(record: Record) -> str:
    before = f", {record.jobs_before} of them done in an earlier run" if record.jobs_before else ""
    jobs = "1 job" if record.jobs == 1 else f"{record.jobs} jobs"
    work = f"; the jobs alone took {clock(record.job_seconds)}" if record.job_seconds else ""
    return f"{clock(record.seconds)}, {jobs}{before}{work}"


def remarks(report: Report) -> list[str]:
    """Say what a reader must know before the numbers."""
    quick = [section.name for section in report.sections if section.record.quick]
    alone = [section.name for section in report.sections if section.record.baselines]
    absent = [each.name for each in report.absent]
    said = {
        "Made quickly, from a part of the data, so that the numbers are rough": quick,
        "Made without networks as baselines, where there are any": alone,
        "Not run, and listed at the end": absent,
    }
    return [f"{words}: {', '.join(names)}." for words, names in said.items() if names]


def machines(report: Report) -> dict[str, str]:
    """Tell which machine and packages made which results."""
    found: dict[str, list[str]] = {}
    for section in report.sections:
        found.setdefault(_machine(section.record), []).append(section.name)
    return {", ".join(names): words for words, names in found.items()}


def _machine(record: Record) -> str:
    it = record.machine
    parts = [f"{it[key]}" for key in ("processor", "system") if it.get(key)]
    parts += [f"{it['cores']} cores"] if "cores" in it else []
    parts += [f"{it['memory_gb']} GB of memory"] if it.get("memory_gb") else []
    parts += [f"Python {it['python']}"] if "python" in it else []
    parts += [f"{name} {each}" for name, each in record.packages.items()]
    return ", ".join(parts) or "not told"
