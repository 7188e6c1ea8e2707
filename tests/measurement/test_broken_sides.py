"""A side that cannot be finished: its phase, its cause, how it ended and its last words stand in the receipt."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from workshop import EMBEDDED, Workshop, acted, body_of, claim, engine, engines_alive, pair, says

from pytest_parity.core.receipts import read_pair
from pytest_parity.engines.llama_server import LlamaServerDriver
from pytest_parity.errors import EngineDied
from pytest_parity.measurement import conduct
from pytest_parity.measurement.side import SideBroken, SideJob, SideRun

TALKS = (
    "print('first line'); print('\\n'.join('line %d' % n for n in range(30))); "
    "print('last line', flush=True); raise SystemExit(3)"
)


def broken(folder: Path, rep: int = 2, **lane: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Measure with a bad candidate: what was raised, the receipt's body, and the candidate's part of it.

    ``rep`` 2 begins with the candidate.
    """
    shop = Workshop(folder, engines={"e": engine(lanes={"bad": lane})}, claim=claim(lane="bad"))
    error, body = shop.unfinished(rep)
    assert engines_alive() == []
    assert (body["outcome"], body["timing"], body["exactness"], body["divergence"]) == (
        "broken",
        None,
        None,
        None,
    )
    assert read_pair("r", body).outcome == "broken"
    return str(error), body, body["sides"]["candidate"]


def without_last_lines(error: object) -> str:
    """What was raised without the engine's last words, which are there and end it."""
    text, between, words = str(error).partition(" Its last lines: ")
    assert between and re.fullmatch(r"listening on 127\.0\.0\.1:\d+", words), str(error)
    return text


class TestACrash:
    def test_in_the_middle_of_the_measured_request(self, tmp_path: Path) -> None:
        text, body, side = broken(tmp_path, argv=("--fault", "die-at=4"))
        assert body["reason"]["code"] == "engine-died-in-measured-request"
        assert text.startswith("broken: candidate in phase measured request: engine at 127.0.0.1:")
        assert "expected a complete answer; found the connection closed in the middle of it" in text
        assert (side["phase"], side["ended"]) == ("measured request", "signal SIGKILL")
        assert re.fullmatch(r"listening on 127\.0\.0\.1:\d+", side["log_tail"][-1])
        assert (side["words"], side["clockwork"]) == (None, None)

    def test_keeps_the_words_of_the_side_that_was_done_and_none_of_its_times(self, tmp_path: Path) -> None:
        _, body, _ = broken(tmp_path, 1, argv=("--fault", "die-at=4"))
        other = body["sides"]["reference"]
        assert (other["phase"], other["words"]["predicted"], other["clockwork"]) == ("done", 16, None)
        assert "log_tail" not in other
        assert "held_s" not in body["lease"]

    def test_in_the_warm_up(self, tmp_path: Path) -> None:
        _, body, side = broken(tmp_path, argv=("--fault", "die-at=0"))
        assert body["reason"]["code"] in ("engine-start-failed-in-ready", "engine-died-in-ready")
        assert side["ended"] == "signal SIGKILL"

    def test_before_it_is_ready_keeps_the_status_and_the_last_twenty_lines(self, tmp_path: Path) -> None:
        bad = engine("talks", argv=("{python}", "-c", TALKS, "{port}"))
        shop = Workshop(
            tmp_path, engines={"e": engine(), "talks": bad}, claim=claim(candidate="talks", lane="plain")
        )
        error, body = shop.unfinished(2)
        side = body["sides"]["candidate"]
        assert body["reason"]["code"] == "engine-start-failed-in-ready"
        assert "found it ended: exit status 3; " in str(error)
        assert str(error).endswith(" Its last lines: line 28 / line 29 / last line")
        assert body["reason"]["sentence"].endswith(" Its last lines: line 28 / line 29 / last line")
        assert (side["phase"], side["ended"]) == ("ready", "exit status 3")
        assert side["log_tail"] == [f"line {n}" for n in range(11, 30)] + ["last line"]

    def test_that_we_brought_about_says_so(self, tmp_path: Path) -> None:
        _, body, side = broken(tmp_path, argv=("--fault", "bad-token"))
        assert body["reason"]["code"] == "malformed-reply-in-measured-request"
        assert side["ended"] == "ended by us: exit status 0"

    def test_after_the_answer_counts_as_well(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shop = Workshop(tmp_path)
        answer = LlamaServerDriver.generate

        def last_words(self: LlamaServerDriver, request: Any, progress: Any = None) -> Any:
            said = answer(self, request, progress)
            if request.output_tokens > 1:
                self._call("POST", "/tokenize", {"content": "x"})
                end_engine_and_wait()
            return said

        def end_engine_and_wait() -> None:
            (pid,) = engines_alive()
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)

        monkeypatch.setattr(LlamaServerDriver, "generate", last_words)
        error, body = shop.unfinished()
        assert without_last_lines(error) == (
            "broken: reference in phase measured request: e (reference): expected a process that outlives its "
            "request; found signal SIGKILL. Its last lines are in the receipt."
        )
        assert body["sides"]["reference"]["clockwork"] is None


class TestAProgramThatCannotRun:
    def test_is_named_without_its_place(self, tmp_path: Path) -> None:
        program = tmp_path / "engine"
        program.write_text("no program")
        bad = engine("bad", binary="engine", argv=("{binary}", "{port}"))
        shop = Workshop(
            tmp_path, engines={"e": engine(), "bad": bad}, claim=claim(candidate="bad", lane="plain")
        )
        error, body = shop.unfinished(2)
        assert str(error) == (
            f"broken: candidate in phase start: engine {program}: expected a program that can be executed; "
            "found exec: Permission denied. Correct binary and argv of this engine in parity.toml, or build it."
        )
        assert body["reason"] == {
            "code": "engine-start-failed-in-start",
            "sentence": str(error).removeprefix("broken: ").replace(str(program), "{binary of bad}"),
        }
        assert body["sides"]["candidate"]["argv"][0] == "{binary of bad}"


class TestSettings:
    def test_a_setting_of_the_engine_that_did_not_take_effect(self, tmp_path: Path) -> None:
        text, body, side = broken(tmp_path, argv=("--alias", "one"), effective={"model_alias": "another"})
        assert without_last_lines(text) == (
            "broken: candidate in phase identity: e, lane bad: model_alias: expected 'another'; found 'one'. "
            "The setting did not take effect: comparing it would be vacuous."
        )
        assert body["reason"]["code"] == "settings-ignored-in-identity"
        assert (side["phase"], side["words"]) == ("identity", None)

    def test_a_setting_that_the_engine_does_not_tell(self, tmp_path: Path) -> None:
        text, _, _ = broken(tmp_path, argv=("--alias", "one"), effective={"log.flash_attn": "enabled"})
        assert "e, lane bad: log.flash_attn: expected 'enabled'; found None." in text

    def test_a_setting_of_the_request_that_did_not_take_effect(self, tmp_path: Path) -> None:
        text, body, side = broken(tmp_path, argv=("--alias", "one"), effective={"request.top_k": 7})
        assert without_last_lines(text) == (
            "broken: candidate in phase measured request: e, lane bad: request.top_k: expected 7; found 1. "
            "The setting did not take effect: comparing it would be vacuous."
        )
        assert body["reason"]["code"] == "settings-ignored-in-measured-request"
        assert side["clockwork"] is None

    def test_settings_that_took_effect_pass(self, tmp_path: Path) -> None:
        lane = {"good": {"argv": ("--alias", "one"), "effective": {"model_alias": "one", "request.top_k": 1}}}
        shop = Workshop(tmp_path, engines={"e": engine(lanes=lane)}, claim=claim(lane="good"))
        assert shop.conductor().measure(pair(shop.claim), "replay").exact().record().outcome == "passed"

    @pytest.mark.parametrize("field", ["temperature", "seed", "n_predict"])
    def test_a_setting_that_is_not_the_lanes(self, tmp_path: Path, field: str) -> None:
        text, body, side = broken(tmp_path, argv=("--alias", "one"), request={field: 1})
        assert text.startswith(
            "broken: candidate in phase warm-up: request fields of the lane: expected none of "
        )
        assert without_last_lines(text).endswith(
            f"; found {field}. These are set from the claim; leave them out of the lane."
        )
        assert body["reason"]["code"] == "configuration-in-warm-up"
        assert side["words"] is None

    def test_a_penalty_that_the_engine_owns_up_to(self, tmp_path: Path) -> None:
        text, body, _ = broken(tmp_path, argv=("--fault", "loud-penalty"))
        assert "setting repeat_penalty: expected 1.0, as asked; found 1.1, as the engine says." in text
        assert body["reason"]["code"] == "settings-ignored-in-warm-up"


class TestIdentity:
    def test_an_engine_that_serves_another_model_file(self, tmp_path: Path) -> None:
        (tmp_path / "mine.gguf").write_bytes(b"weights")
        named = engine("named", model="mine.gguf", argv=(*EMBEDDED, "--alias", "{model}"))
        shop = Workshop(
            tmp_path, engines={"e": engine(), "named": named}, claim=claim(candidate="named", lane="plain")
        )
        error, body = shop.unfinished(2)
        assert without_last_lines(error) == (
            f"broken: candidate in phase identity: model of named: expected {tmp_path}/mine.gguf; "
            "found embedded:seed=0. Another server answers, or argv names another model."
        )
        assert body["reason"] == {
            "code": "identity-mismatch-in-identity",
            "sentence": str(error)
            .removeprefix("broken: ")
            .replace(f"{tmp_path}/mine.gguf", "{model of named}"),
        }

    @pytest.mark.parametrize(
        ("served", "mine"),
        [
            ("{root}/mine.gguf", True),
            ("{root}/other/../mine.gguf", True),
            ("{root}/other/link/mine.gguf", True),
            ("mine.gguf", True),  # a server that does not tell where
            ("models/mine.gguf", True),
            ("{root}/other/mine.gguf", False),
            ("{root}/gone/mine.gguf", False),
            ("{root}/another.gguf", False),
            ("another.gguf", False),
        ],
    )
    def test_a_model_is_told_by_its_place_and_not_by_its_name_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: str, mine: bool
    ) -> None:
        (tmp_path / "other").mkdir()
        for name in ("mine.gguf", "another.gguf", "other/mine.gguf"):
            (tmp_path / name).write_bytes(b"weights")
        (tmp_path / "other" / "link").symlink_to(tmp_path)
        _tells(monkeypatch, model=served.format(root=tmp_path))
        named = engine("named", model="mine.gguf", argv=(*EMBEDDED, "--alias", "{model}"))
        shop = Workshop(tmp_path, engines={"named": named}, claim=claim(candidate="named", reference="named"))
        if mine:
            assert shop.conductor().measure(pair(shop.claim), "replay").exact().record().outcome == "passed"
        else:
            error, body = shop.unfinished()
            assert body["reason"]["code"] == "identity-mismatch-in-identity"
            assert f"expected {tmp_path}/mine.gguf; found {served.format(root=tmp_path)}. " in str(error)

    def test_an_engine_with_several_slots(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        _tells(monkeypatch, slots=4)
        error, body = Workshop(tmp_path).unfinished()
        assert without_last_lines(error) == (
            "broken: reference in phase identity: slots of e: expected one: with several, the batch's shape changes "
            'what is written (T40); found 4. Start it with one, for llama-server "-np", "1".'
        )
        assert body["reason"]["code"] == "settings-ignored-in-identity"
        assert body["sides"]["reference"]["identity"]["slots"] == 4
        assert "warmup" not in body["sides"]["reference"]

    @pytest.mark.parametrize("slots", [1, None])
    def test_an_engine_with_one_slot_or_one_that_does_not_tell(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: int | None
    ) -> None:
        _tells(monkeypatch, slots=slots)
        shop = Workshop(tmp_path)
        assert shop.conductor().measure(pair(shop.claim), "replay").exact().record().outcome == "passed"


def _tells(monkeypatch: pytest.MonkeyPatch, **identity: Any) -> None:
    """From here on an engine says something else of itself."""
    honest = LlamaServerDriver.identify
    monkeypatch.setattr(LlamaServerDriver, "identify", lambda self: replace(honest(self), **identity))


class TestTokenisation:
    """Both sides must make the same ids of the same text, or they answer different prompts (trap T17)."""

    def test_an_engine_that_reads_the_text_differently(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop = Workshop(tmp_path, claim=claim(fixtures=["natural-prose"]))
        calls: list[int] = []
        honest = LlamaServerDriver.tokenize

        def tokenize(self: LlamaServerDriver, text: str) -> tuple[int, ...]:
            calls.append(len(text))
            ids = honest(self, text)
            return (
                (*ids[:5], 0, *ids[6:]) if len(calls) == 3 else ids
            )  # the store's, r1's reference, its candidate

        monkeypatch.setattr(LlamaServerDriver, "tokenize", tokenize)
        error, body = shop.unfinished()
        assert re.fullmatch(
            r"broken: candidate in phase tokenisation: tokenisation of the candidate e: expected the reference's "
            r"(\d+) ids, \(\d+, \d+, \d+\) at position 5; found \1 ids, \(0, \d+, \d+\) there\. "
            r"Two engines that read the text differently answer different prompts: mend the tokeniser or the model file\.",
            without_last_lines(error),
        )
        assert body["reason"]["code"] == "identity-mismatch-in-tokenisation"
        assert body["sides"]["candidate"]["phase"] == "tokenisation"
        assert "warmup" not in body["sides"]["candidate"]

    def test_a_text_that_ends_early_differs_where_it_ends(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "x.txt").write_text("abcdefgh" * 10)
        shop = Workshop(tmp_path, claim=claim(fixtures=["file:x.txt"]))
        honest, calls = LlamaServerDriver.tokenize, list[str]()

        def tokenize(self: LlamaServerDriver, text: str) -> tuple[int, ...]:
            calls.append(text)
            ids = honest(self, text)
            return ids[:-1] if len(calls) == 2 else ids

        monkeypatch.setattr(LlamaServerDriver, "tokenize", tokenize)
        error, _ = shop.unfinished()
        assert "expected the reference's 80 ids, (104,) at position 79; found 79 ids, () there." in str(error)
        assert str(error).startswith("broken: reference in phase tokenisation: ")

    def test_ids_that_belong_to_the_fixture_are_not_tokenised(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[SideJob] = []
        acted(monkeypatch, seen=seen)
        shop = Workshop(tmp_path)
        shop.conductor().measure(pair(shop.claim), "replay").exact().record()
        assert [job.expected_ids for job in seen] == [None, None]

    def test_an_engine_that_makes_nothing_of_a_text(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "x.txt").write_text("abcdefgh" * 10)
        shop = Workshop(tmp_path, claim=claim(fixtures=["file:x.txt"]))
        monkeypatch.setattr(LlamaServerDriver, "tokenize", lambda self, text: ())
        error, body = shop.unfinished()
        assert str(error) == (
            "broken: e: tokenising 80 characters: expected at least one token; found none. Check the engine's tokeniser."
        )
        assert [side["phase"] for side in body["sides"].values()] == ["not started", "not started"]
        assert list((tmp_path / ".parity" / "prompts").glob("*.json")) == []


def test_a_cause_without_a_short_code_is_named_by_its_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = EngineDied("e", expected="life", found="none", mend="Look.")
    shop = Workshop(tmp_path)
    seen: list[SideJob] = []
    acted(monkeypatch, seen=seen)
    play = vars(conduct)["run_side"]

    def fail(job: SideJob, *rest: Any) -> SideRun:
        run: SideRun = play(job, *rest)
        if job.role == "candidate":
            raise SideBroken(SideRun(job, phase="warm-up", transcript=says()), gone)
        return run

    monkeypatch.setattr(conduct, "run_side", fail)
    error, body = shop.unfinished()
    assert body["reason"]["code"] == "engine-died-in-warm-up"
    assert str(error) == "broken: candidate in phase warm-up: e: expected life; found none. Look."
    assert body["sides"]["candidate"]["words"] is not None  # what was measured is not lost
    assert body["sides"]["candidate"]["clockwork"] is None
    assert body_of(shop.receipts / f"{shop.session}.same-d64-synthetic-r1.json") == body
    assert sys.executable not in str(body)
