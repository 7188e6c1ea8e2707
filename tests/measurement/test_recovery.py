"""A pair whose process was killed: its engine ends, its receipt says broken, and it is not measured again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from workshop import SESSION, Workshop, acted, bodies, claim, engine, engines_alive, pair

from pytest_parity import evidence
from pytest_parity.apparatus.lease import Lease
from pytest_parity.core.plan import Filter, make_plan
from pytest_parity.core.receipts import read_pair
from pytest_parity.errors import LeaseUnavailable, LedgerBroken, ReceiptExists
from pytest_parity.evidence.entries import Entry
from pytest_parity.measurement.planning import attempts, log_subjects
from pytest_parity.measurement.recovery import MOST_LEFT, alive, recover

LATER = "20250102T000000Z-bbbbbb"
SLOW = {"slow": {"argv": ("--fault", "stall-at=8:60")}}
CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from workshop import Workshop, claim, engine, pair
from test_recovery import SLOW
shop = Workshop(Path(sys.argv[2]), engines={"e": engine(lanes=SLOW)}, claim=claim(lane="slow"))
shop.conductor().measure(pair(shop.claim, 2), "replay")
"""


def wait_for(true: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Wait until something is so."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"waited {seconds:g} s in vain for {what}"
        time.sleep(0.02)


@contextmanager
def session_in_the_middle_of_a_side(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process measures; its first side stalls in its measured request."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(Path(__file__).parent), str(root)])
    try:
        wait_for(lambda: bool(engines_alive()), "an engine")
        yield child
    finally:
        child.kill()
        child.wait()


def shop_of(root: Path, session: str = LATER) -> Workshop:
    """The same project in another session."""
    return Workshop(root, engines={"e": engine(lanes=SLOW)}, claim=claim(lane="slow"), session=session)


def lease_is_free(root: Path) -> bool:
    """Can the lease be taken?"""
    try:
        Lease.acquire("test", root / "lease.lock", "a look").close()
    except LeaseUnavailable:
        return False
    return True


def test_a_session_that_is_killed_in_the_middle_of_a_side(tmp_path: Path) -> None:
    assert engines_alive() == []
    later = shop_of(tmp_path)
    with session_in_the_middle_of_a_side(tmp_path) as child:
        # A living session's intent is left alone.
        assert recover(later.workspace()).pairs == ()
        assert bodies(later.receipts) == {}
        (intent,) = (later.receipts / "intents").glob("*.json")
        assert json.loads(intent.read_bytes())["pid"] == child.pid
        assert not lease_is_free(tmp_path)
        child.send_signal(signal.SIGKILL)
        child.wait()
        wait_for(
            lambda: not engines_alive() and lease_is_free(tmp_path), "the engine's end and a free lease", 5.0
        )
    found = recover(later.workspace())
    assert found.pairs == (f"same-d64-synthetic-r2 of session {SESSION}",)
    assert (found.logged, found.unreadable) == ((), ())
    (body,) = bodies(later.receipts).values()
    assert (body["outcome"], body["session"], body["order"]) == ("broken", SESSION, "CR")
    assert body["reason"] == {
        "code": "abandoned", "sentence": "it was begun and never finished: its process was killed",
    }  # fmt: skip
    assert body["recovered_at"] > body["at"]
    assert [side["words"] for side in body["sides"].values()] == [None, None]
    record = read_pair("r", body)
    assert (record.outcome, record.rep, record.claim) == ("broken", 2, "same")
    assert evidence.verify(later.receipts).whole
    subject = Entry.read((later.receipts / "log.jsonl").read_bytes(), 1).subject
    assert (subject["outcome"], subject["claim"], subject["session"], subject["seconds"]) == (
        "broken",
        "same",
        SESSION,
        None,
    )
    # Once is enough, and the pair stays spent.
    assert recover(later.workspace()).pairs == ()
    with pytest.raises(
        ReceiptExists, match="expected a pair that was not yet measured in this session; found its receipt"
    ):
        shop_of(tmp_path, SESSION).conductor().measure(pair(later.claim, 2), "replay")


def _intent(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An intent without a receipt, as a killed process leaves one."""
    acted(monkeypatch)
    shop.conductor().measure(pair(shop.claim), "replay")
    (path,) = (shop.receipts / "intents").glob("*.json")
    return path


class TestWhoseIntent:
    def test_the_sessions_own_is_left_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shop = Workshop(tmp_path)
        _intent(shop, monkeypatch)
        assert recover(shop.workspace()).pairs == ()

    def test_one_of_a_session_that_lives_is_left_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop = Workshop(tmp_path)
        _intent(shop, monkeypatch)
        later = Workshop(tmp_path, session=LATER).workspace()
        with alive(shop.receipts, SESSION), alive(shop.receipts, SESSION):
            assert recover(later).pairs == ()
        assert recover(later).pairs == (f"same-d64-synthetic-r1 of session {SESSION}",)

    def test_one_of_a_pair_that_is_still_held_is_left_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever measures without pytest is alive as long as the pair is to be recorded."""
        acted(monkeypatch)
        shop = Workshop(tmp_path)
        measured = shop.conductor().measure(pair(shop.claim), "replay").exact()
        assert recover(Workshop(tmp_path, session=LATER).workspace()).pairs == ()
        assert measured.record().outcome == "passed"

    def test_one_whose_session_is_gone_is_closed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _intent(Workshop(tmp_path), monkeypatch)
        later = Workshop(tmp_path, session=LATER)
        assert recover(later.workspace()).pairs == (f"same-d64-synthetic-r1 of session {SESSION}",)
        assert [body["outcome"] for body in bodies(later.receipts).values()] == ["broken"]

    def test_a_session_that_ended_leaves_no_lock(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop = Workshop(tmp_path)
        _intent(shop, monkeypatch)
        assert [path.name for path in (shop.receipts / "intents").iterdir()] == [
            f"{SESSION}.same-d64-synthetic-r1.json"
        ]

    @pytest.mark.parametrize("content", [b"", b"[]\n", b"{}\n", b'{"session":"x"}\n', b"\xff"])
    def test_one_that_cannot_be_read_is_named_and_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
    ) -> None:
        intent = _intent(Workshop(tmp_path), monkeypatch)
        intent.chmod(0o644)
        intent.write_bytes(content)
        later = Workshop(tmp_path, session=LATER)
        found = recover(later.workspace())
        assert (found.pairs, found.unreadable) == ((), (f"{SESSION}.same-d64-synthetic-r1",))
        assert intent.exists() and bodies(later.receipts) == {}

    def test_a_closed_one_is_no_news(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        acted(monkeypatch)
        shop = Workshop(tmp_path)
        shop.conductor().measure(pair(shop.claim), "replay").exact().record()
        found = recover(Workshop(tmp_path, session=LATER).workspace())
        assert (found.pairs, found.logged, found.unreadable) == ((), (), ())


class TestReceiptsOutsideTheLog:
    def test_are_chained_when_the_next_session_starts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acted(monkeypatch)
        shop = Workshop(tmp_path)
        receipt = shop.conductor().measure(pair(shop.claim), "replay").exact().record()
        (shop.receipts / "log.jsonl").unlink()
        assert evidence.verify(shop.receipts).unlogged == (receipt.name,)
        found = recover(Workshop(tmp_path, session=LATER).workspace())
        assert (found.pairs, found.logged) == ((), (receipt.name,))
        assert evidence.verify(shop.receipts).whole

    def test_say_in_the_log_what_they_would_have_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else a crash between the two writes takes an attempt out of the count."""
        acted(monkeypatch)
        shop = Workshop(tmp_path)
        shop.conductor().measure(pair(shop.claim), "replay").exact().record()
        log = shop.receipts / "log.jsonl"
        ordinary = Entry.read(log.read_bytes(), 1).subject
        log.unlink()
        later = Workshop(tmp_path, session=LATER)
        recover(later.workspace())
        assert Entry.read(log.read_bytes(), 1).subject == {**ordinary, "recovered": True}
        later.conductor().measure(pair(later.claim), "replay").exact().record()
        plan = make_plan([later.claim], Filter())
        assert list(attempts(later.workspace(), plan).values()) == [2]

    @pytest.mark.parametrize(
        "content", ["{ }", "{}\n", "[]\n", '"receipt"\n', '{"format":"pytest-parity/receipt/1"}\n', "null\n"]
    )
    def test_that_are_none_are_named_and_left_alone(self, tmp_path: Path, content: str) -> None:
        shop = Workshop(tmp_path)
        shop.workspace().store.prepare()
        (shop.receipts / "x.json").write_text(content)
        found = recover(shop.workspace())
        assert (found.unreadable, found.logged) == (("x",), ())
        assert (shop.receipts / "x.json").read_text() == content
        assert list(log_subjects(shop.receipts)) == []


def test_a_folder_that_is_not_there_needs_nothing(tmp_path: Path) -> None:
    found = recover(Workshop(tmp_path).workspace())
    assert (found.pairs, found.logged, found.unreadable) == ((), (), ())
    assert not (tmp_path / ".parity").exists()


def test_a_log_that_lost_more_than_a_crash_can_is_refused(tmp_path: Path) -> None:
    workspace = Workshop(tmp_path).workspace()
    workspace.store.prepare()
    for number in range(MOST_LEFT + 1):
        workspace.store.publish(f"loose-{number}", b"{}\n")
    with pytest.raises(
        LedgerBroken, match=f"at most {MOST_LEFT} receipts that a crash kept out of it; found 17"
    ):
        recover(workspace)
