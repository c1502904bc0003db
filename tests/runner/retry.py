"""Decides which failed tests run once more, alone, and judges the flaky ones.

At most three failed tests run again, after everything else. A test that then passes is *flaky*: it counts as passed, is
named in the last lines, and its first output is kept. Failures that may be faults of the product are not repeated:
NEVER and NEVER_OUTPUT. Tests in flaky.txt are known to be flaky; a run may have one other flaky test.
"""

import dataclasses
import datetime
import pathlib
import re

from . import count
from .stage import ROOT, Stage

FILE = ROOT / "tests" / "flaky.txt"
MAX_RETRIES = 3
MAX_ENTRIES = 5
MAX_UNKNOWN = 1  # flaky tests in a run that are not in flaky.txt
MAX_DAYS = 7  # from an entry's first day to its last

# Fixed seeds and recorded results: a repetition gives the same result, or the program differs.
NEVER = re.compile(r"Golden|Simulation|Mutant|\(the package\)")
NEVER_OUTPUT = re.compile(
    r"Sanitizer|DATA RACE|runtime error:|panic:|SIGSEGV|SIGABRT|SEGFAULT|Subprocess aborted"  # memory and thread errors
    r"|differ|conflicting tokens?|(was|were) lost|lost \d+ requests"  # wrong results of clients
    r"|left after the cluster is down", re.I)


def may_retry(failure, stage):
    """Whether a failed test may be run again.

    >>> go = Stage("go", "", "go", retry=True)
    >>> may_retry(count.Failure("go", "p TestX", "condition never satisfied"), go)
    True
    >>> [may_retry(count.Failure("go", "p TestX", text), go) for text in ("WARNING: DATA RACE", "token 3 differs", "request 2 was lost")]
    [False, False, False]
    >>> may_retry(count.Failure("go", "p TestGolden/tiny", "condition never satisfied"), go), may_retry(count.Failure("lint", "x", ""), Stage("lint", ""))
    (False, False)
    """
    return stage.retry and not NEVER.search(failure.name) and not NEVER_OUTPUT.search(failure.output)


def alone(failure, stage):
    """The stage that runs one test again.

    >>> alone(count.Failure("go", "tangram.dev/e2e/cluster/host TestX/a b", ""), Stage("go", "", "go", code=12)).command
    "cd e2e/cluster && go test -json -count=1 -timeout 20m -vet=off -run '^TestX$' tangram.dev/e2e/cluster/host"
    >>> alone(count.Failure("c++", "Mover/Wire.Spoilt/ucx", ""), Stage("c++", "", "ctest")).command
    "ctest --test-dir build/cxx -R '^Mover/Wire\\\\.Spoilt/ucx( |$)' --output-on-failure --output-junit {junit}"
    """
    if stage.reader == "ctest":
        command = f"ctest --test-dir build/cxx -R '^{re.escape(failure.name)}( |$)' --output-on-failure --output-junit {{junit}}"
    else:
        package, _, test = failure.name.partition(" ")
        path = package.removeprefix("tangram.dev/")
        module = "e2e/cluster" if path.startswith("e2e/cluster") else path.split("/")[0]
        command = f"cd {module} && go test -json -count=1 -timeout 20m -vet=off -run '^{test.split('/')[0]}$' {package}"
    return dataclasses.replace(stage, name=f"{stage.name}-again", command=command)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A line of flaky.txt: a test that is known to be flaky until a date."""

    name: str  # as a failure is printed: "stage: test"
    first: datetime.date
    issue: str
    until: datetime.date


def read(path=FILE):
    """Entries of flaky.txt, and what is wrong with the file.

    >>> import tempfile; file = pathlib.Path(tempfile.mkdtemp()) / "flaky.txt"
    >>> _ = file.write_text("# comment\\nwalk: p TestX  2026-11-27  #12  2026-12-04\\nwalk: p TestY  2026-11-27  #12  2027-12-04\\nnonsense\\n")
    >>> entries, wrong = read(file)
    >>> [e.name for e in entries], wrong
    (['walk: p TestX', 'walk: p TestY'], ['walk: p TestY: from 2026-11-27 to 2027-12-04 is more than 7 days', 'line 4: want NAME  FIRST-DAY  ISSUE  LAST-DAY, with two spaces between'])
    """
    entries, wrong = [], []
    for number, line in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = re.split(r"\s{2,}", line.strip())
        try:
            name, first, issue, until = fields
            entries.append(Entry(name, datetime.date.fromisoformat(first), issue, datetime.date.fromisoformat(until)))
        except ValueError:
            wrong.append(f"line {number}: want NAME  FIRST-DAY  ISSUE  LAST-DAY, with two spaces between")
            continue
        if (entries[-1].until - entries[-1].first).days > MAX_DAYS:
            wrong.append(f"{name}: from {first} to {until} is more than {MAX_DAYS} days")
    if len(entries) > MAX_ENTRIES:
        wrong.append(f"{len(entries)} entries: at most {MAX_ENTRIES}; fix a test first")
    return entries, wrong


def expired(entries, today):
    return [e for e in entries if e.until < today]


def run_again(runner, results):
    """Runs failed tests again, if they are few and may be repeated; moves passing ones from failures to passed. Returns
    the flaky ones."""
    failures = [(f, r) for r in results for f in r.count.failures]
    if not failures or len(failures) > MAX_RETRIES or runner.killed:
        return []
    flaky = []
    for failure, result in failures:
        if not may_retry(failure, result.stage):
            runner.say(f"{failure} is not run again")
            continue
        again = runner.run(alone(failure, result.stage))
        if again.count.failures or not again.count.passed:
            continue
        result.count.failures.remove(failure)
        result.count.passed += 1
        flaky.append(failure)
        folder = runner.logs / "flaky"
        folder.mkdir(exist_ok=True)
        (folder / (re.sub(r"\W+", "_", str(failure)) + ".log")).write_text(failure.output)
    return flaky


def judge(flaky, entries, today):
    """Lines about flaky tests, and whether there are too many that flaky.txt does not have.

    >>> known = Entry("go: p TestX", datetime.date(2026, 11, 27), "#1", datetime.date(2026, 12, 4))
    >>> x, y, z = (count.Failure("go", f"p Test{n}", "text") for n in "XYZ")
    >>> judge([x], [known], datetime.date(2026, 11, 28))
    (['FLAKY go: p TestX (1 of 2 passed, known since 2026-11-27, #1)'], False)
    >>> judge([x], [known], datetime.date(2026, 12, 5))[0]
    ['NEW FLAKY go: p TestX (1 of 2 passed)']
    >>> judge([y], [known], datetime.date(2026, 11, 28))[1], judge([y, z], [known], datetime.date(2026, 11, 28))[1]
    (False, True)
    """
    valid = {e.name: e for e in entries if e.until >= today}
    lines, unknown = [], 0
    for failure in flaky:
        if entry := valid.get(str(failure)):
            lines.append(f"FLAKY {failure} (1 of 2 passed, known since {entry.first}, {entry.issue})")
        else:
            unknown += 1
            lines.append(f"NEW FLAKY {failure} (1 of 2 passed)")
    return lines, unknown > MAX_UNKNOWN
