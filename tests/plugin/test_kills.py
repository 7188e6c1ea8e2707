"""Runs that end in the middle: Ctrl-C, SIGKILL of pytest, SIGKILL of a worker. Nothing lives on, nothing is lost."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from project import Project, exact_claim, wait_until

DEPTHS = [96, 97, 98, 99, 100, 101]
"""Enough to do that another worker waits for its turn when one is killed."""
STALL = "stall-at=5:120"
SOON_S = 5.0
"""So soon after pytest's death must the device be free."""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """The first claim's pairs pass; the second's candidate stalls for minutes."""
    return Project(
        tmp_path,
        lanes={"stall": ["--fault", STALL]},
        claims={"same": exact_claim(), "stuck": exact_claim("stall")},
    )


def _stuck(project: Project) -> bool:
    """Is the candidate of a pair of ``stuck`` in its measured request?"""
    begun = {intent["pair"] for intent in project.intents()}
    if not any(name.startswith("stuck") for name in begun):
        return False
    logs = list((project.root / ".parity" / "logs").glob("*/stuck-*.candidate.log"))
    return bool(logs) and bool(project.engines())


def _when_stuck(project: Project) -> None:
    wait_until(lambda: (project.folder / "intents").exists() and _stuck(project), "the stalled pair")


def _ledger(project: Project) -> list[str]:
    """Outcomes that the log tells of, in order."""
    lines = (project.folder / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["subject"].get("outcome", "?") for line in lines]


@pytest.mark.parametrize("mode", ["no-xdist", "n0", "n2"])
def test_ctrl_c_leaves_a_broken_receipt_and_no_engine(project: Project, mode: str) -> None:
    """To the whole group, as a terminal does it. What was measured before is kept and told."""
    with project.started("-m", "parity", mode=mode, group=True) as process:
        _when_stuck(project)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(60)
    ran = project.finished(process)
    assert ran.status == 2
    assert project.engines() == []
    assert project.lease_is_free()
    receipts = project.receipts()
    if mode != "n2":  # where the other claim's pairs may still wait for their turn
        assert receipts["same-d64-synthetic-r1"]["outcome"] == "passed"
    assert receipts["stuck-d64-synthetic-r1"]["outcome"] == "broken"
    assert receipts["stuck-d64-synthetic-r1"]["reason"]["code"] in ("interrupted", "abandoned")
    assert "INCOMPLETE" in ran.claim("stuck").text
    assert "parity: verdicts" in ran.out
    assert "stuck-d64-synthetic-r2" not in receipts or mode == "n2"
    assert "INTERNALERROR" not in ran.out


def test_sigkill_of_pytest_frees_the_device_and_the_next_run_tells_of_it(project: Project) -> None:
    with project.started("-m", "parity") as process:
        _when_stuck(project)
        process.kill()
        process.wait()
        took = wait_until(lambda: not project.engines(), "the engines to end", timeout_s=SOON_S)
        wait_until(project.lease_is_free, "the lease to be free", timeout_s=SOON_S - took)
    first = project.sessions()
    assert "stuck-d64-synthetic-r1" not in project.receipts()

    # Mended in the meantime: the next run measures all of it in a session of its own.
    project.lanes = {"stall": ["--fault", "stall-at=5:0"]}
    project.write()
    ran = project.run("-m", "parity")
    assert ran.status == 0
    told = "parity: broken pair found, receipted and not measured again: stuck-d64-synthetic-r1 of session "
    assert ran.out.count(told + first[0]) == 1
    assert ran.claim("stuck").word == "passed"
    assert len(project.sessions()) == 2
    broken = json.loads((project.folder / f"{first[0]}.stuck-d64-synthetic-r1.json").read_bytes())
    assert broken["outcome"] == "broken"
    assert broken["reason"]["code"] == "abandoned"
    assert broken["timing"] is None
    assert broken["recovered_at"]
    assert _ledger(project) == ["passed", "passed", "broken", "passed", "passed", "passed", "passed"]
    # Told once.
    ran = project.run("-m", "parity", "--claims", "same")
    assert "broken pair found" not in ran.out


def test_sigkill_of_xdists_controller_frees_the_device(project: Project) -> None:
    with project.started("-m", "parity", "--claims", "stuck", mode="n2") as process:
        _when_stuck(project)
        process.kill()
        process.wait()
        took = wait_until(lambda: not project.engines(), "the engines to end", timeout_s=SOON_S)
        wait_until(project.lease_is_free, "the lease to be free", timeout_s=SOON_S - took)


def test_sigkill_of_a_worker_spends_its_pair_and_the_others_go_on(project: Project) -> None:
    """Xdist runs the item again that killed its worker: the pair was begun, so it isn't measured again."""
    project.claims = {
        "stuck": exact_claim("stall"),
        "same": exact_claim(),
        "more": exact_claim(depths=DEPTHS),
    }
    # An engine that SIGTERM does not end holds the lease for a moment longer than its worker lives.
    project.lanes = {"stall": ["--fault", "stall-at=5:8", "--fault", "ignore-sigterm"]}
    project.write()
    with project.started("-m", "parity", mode="n2") as process:
        _when_stuck(project)
        worker = next(
            intent["pid"] for intent in project.intents() if intent["pair"] == "stuck-d64-synthetic-r1"
        )
        assert worker != process.pid
        os.kill(worker, signal.SIGKILL)
        process.wait(120)
    ran = project.finished(process)
    receipts = project.receipts()
    assert receipts["stuck-d64-synthetic-r1"]["outcome"] == "broken"
    assert receipts["stuck-d64-synthetic-r1"]["reason"]["code"] == "abandoned"
    rest = {name: body["outcome"] for name, body in receipts.items() if name != "stuck-d64-synthetic-r1"}
    names = [f"more-d{depth}-synthetic-r{rep}" for depth in DEPTHS for rep in (1, 2)]
    names += ["stuck-d64-synthetic-r2", "same-d64-synthetic-r1", "same-d64-synthetic-r2"]
    assert rest == dict.fromkeys(names, "passed")
    words = [report.word for report in ran.reports if report.nodeid.endswith("[stuck-d64-synthetic-r1]")]
    assert words
    assert set(words) == {"failed"}
    assert (
        "it was begun and never finished (its worker was killed); it is not measured again"
        in ran.claim("stuck").text
    )
    assert ran.claim("same").word == ran.claim("more").word == "passed"
    assert ran.status == 1
    assert len(project.sessions()) == 1
    assert project.engines() == []
    assert project.lease_is_free()
    assert "INTERNALERROR" not in ran.out


@pytest.mark.parametrize("before", [0, 1], ids=["its-first", "with-cells-behind-it"])
def test_a_run_ends_whose_worker_is_killed_in_the_last_pair(project: Project, before: int) -> None:
    """Under xdist's own scheduler the replacement would wait for ever: for a next item, or for any at all."""
    first = "same" if before else "more"
    project.claims = {first: exact_claim(), "stuck": exact_claim("stall")}
    project.write()
    wanted = "(same and r1) or (stuck and r1)"
    with project.started("-m", "parity", "-k", wanted, mode="n1", group=True) as process:
        _when_stuck(project)
        os.kill(next(i["pid"] for i in project.intents() if i["pair"].startswith("stuck")), signal.SIGKILL)
        process.wait(60)
    ran = project.finished(process)
    assert ran.status == 1
    assert project.receipts()["stuck-d64-synthetic-r1"]["outcome"] == "broken"
    assert ran.claim("stuck").word == "failed"
    assert len(project.receipts()) == 1 + before
