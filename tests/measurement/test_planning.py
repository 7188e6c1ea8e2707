"""Machine time of a plan, and which attempt a session is, from nothing but the log."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from workshop import Workshop, acted, claim, engine, pair, says

from pytest_parity.core.plan import Cell, Filter, SessionPlan, make_plan
from pytest_parity.measurement import conduct
from pytest_parity.measurement.pair import Diverged
from pytest_parity.measurement.planning import attempts, estimate, log_subjects

GUESS = {"start_s": 2.0, "prefill_tps": 100.0, "decode_tps": 10.0}


def plan_of(shop: Workshop) -> SessionPlan:
    """The whole plan of the shop's claim."""
    return make_plan([shop.claim], Filter())


def seconds_of(shop: Workshop) -> dict[Cell, float | None]:
    """Estimates of every cell."""
    return estimate(plan_of(shop), shop.workspace(), {shop.claim.name: shop.claim})


class TestEstimate:
    def test_is_what_the_engines_declare_where_nothing_was_measured(self, tmp_path: Path) -> None:
        shop = Workshop(tmp_path, engines={"e": engine(estimate=GUESS)}, quiet_s=0.5)
        # Each side: quiet, start, warm-up of 16 and prompt of 64 ids, 16 output ids.
        assert list(seconds_of(shop).values()) == [2 * (0.5 + 2.0 + 80 / 100 + 16 / 10)]

    def test_is_unknown_where_one_engine_declares_nothing(self, tmp_path: Path) -> None:
        engines = {"e": engine(estimate=GUESS), "f": engine("f")}
        shop = Workshop(tmp_path, engines=engines, claim=claim(candidate="f"))
        assert list(seconds_of(shop).values()) == [None]

    def test_warms_up_with_no_more_than_the_prompt(self, tmp_path: Path) -> None:
        shop = Workshop(tmp_path, engines={"e": engine(estimate=GUESS, warmup_tokens=2048)})
        assert list(seconds_of(shop).values()) == [2 * (2.0 + 128 / 100 + 16 / 10)]

    def test_is_the_median_of_what_pairs_took(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        acted(monkeypatch)
        shop = Workshop(tmp_path, engines={"e": engine(estimate=GUESS)})
        conductor = shop.conductor()
        for rep in (1, 2):
            conductor.measure(pair(shop.claim, rep), "replay").exact().record()
        took = sorted(float(str(s["seconds"])) for s in log_subjects(shop.receipts))
        assert list(seconds_of(shop).values()) == [sum(took) / 2]
        other = Workshop(tmp_path, engines=shop.engines, claim=claim(depths=[32]))
        assert list(seconds_of(other).values()) == [2 * (2.0 + 48 / 100 + 16 / 10)]

    def test_of_a_control_counts_the_reference_twice(self, tmp_path: Path) -> None:
        engines = {"e": engine(estimate=GUESS), "f": engine("f")}
        speed = claim("speed", kind="parity", metric="decode_tps", margin=0.5, pairs="6", candidate="f")
        found = seconds_of(Workshop(tmp_path, engines=engines, claim=speed))
        assert {cell.claim: seconds for cell, seconds in found.items()} == {
            "control-e-plain": 2 * (2.0 + 0.8 + 1.6),
            "speed": None,
        }

    def test_stops_at_a_broken_line_and_never_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acted(monkeypatch)
        shop = Workshop(tmp_path)
        shop.conductor().measure(pair(shop.claim), "replay").exact().record()
        log = shop.receipts / "log.jsonl"
        log.write_bytes(b"nonsense\n" + log.read_bytes())
        assert list(log_subjects(shop.receipts)) == []
        assert list(seconds_of(shop).values()) == [None]
        assert list(log_subjects(tmp_path / "none")) == []


class TestAttempts:
    def test_count_sessions_in_which_a_timing_was_derived(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acted(monkeypatch)
        for number in (1, 2, 3):
            shop = Workshop(tmp_path, session=f"2025010{number}T000000Z-aaaaaa")
            for rep in (1, 2):
                shop.conductor().measure(pair(shop.claim, rep), "replay").exact().record()
            assert list(attempts(shop.workspace(), plan_of(shop)).values()) == [number]

    def test_count_whatever_was_timed_and_came_to_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else a rate that displeases is dropped by leaving its pair void, and the next session is the first."""
        acted(monkeypatch)
        seen = Workshop(tmp_path, session="20250101T000000Z-aaaaaa")
        measured = seen.conductor().measure(pair(seen.claim), "replay")
        assert measured.exact().timing() is not None
        measured.abandon("the test ended before record()")
        (subject,) = log_subjects(seen.receipts)
        assert (subject["outcome"], subject["timed"], subject["seconds"]) == ("void", True, None)
        assert list(attempts(seen.workspace(), plan_of(seen)).values()) == [1]
        shop = Workshop(tmp_path, session="20250102T000000Z-aaaaaa")
        shop.conductor().measure(pair(shop.claim), "replay").exact().record()
        assert list(attempts(shop.workspace(), plan_of(shop)).values()) == [2]

    def test_count_what_an_earlier_version_logged_as_passed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acted(monkeypatch)
        honest = vars(conduct)["subject_of"]

        def older(body: Mapping[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in honest(body).items() if key != "timed"}

        for number in (1, 2):
            shop = Workshop(tmp_path, session=f"2025010{number}T000000Z-aaaaaa")
            monkeypatch.setattr(conduct, "subject_of", older if number == 1 else honest)
            shop.conductor().measure(pair(shop.claim), "replay").exact().record()
        assert ["timed" in subject for subject in log_subjects(shop.receipts)] == [False, True]
        assert list(attempts(shop.workspace(), plan_of(shop)).values()) == [2]

    @pytest.mark.parametrize("outcome", ["void", "diverged", "broken", "refused"])
    def test_leave_out_what_was_not_timed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str
    ) -> None:
        other = says((*range(100, 115), 9))
        shop = Workshop(tmp_path, session="20250101T000000Z-aaaaaa")
        if outcome == "refused":
            shop.unfinished(lanes=("plain", "plain"))
        elif outcome == "broken":
            acted(monkeypatch, candidate=OSError("gone"))
            shop.unfinished()
        elif outcome == "void":
            acted(monkeypatch, other, pids=(1, 1))
            shop.unfinished()
        else:
            acted(monkeypatch, other)
            with pytest.raises(Diverged):
                shop.conductor().measure(pair(shop.claim), "replay").exact()
        (subject,) = log_subjects(shop.receipts)
        assert (subject["outcome"], subject["timed"]) == (outcome, False)
        acted(monkeypatch)
        shop = Workshop(tmp_path, session="20250102T000000Z-aaaaaa")
        shop.conductor().measure(pair(shop.claim), "replay").exact().record()
        assert list(attempts(shop.workspace(), plan_of(shop)).values()) == [1]

    def test_start_anew_with_another_engine_or_claim(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acted(monkeypatch)
        shops = [
            Workshop(tmp_path, session="20250101T000000Z-aaaaaa"),
            Workshop(tmp_path, session="20250102T000000Z-aaaaaa", engines={"e": engine(context=1024)}),
            Workshop(tmp_path, session="20250103T000000Z-aaaaaa", claim=claim(output_tokens=15)),
        ]
        for shop in shops:
            shop.conductor().measure(pair(shop.claim), "replay").exact().record()
            assert list(attempts(shop.workspace(), plan_of(shop)).values()) == [1]

    def test_of_a_session_that_timed_nothing_are_none(self, tmp_path: Path) -> None:
        assert attempts(Workshop(tmp_path).workspace(), plan_of(Workshop(tmp_path))) == {}
