"""One pair from admission to its receipt, driven from plain code: no pytest plugin, no session of one."""

from __future__ import annotations

import pickle
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from workshop import (
    IDS,
    SESSION,
    Workshop,
    acted,
    bodies,
    body_of,
    claim,
    end,
    engine,
    engines_alive,
    foreign_engine,
    pair,
    says,
    start_foreign,
    with_words,
)

from pytest_parity import evidence
from pytest_parity.apparatus import scan as scanning
from pytest_parity.apparatus.lease import Lease
from pytest_parity.apparatus.scan import Scan
from pytest_parity.core.canonical import digest
from pytest_parity.core.receipts import read_pair
from pytest_parity.core.timing import ratio
from pytest_parity.core.transcript import Transcript
from pytest_parity.engines.driver import Progress, Request
from pytest_parity.engines.llama_server import LlamaServerDriver
from pytest_parity.errors import LeaseUnavailable, ReceiptExists
from pytest_parity.evidence.entries import Entry
from pytest_parity.measurement import conduct
from pytest_parity.measurement.pair import Diverged, Unfinished
from pytest_parity.measurement.side import SideJob


def _log(folder: Path) -> list[Entry]:
    lines = (folder / "log.jsonl").read_bytes().splitlines(keepends=True)
    return [Entry.read(line, number) for number, line in enumerate(lines, start=1)]


@pytest.fixture(scope="module")
def two_pairs(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """Two real pairs: r1 reference first, r2 candidate first."""
    shop = Workshop(tmp_path_factory.mktemp("two"))
    conductor = shop.conductor()
    for rep in (1, 2):
        conductor.measure(pair(shop.claim, rep), "the replay command").exact().record()
    return shop


class TestARealPair:
    def test_reads_back_as_it_was_measured(self, tmp_path: Path) -> None:
        shop = Workshop(tmp_path)
        conductor = shop.conductor()
        measured = conductor.measure(pair(shop.claim), "the replay command").exact(minimum_tokens=10)
        receipt = measured.record()
        record = conductor.read(pair(shop.claim))
        assert record is not None
        assert record == read_pair(receipt.name, body_of(receipt.path))
        assert record.timing == measured.timing()
        assert (record.outcome, record.tokens, measured.tokens) == ("passed", 16, 16)
        assert (record.claim, record.claim_digest) == ("same", shop.claim.digest)
        assert (record.depth, record.fixture, record.rep, record.order) == (64, "synthetic", 1, "RC")
        assert (record.session, record.replay) == (SESSION, "the replay command")
        assert receipt.name == f"{SESSION}.same-d64-synthetic-r1"
        assert receipt.path == shop.receipts / f"{receipt.name}.json"
        assert receipt.digest == digest(receipt.path.read_bytes())
        assert body_of(receipt.path)["minimum_tokens"] == 10
        assert conductor.has_receipt(pair(shop.claim)) and not conductor.has_receipt(pair(shop.claim, 2))
        assert conductor.read(pair(shop.claim, 2)) is None

    def test_is_chained_in_the_log_with_what_a_count_of_attempts_needs(self, two_pairs: Workshop) -> None:
        whole = evidence.verify(two_pairs.receipts)
        assert whole.whole and (whole.lines, whole.files) == (2, 2)
        found = bodies(two_pairs.receipts)
        for rep, entry in enumerate(_log(two_pairs.receipts), start=1):
            body = found[f"same-d64-synthetic-r{rep}"]
            name = f"{SESSION}.same-d64-synthetic-r{rep}"
            assert entry.kind == "receipt"
            assert entry.subject == {
                "name": name,
                "digest": digest((two_pairs.receipts / f"{name}.json").read_bytes()),
                "seconds": body["lease"]["held_s"],
                "timed": True,
                "session": SESSION,
                "claim": "same",
                "claim_digest": two_pairs.claim.digest,
                "depth": 64,
                "fixture": "synthetic",
                "rep": rep,
                "outcome": "passed",
                "candidate": entry.subject["candidate"],
                "reference": entry.subject["reference"],
            }
            assert body["lease"]["held_s"] > 0
        first, second = (entry.subject for entry in _log(two_pairs.receipts))
        assert first["candidate"] == second["candidate"] != first["reference"] == second["reference"]

    def test_has_its_sides_in_the_order_of_the_plan(self, two_pairs: Workshop) -> None:
        found = bodies(two_pairs.receipts)
        for rep, first, second in ((1, "reference", "candidate"), (2, "candidate", "reference")):
            body = found[f"same-d64-synthetic-r{rep}"]
            sides = body["sides"]
            assert (sides[first]["position"], sides[second]["position"]) == (1, 2)
            assert sides[first]["clockwork"]["sent_ns"] < sides[second]["clockwork"]["sent_ns"]
            assert body["order"] == ("RC" if rep == 1 else "CR")

    def test_has_two_processes_that_ended_and_two_configurations(self, two_pairs: Workshop) -> None:
        for body in bodies(two_pairs.receipts).values():
            sides = body["sides"]
            assert sides["candidate"]["pid"] != sides["reference"]["pid"]
            assert sides["candidate"]["configuration_digest"] != sides["reference"]["configuration_digest"]
            for role, lane in (("candidate", "fused"), ("reference", "plain")):
                side = sides[role]
                assert (side["engine"], side["lane"], side["phase"], side["ended"]) == (
                    "e",
                    lane,
                    "done",
                    "exit status 0",
                )
                assert side["warmup"] == {"prompt_tokens": 16, "output_tokens": 1, "cache": False}
                assert side["identity"]["facts"]["embedded"]["kernels"] == lane
                assert side["clockwork"]["peak_rss_bytes"] > 1_000_000
                assert (side["words"]["cached"], side["words"]["predicted"]) == (0, 16)

    def test_has_a_lease_number_of_its_own_and_three_clean_scans(self, two_pairs: Workshop) -> None:
        found = list(bodies(two_pairs.receipts).values())
        assert [body["lease"]["number"] for body in found] == [1, 2]
        assert all(body["lease"]["path"] == "lease.lock" for body in found)
        for body in found:
            assert [seen["processes"] for seen in body["scans"]] == [[], [], []]

    def test_leaves_no_engine_and_a_free_lease(self, two_pairs: Workshop) -> None:
        assert engines_alive() == []
        with Lease.acquire("test", two_pairs.root / "lease.lock", "a look"):
            pass

    def test_of_a_fresh_process_has_an_intent_from_before_its_first_side(self, two_pairs: Workshop) -> None:
        intents = bodies(two_pairs.receipts / "intents")
        receipts = bodies(two_pairs.receipts)
        assert intents.keys() == receipts.keys()
        for name, intent in intents.items():
            assert intent["at"] < receipts[name]["at"]
            promised = intent["receipt"]
            assert (promised["outcome"], promised["reason"]["code"]) == ("broken", "abandoned")
            assert [side["phase"] for side in promised["sides"].values()] == ["not started", "not started"]
            assert read_pair("promised", promised).outcome == "broken"


class TestOnce:
    def test_a_pair_is_measured_once_in_a_session(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop, seen = Workshop(tmp_path), list[SideJob]()
        acted(monkeypatch, seen=seen)
        conductor = shop.conductor()
        conductor.measure(pair(shop.claim), "replay").exact().record()
        with pytest.raises(ReceiptExists) as caught:
            conductor.measure(pair(shop.claim), "replay")
        assert str(caught.value) == (
            "pair same-d64-synthetic-r1: expected a pair that was not yet measured in this session; found its receipt. "
            "A pair runs once in a session: start a new session to measure again."
        )
        assert len(seen) == 2
        assert evidence.verify(shop.receipts).lines == 1

    def test_a_pair_that_was_refused_is_spent_as_well(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop, seen = Workshop(tmp_path), list[SideJob]()
        acted(monkeypatch, seen=seen)
        with foreign_engine():
            shop.unfinished()
        with pytest.raises(
            ReceiptExists, match="a pair that was not yet measured in this session; found its receipt"
        ):
            shop.conductor().measure(pair(shop.claim), "replay")
        assert seen == []

    def test_a_pair_that_was_begun_and_not_recorded_is_broken_and_not_begun_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop, seen = Workshop(tmp_path), list[SideJob]()
        acted(monkeypatch, seen=seen)
        shop.conductor().measure(pair(shop.claim), "replay")
        error, body = shop.unfinished()
        assert str(error) == (
            "broken: it was begun and never finished (its worker was killed); it is not measured again"
        )
        assert (body["outcome"], body["reason"]["code"]) == ("broken", "abandoned")
        assert len(seen) == 2

    def test_a_new_session_measures_the_same_pair(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acted(monkeypatch)
        for session in (SESSION, "20250102T000000Z-bbbbbb"):
            shop = Workshop(tmp_path, session=session)
            shop.conductor().measure(pair(shop.claim), "replay").exact().record()
        assert evidence.verify(tmp_path / ".parity" / "receipts").lines == 2

    def test_a_pair_is_recorded_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shop = Workshop(tmp_path)
        acted(monkeypatch)
        measured = shop.conductor().measure(pair(shop.claim), "replay").exact()
        measured.record()
        with pytest.raises(
            ReceiptExists, match="receipt 20250101T000000Z-aaaaaa.same-d64-synthetic-r1: expected a name"
        ):
            measured.record()


class TestLease:
    def test_a_lease_that_is_not_to_be_had_leaves_nothing_behind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop, seen = Workshop(tmp_path), list[SideJob]()
        acted(monkeypatch, seen=seen)
        conductor = shop.conductor()
        busy = pytest.raises(LeaseUnavailable, match="expected nobody to hold it; found it held by pid ")
        with Lease.acquire("test", tmp_path / "lease.lock", "somebody else"), busy:
            conductor.measure(pair(shop.claim), "replay")
        assert seen == []
        assert sorted(path.name for path in shop.receipts.rglob("*")) == [f".alive-{SESSION}", "intents"]
        assert not conductor.has_receipt(pair(shop.claim))
        conductor.measure(pair(shop.claim), "replay").exact().record()  # and so it may be measured later

    def test_the_lease_is_free_after_every_end(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shop = Workshop(tmp_path)
        acted(monkeypatch, candidate=KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            shop.conductor().measure(pair(shop.claim), "replay")
        with Lease.acquire("test", tmp_path / "lease.lock", "a look"):
            pass

    def test_a_lost_lease_breaks_the_pair(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shop = Workshop(tmp_path)
        acted(monkeypatch)
        quiet = scanning.scan

        def steal(own: frozenset[int]) -> Scan:
            (tmp_path / "lease.lock").unlink(missing_ok=True)
            return quiet(own)

        monkeypatch.setattr(scanning, "scan", steal)
        error, body = shop.unfinished()
        assert (body["outcome"], body["reason"]["code"]) == ("broken", "apparatus")
        assert "the file removed or replaced: others may have taken the device since" in str(error)
        assert str(tmp_path) not in body["reason"]["sentence"]


class TestQuiet:
    def test_is_slept_under_the_lease_before_each_side(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop = Workshop(tmp_path, quiet_s=1.25)
        order: list[object] = []
        acted(monkeypatch)
        play, look = vars(conduct)["run_side"], scanning.scan

        def scan(own: frozenset[int]) -> Scan:
            order.append("scan")
            return look(own)

        def sleep(seconds: float) -> None:
            with pytest.raises(LeaseUnavailable):
                Lease.acquire("test", tmp_path / "lease.lock", "a look")
            order.append(("sleep", seconds, bool(list((shop.receipts / "intents").glob("*.json")))))

        def side(*args: Any) -> Any:
            order.append("side")
            return play(*args)

        monkeypatch.setattr(scanning, "scan", scan)
        monkeypatch.setattr(time, "sleep", sleep)
        monkeypatch.setattr(conduct, "run_side", side)
        receipt = shop.conductor().measure(pair(shop.claim), "replay").exact().record()
        quiet = ("sleep", 1.25, True)  # the pair was begun: an interruption in here is receipted
        assert order == ["scan", quiet, "side", "scan", quiet, "side", "scan"]
        assert body_of(receipt.path)["lease"]["quiet_s"] == 1.25


class TestWords:
    def test_record_before_exact_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shop = Workshop(tmp_path)
        acted(monkeypatch)
        measured = shop.conductor().measure(pair(shop.claim), "replay")
        with pytest.raises(AssertionError, match=r"record\(\) before exact\(\): exactness comes first"):
            measured.record()

    def test_a_test_that_ended_early_leaves_a_void_receipt_with_its_words(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop = Workshop(tmp_path)
        acted(monkeypatch)
        receipt = (
            shop.conductor().measure(pair(shop.claim), "replay").abandon("the test ended before record()")
        )
        body = body_of(receipt.path)
        assert (body["outcome"], body["timing"]) == ("void", None)
        assert body["reason"] == {"code": "test-ended", "sentence": "the test ended before record()"}
        assert body["sides"]["candidate"]["words"]["predicted"] is None
        assert read_pair("r", body).readings("decode_tps") is None

    def test_fewer_tokens_than_asked_for_are_void(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop = Workshop(tmp_path, claim=claim(minimum_tokens=12))
        acted(monkeypatch)
        measured = shop.conductor().measure(pair(shop.claim), "replay")
        with pytest.raises(Unfinished) as caught:
            measured.exact(minimum_tokens=17)
        assert str(caught.value) == (
            "exactness: expected at least 17 output tokens on both sides; found 16. "
            "Ask for more output tokens, or use a prompt that does not end at once."
        )
        body = body_of(caught.value.receipt.path)
        assert (body["outcome"], body["reason"]["code"], body["minimum_tokens"]) == (
            "void",
            "nothing-compared",
            17,
        )

    def test_a_test_can_only_raise_what_the_claim_asks(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop = Workshop(tmp_path, claim=claim(minimum_tokens=16))
        acted(monkeypatch, says(IDS[:15]), says(IDS[:15], sent_ns=21_000_000_123, step_ns=1_000_013))
        measured = shop.conductor().measure(pair(shop.claim), "replay")
        with pytest.raises(Unfinished, match="expected at least 16 output tokens on both sides; found 15"):
            measured.exact(minimum_tokens=3)

    def test_asking_again_for_more_is_not_answered_from_before(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop = Workshop(tmp_path)
        acted(monkeypatch)
        measured = shop.conductor().measure(pair(shop.claim), "replay")
        assert measured.exact() is measured.exact(minimum_tokens=16)
        with pytest.raises(Unfinished, match="expected at least 400 output tokens on both sides; found 16"):
            measured.exact(minimum_tokens=400)
        assert [body["minimum_tokens"] for body in bodies(shop.receipts).values()] == [400]

    def test_a_clock_that_runs_backwards_is_void_when_recorded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop = Workshop(tmp_path)
        acted(monkeypatch, candidate=says(step_ns=-1_000))
        measured = shop.conductor().measure(pair(shop.claim), "replay").exact()
        with pytest.raises(Unfinished) as caught:
            measured.record()
        body = body_of(caught.value.receipt.path)
        assert (body["outcome"], body["reason"]["code"], body["timing"]) == ("void", "timing", None)
        assert body["exactness"] == {"level": "tokens", "tokens": 16, "ids_from": "stream"}
        assert str(caught.value).startswith(
            "event 2 of the candidate: expected a time at or after 7005000134 ns; found "
        )

    def test_what_is_raised_survives_pickling(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shop = Workshop(tmp_path)
        acted(monkeypatch, candidate=says((*range(100, 115), 99)))
        with pytest.raises(Diverged) as caught:
            shop.conductor().measure(pair(shop.claim), "replay").exact()
        again = pickle.loads(pickle.dumps(caught.value))
        assert (str(again), again.divergence, again.receipt) == (
            str(caught.value), caught.value.divergence, caught.value.receipt,
        )  # fmt: skip
        shop = Workshop(tmp_path, session="20250102T000000Z-bbbbbb")
        acted(monkeypatch, pids=(7, 7))
        error, _ = shop.unfinished()
        other = pickle.loads(pickle.dumps(error))
        assert (str(other), other.reason, other.receipt) == (str(error), error.reason, error.receipt)


class TestTwoRunsThatAreOne:
    def test_one_process_on_both_sides_is_void(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        acted(monkeypatch, pids=(4711, 4711))
        error, body = Workshop(tmp_path).unfinished()
        assert str(error) == "void: both sides were answered by process 4711: two runs that are one (T15)"
        assert (body["outcome"], body["reason"]["code"], body["timing"]) == ("void", "one-process", None)

    def test_two_processes_are_not(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shop = Workshop(tmp_path)
        acted(monkeypatch, pids=(4711, 4712))
        timing = shop.conductor().measure(pair(shop.claim), "replay").exact().timing()
        assert ratio(timing, "decode_tps") == pytest.approx(1_000_013 / 1_000_003)

    def test_the_same_arrivals_to_the_nanosecond_are_void(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acted(monkeypatch, candidate=says(), reference=says(sent_ns=99_000_000_000))
        error, body = Workshop(tmp_path).unfinished()
        assert str(error) == (
            "void: both sides have the same arrival times to the nanosecond: two runs that are one (T15)"
        )
        assert body["reason"]["code"] == "one-run"


class TestCache:
    def test_a_prefix_from_a_forbidden_cache_is_void(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acted(monkeypatch, candidate=with_words(says(), cached=3))
        error, body = Workshop(tmp_path).unfinished()
        assert str(error) == "void: the candidate took 3 prompt tokens from a cache that was forbidden (T05)"
        assert (body["outcome"], body["reason"]["code"]) == ("void", "cached")

    def test_an_engine_that_reuses_against_the_request_is_void(self, tmp_path: Path) -> None:
        lane = {"reuses": {"argv": ("--fault", "reuse-cache"), "prime": True}}
        shop = Workshop(tmp_path, engines={"e": engine(lanes=lane)}, claim=claim(lane="reuses"))
        error, body = shop.unfinished()
        assert str(error) == "void: the candidate took 63 prompt tokens from a cache that was forbidden (T05)"
        assert body["sides"]["candidate"]["words"]["cached"] == 63

    @pytest.mark.parametrize("fixture", ["synthetic", "file:x.json"])
    def test_the_warm_up_leaves_nothing_that_the_prompt_could_reuse(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fixture: str
    ) -> None:
        """Not even an engine that keeps every prefix finds the prompt's own (T05)."""
        (tmp_path / "x.json").write_text(str([7, 7, *range(8, 70)]))
        sent: list[tuple[int, ...]] = []
        answer = LlamaServerDriver.generate

        def listen(self: LlamaServerDriver, request: Request, progress: Progress | None = None) -> Transcript:
            sent.append(request.prompt_ids)
            return answer(self, request, progress)

        monkeypatch.setattr(LlamaServerDriver, "generate", listen)
        lane = {"reuses": {"argv": ("--fault", "reuse-cache")}}
        shop = Workshop(
            tmp_path, engines={"e": engine(lanes=lane)}, claim=claim(lane="reuses", fixtures=[fixture])
        )
        receipt = shop.conductor().measure(pair(shop.claim), "replay").exact().record()
        for side in body_of(receipt.path)["sides"].values():
            assert (side["words"]["cached"], side["warmup"]["prompt_tokens"]) == (0, 16)
        assert [len(ids) for ids in sent] == [16, 64, 16, 64]
        for warm, prompt in (sent[:2], sent[2:]):
            assert warm[0] != prompt[0] and set(warm) <= set(prompt)

    def test_a_primed_lane_may_and_must_reuse(self, tmp_path: Path) -> None:
        lane = {"cached": {"cache": True, "prime": True}}
        shop = Workshop(tmp_path, engines={"e": engine(lanes=lane)}, claim=claim(lane="cached"))
        receipt = shop.conductor().measure(pair(shop.claim), "replay").exact().record()
        side = body_of(receipt.path)["sides"]["candidate"]
        assert (side["words"]["cached"], side["primed_tokens"]) == (63, 64)
        assert body_of(receipt.path)["sides"]["reference"]["words"]["cached"] == 0

    def test_a_primed_lane_that_reused_nothing_is_void(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lane = {"cached": {"cache": True, "prime": True}}
        acted(monkeypatch, candidate=with_words(says(), cached=0))
        shop = Workshop(tmp_path, engines={"e": engine(lanes=lane)}, claim=claim(lane="cached"))
        error, body = shop.unfinished()
        assert (
            str(error) == "void: the candidate reused nothing of its cache: the comparison is vacuous (T52)"
        )
        assert (body["outcome"], body["reason"]["code"]) == ("void", "not-cached")

    def test_a_lane_that_may_reuse_and_is_not_primed_need_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lane = {"cached": {"cache": True}}
        acted(monkeypatch, candidate=with_words(says(), cached=0))
        shop = Workshop(tmp_path, engines={"e": engine(lanes=lane)}, claim=claim(lane="cached"))
        assert shop.conductor().measure(pair(shop.claim), "replay").exact().record().outcome == "passed"


class TestForeign:
    def test_an_engine_beside_us_refuses_the_pair(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop, seen = Workshop(tmp_path), list[SideJob]()
        acted(monkeypatch, seen=seen)
        with foreign_engine() as other:
            error, body = shop.unfinished()
        argv = body["scans"][0]["processes"][0]["argv_head"]
        assert str(error).startswith(
            "refused: machine: expected no other engine and no profiler; "
            f"found engine pytest_parity.engines.embedded, pid {other.pid} ("
        )
        assert str(error).endswith("End them, or wait until they are done, then run again.")
        assert argv[1:3] == ["-m", "pytest_parity.engines.embedded"]
        assert (body["outcome"], body["reason"]["code"]) == ("refused", "foreign")
        assert [side["phase"] for side in body["sides"].values()] == ["not started", "not started"]
        assert seen == [] and list((shop.receipts / "intents").glob("*.json")) == []

    def test_an_engine_that_appears_during_a_side_voids_the_pair(self, tmp_path: Path) -> None:
        others: list[subprocess.Popen[bytes]] = []

        def begin(phase: str, done: int, total: int) -> None:
            if not others:
                others.append(start_foreign())

        try:
            error, body = Workshop(tmp_path).unfinished(progress=begin)
        finally:
            for other in others:
                end(other)
        assert str(error).startswith("void: machine: expected no other engine and no profiler; found engine ")
        assert (body["outcome"], body["reason"]["code"], body["timing"]) == ("void", "foreign", None)
        assert [len(seen["processes"]) for seen in body["scans"]] == [0, 1]
        assert body["sides"]["reference"]["phase"] == "done"
        assert body["sides"]["candidate"]["phase"] == "not started"
        assert body["sides"]["reference"]["clockwork"] is None

    def test_a_machine_that_cannot_be_looked_at_refuses_the_pair(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop, seen = Workshop(tmp_path), list[SideJob]()
        acted(monkeypatch, seen=seen)
        conductor = shop.conductor()
        monkeypatch.setattr(scanning, "scan", lambda own: Scan(None, 0, None, None, None))
        with pytest.raises(Unfinished) as caught:
            conductor.measure(pair(shop.claim), "replay")
        assert str(caught.value) == (
            "refused: process scan: expected a list of processes; found /proc unreadable or hidden from us. "
            "Run where /proc is mounted and shows at least our own processes."
        )
        body = body_of(caught.value.receipt.path)
        assert (body["outcome"], body["reason"]["code"]) == ("refused", "scan")
        assert body["scans"][0]["processes"] is None  # unknown, and not none
        assert seen == []


class TestInterrupted:
    @pytest.mark.parametrize(
        ("blow", "code", "sentence"),
        [
            (KeyboardInterrupt(), "interrupted", "ended by KeyboardInterrupt"),
            (SystemExit(3), "interrupted", "ended by SystemExit"),
            (MemoryError(), "internal", "MemoryError: "),
            (ZeroDivisionError("division by zero"), "internal", "ZeroDivisionError: division by zero"),
        ],
    )
    def test_the_receipt_is_written_and_what_was_raised_goes_on(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        blow: BaseException,
        code: str,
        sentence: str,
    ) -> None:
        shop = Workshop(tmp_path)
        acted(monkeypatch, candidate=blow)
        with pytest.raises(type(blow)) as caught:
            shop.conductor().measure(pair(shop.claim), "replay")
        assert caught.value is blow
        (body,) = bodies(shop.receipts).values()
        assert (body["outcome"], body["reason"]) == ("broken", {"code": code, "sentence": sentence})
        assert body["sides"]["reference"]["words"]["output_ids"] == list(range(100, 116))
        assert body["sides"]["reference"]["clockwork"] is None
        assert body["sides"]["candidate"]["phase"] == "not started"
        assert evidence.verify(shop.receipts).whole


class TestWhatIsSent:
    def test_an_exact_claim_stops_at_the_end_token_and_a_claim_about_speed_does_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[SideJob] = []
        acted(monkeypatch, seen=seen)
        speed = claim("speed", kind="parity", metric="decode_tps", margin=0.5, pairs="6")
        for number, row in enumerate((claim(), speed)):
            shop = Workshop(tmp_path, claim=row, session=f"2025010{number + 1}T000000Z-aaaaaa")
            receipt = shop.conductor().measure(pair(row), "replay").exact().record()
            assert body_of(receipt.path)["ignore_eos"] is (row.kind != "exact")
        assert [job.ignore_eos for job in seen] == [False, False, True, True]
        assert {job.output_tokens for job in seen} == {16}

    def test_both_sides_get_the_very_same_ids(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shop, seen = Workshop(tmp_path), list[SideJob]()
        acted(monkeypatch, seen=seen)
        receipt = shop.conductor().measure(pair(shop.claim), "replay").exact().record()
        assert seen[0].prompt.ids == seen[1].prompt.ids and len(seen[0].prompt.ids) == 64
        assert body_of(receipt.path)["prompt"]["digest"] == seen[0].prompt.digest

    def test_other_lanes_than_the_claims_are_measured_when_a_test_names_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop, seen = Workshop(tmp_path), list[SideJob]()
        acted(monkeypatch, seen=seen)
        shop.conductor().measure(pair(shop.claim, 2), "replay", lanes=("plain", "fused")).exact().record()
        assert [(job.role, job.lane) for job in seen] == [("candidate", "plain"), ("reference", "fused")]
