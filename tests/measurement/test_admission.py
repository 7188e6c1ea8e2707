"""What is decided before anything starts: refused pairs get a receipt, and nothing else happens."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from workshop import Workshop, acted, bodies, claim, engine, pair

from pytest_parity import evidence
from pytest_parity.core.claims import Claim
from pytest_parity.core.plan import Cell, PairPlan, control_key, control_name
from pytest_parity.core.receipts import read_pair
from pytest_parity.engines.driver import Capabilities
from pytest_parity.engines.llama_server import LlamaServerDriver
from pytest_parity.errors import (
    AdmissionRefused,
    ConfigurationError,
    ContextExceeded,
    EngineDied,
    LedgerBroken,
    ParityError,
    PinMismatch,
    ReceiptUnreadable,
    Unsupported,
)
from pytest_parity.measurement.admission import admit, reason_code
from pytest_parity.measurement.prompts import PromptStore
from pytest_parity.measurement.side import SideJob


def refused(shop: Workshop, **more: Any) -> tuple[str, dict[str, Any]]:
    """A pair that is refused before anything starts: its text, and its receipt's body."""
    error, body = shop.unfinished(**more)
    assert shop.nothing_started()
    assert (body["outcome"], body["lease"], body["scans"], body["prompt"], body["timing"]) == (
        "refused",
        None,
        [],
        None,
        None,
    )
    assert [side["phase"] for side in body["sides"].values()] == ["not started", "not started"]
    assert body["reason"] == {"code": error.reason.code, "sentence": error.reason.sentence}
    assert str(error) == f"refused: {error.reason.sentence}"
    record = read_pair(error.receipt.name, body)
    assert (record.outcome, record.timing, record.divergence) == ("refused", None, None)
    assert evidence.verify(shop.receipts).whole
    return error.reason.sentence, body


class TestContext:
    def test_prompt_and_output_must_fit(self, tmp_path: Path) -> None:
        shop = Workshop(tmp_path, claim=claim(depths=[2040], output_tokens=16))
        text, body = refused(shop)
        assert text == (
            "e: 2040 prompt tokens and 16 output tokens: expected at most 2048 tokens in its context; found 2056. "
            "Give that depth its own output_tokens, or the engine a larger context."
        )
        assert body["reason"]["code"] == "context"

    def test_a_prompt_that_fits_to_the_last_token(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acted(monkeypatch)
        shop = Workshop(tmp_path, claim=claim(depths=[2032], output_tokens=16))
        assert shop.conductor().measure(pair(shop.claim), "replay").exact().record().outcome == "passed"

    def test_each_side_has_its_own_context(self, tmp_path: Path) -> None:
        small = engine("small", context=64)
        shop = Workshop(
            tmp_path,
            engines={"e": engine(), "small": small},
            claim=claim(reference="small", reference_lane="plain"),
        )
        text, _ = refused(shop)
        assert text.startswith(
            "small: 64 prompt tokens and 16 output tokens: expected at most 64 tokens in its context; found 80."
        )


class TestProcessors:
    def test_that_this_machine_does_not_have(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "cpu_count", lambda: 4)
        text, body = refused(Workshop(tmp_path, engines={"e": engine(cpus=(5, 3, 4))}))
        assert text == (
            "cpus of e: expected processors of this machine, 0 to 3; found 4, 5. Correct 'cpus' of [engines.e]."
        )
        assert body["reason"]["code"] == "refused"

    def test_up_to_the_last_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        acted(monkeypatch)
        monkeypatch.setattr(os, "cpu_count", lambda: 4)
        shop = Workshop(tmp_path, engines={"e": engine(cpus=(0, 3))})
        assert shop.conductor().measure(pair(shop.claim), "replay").exact().record().outcome == "passed"


class TestAComparisonThatCannotFail:
    def test_one_configuration_twice(self, tmp_path: Path) -> None:
        text, body = refused(Workshop(tmp_path, claim=claim(lane="plain")))
        assert text == (
            "claim same: candidate and reference: expected two configurations that differ; found the same one twice, "
            "a comparison that cannot fail (T52, T26). "
            "Compare different engines or lanes; an engine against itself is what the control is for."
        )
        assert body["reason"]["code"] == "refused"

    def test_two_names_of_one_engine(self, tmp_path: Path) -> None:
        shop = Workshop(
            tmp_path, engines={"e": engine(), "f": engine("f")}, claim=claim(candidate="f", lane="plain")
        )
        text, _ = refused(shop)
        assert "found the same one twice" in text

    def test_two_lanes_that_say_the_same(self, tmp_path: Path) -> None:
        shop = Workshop(tmp_path, engines={"e": engine(lanes={"other": {}})}, claim=claim(lane="other"))
        text, _ = refused(shop)
        assert "found the same one twice" in text

    @pytest.mark.parametrize("where", [{"cpus": (0,)}, {"memory_limit_bytes": 10**9}])
    def test_two_engines_that_differ_only_in_where_they_run(
        self, tmp_path: Path, where: Mapping[str, Any]
    ) -> None:
        engines = {"e": engine(), "f": engine("f", **where)}
        assert engines["e"].digest("plain") != engines["f"].digest("plain")
        assert engines["e"].behaviour("plain") == engines["f"].behaviour("plain")
        shop = Workshop(tmp_path, engines=engines, claim=claim(candidate="f", lane="plain"))
        text, body = refused(shop)
        assert "found the same one twice" in text and body["reason"]["code"] == "refused"

    def test_the_same_lane_named_by_a_test(self, tmp_path: Path) -> None:
        text, _ = refused(Workshop(tmp_path), lanes=("fused", "fused"))
        assert "found the same one twice" in text

    @pytest.mark.parametrize(
        "lane",
        [
            {"argv": ("--batch", "128")},
            {"request": {"n_probs": 1}},
            {"cache": True},
            {"cache": True, "prime": True},
            {"speculative": True},
        ],
    )
    def test_anything_that_decides_how_it_behaves_makes_a_difference(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lane: Mapping[str, Any]
    ) -> None:
        seen: list[SideJob] = []
        acted(monkeypatch, seen=seen)
        shop = Workshop(tmp_path, engines={"e": engine(lanes={"other": lane})}, claim=claim(lane="other"))
        if lane.get("prime"):
            shop.unfinished()  # its acted side reuses nothing
        else:
            shop.conductor().measure(pair(shop.claim), "replay").exact().record()
        assert len(seen) == 2

    def test_a_control_is_an_engine_against_itself(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acted(monkeypatch)
        speed = claim("speed", kind="parity", metric="decode_tps", margin=0.5, pairs="6", minimum_tokens=15)
        shop = Workshop(tmp_path, claim=speed)
        receipt = shop.conductor().measure(_control(speed), "replay").exact().record()
        (body,) = bodies(shop.receipts).values()
        assert receipt.outcome == "passed"
        assert body["claim"]["row"] is None and body["claim"]["name"] == "control-e-plain"
        assert body["sides"]["candidate"]["configuration"] == body["sides"]["reference"]["configuration"]
        assert (body["minimum_tokens"], body["ignore_eos"]) == (1, True)
        assert read_pair("r", body).control_of == "e/plain"


class TestLanes:
    def test_a_lane_that_an_engine_does_not_have(self, tmp_path: Path) -> None:
        shop = Workshop(tmp_path)
        with pytest.raises(ConfigurationError) as caught:
            shop.conductor().measure(pair(shop.claim), "replay", lanes=("fussed", "plain"))
        assert str(caught.value) == (
            "lane 'fussed' of e: expected one of plain, fused; found 'fussed'. Describe it under [engines.e.lanes.fussed]."
        )
        assert shop.nothing_started() and bodies(shop.receipts) == {}

    def test_on_either_side(self, tmp_path: Path) -> None:
        shop = Workshop(tmp_path)
        with pytest.raises(
            ConfigurationError, match="lane 'plane' of e: expected one of plain, fused; found 'plane'"
        ):
            shop.conductor().measure(pair(shop.claim), "replay", lanes=("fused", "plane"))


class TestPrompts:
    def test_a_file_that_is_too_short(self, tmp_path: Path) -> None:
        (tmp_path / "x.json").write_text("[1, 2, 3]")
        text, body = refused(Workshop(tmp_path, claim=claim(fixtures=["file:x.json"])))
        assert text == (
            "prompt file:x.json at depth 64: expected a source of at least 64 tokens; found 3 tokens. "
            "Use a longer text or a smaller depth; a text is never repeated to fill a depth."
        )
        assert body["reason"]["code"] == "configuration"

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        text, body = refused(Workshop(tmp_path, claim=claim(fixtures=["file:none.txt"])))
        assert (
            text
            == "prompt file none.txt: expected a readable file; found No such file or directory. Correct the path."
        )
        assert body["reason"]["code"] == "configuration"

    def test_stored_ids_that_were_edited(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "x.txt").write_text("abcdefgh" * 10)
        shop = Workshop(tmp_path, claim=claim(fixtures=["file:x.txt"]))
        (tmp_path / ".parity").mkdir()
        store = PromptStore(shop.workspace().prompts)
        store.fixture("file:x.txt", 64, "named:bytes-260", tmp_path, lambda text: tuple(text.encode()))
        (file,) = store.folder.iterdir()
        file.write_text(file.read_text().replace("97", "98", 1))
        text, _ = refused(shop)
        assert text == (
            f"stored prompt {file.name}: expected ids that match their digest; found others, or a file that cannot be "
            "read. Remove the file; it is made again."
        )

    def test_a_text_whose_stored_ids_are_too_few(self, tmp_path: Path) -> None:
        (tmp_path / "x.txt").write_text("abc")
        shop = Workshop(tmp_path, claim=claim(fixtures=["file:x.txt"]))
        store = PromptStore(shop.workspace().prompts)
        store.fixture("file:x.txt", 3, "named:bytes-260", tmp_path, lambda text: tuple(text.encode()))
        text, _ = refused(shop)
        assert text.startswith(
            "prompt file:x.txt at depth 64: expected a source of at least 64 tokens; found 3 tokens."
        )

    def test_a_text_that_was_never_tokenised_is_found_too_short_by_the_engine(self, tmp_path: Path) -> None:
        (tmp_path / "x.txt").write_text("abc")
        shop = Workshop(tmp_path, claim=claim(fixtures=["file:x.txt"]))
        error, body = shop.unfinished()
        assert str(error).startswith(
            "broken: prompt file:x.txt at depth 64: expected a source of at least 64 tokens; found 3"
        )
        assert (body["outcome"], body["reason"]["code"]) == ("broken", "apparatus")


class TestCapabilities:
    CAN = LlamaServerDriver("http://127.0.0.1:9").capabilities()

    @pytest.mark.parametrize(
        ("lacks", "fields", "text"),
        [
            ({"ids_out": False}, {}, "expected ids in, ids out; found no ids out"),
            ({"ids_in": False}, {}, "expected ids in, ids out; found no ids in"),
            (
                {"ids_in": False, "ids_out": False},
                {},
                "expected ids in, ids out; found no ids in, no ids out",
            ),
            (
                {"ignore_eos": False},
                {"kind": "parity", "metric": "decode_tps", "margin": 0.5, "pairs": "6"},
                "expected ids in, ids out, ignore_eos; found no ignore_eos",
            ),
        ],
    )
    def test_what_a_driver_cannot_do_is_named(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        lacks: dict[str, bool],
        fields: dict[str, Any],
        text: str,
    ) -> None:
        _can(monkeypatch, replace(self.CAN, **lacks))
        found, body = refused(Workshop(tmp_path, claim=claim(**fields)))
        assert (
            found
            == f"e through driver llama-server: {text}. Claim what this driver can do, or use another driver."
        )
        assert body["reason"]["code"] == "unsupported"

    @pytest.mark.parametrize(
        ("lacks", "fields"), [({"ids_out": False}, {"exactness": "text"}), ({"ignore_eos": False}, {})]
    )
    def test_what_a_claim_does_not_ask_is_not_missed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: dict[str, bool], fields: dict[str, Any]
    ) -> None:
        acted(monkeypatch)
        _can(monkeypatch, replace(self.CAN, **lacks))
        shop = Workshop(tmp_path, claim=claim(**fields))
        assert shop.conductor().measure(pair(shop.claim), "replay").exact().record().outcome == "passed"


class TestAdmitted:
    def test_binds_the_claim_as_it_stands(self, tmp_path: Path) -> None:
        shop = Workshop(tmp_path, claim=claim(minimum_tokens=9))
        found = admit(shop.workspace(), {"same": shop.claim}, pair(shop.claim), None)
        assert (found.claim_digest, found.level, found.minimum_tokens, found.refusal) == (
            shop.claim.digest,
            "tokens",
            9,
            None,
        )
        assert (found.side("candidate")[1], found.side("reference")[1]) == ("fused", "plain")

    def test_a_control_binds_its_reference(self, tmp_path: Path) -> None:
        speed = claim("speed", kind="parity", metric="decode_tps", margin=0.5, pairs="6")
        one = admit(Workshop(tmp_path).workspace(), {"speed": speed}, _control(speed), None)
        engines = {"e": engine(context=1024)}
        other = admit(
            Workshop(tmp_path, engines=engines).workspace(), {"speed": speed}, _control(speed), None
        )
        assert one.claim_digest != other.claim_digest
        assert one.lanes == {"candidate": "plain", "reference": "plain"}

    @pytest.mark.parametrize("turned", [False, True])
    def test_a_control_is_as_strict_as_the_strictest_claim_that_leans_on_it(
        self, tmp_path: Path, turned: bool
    ) -> None:
        speed = {"kind": "parity", "metric": "decode_tps", "margin": 0.5, "pairs": "6"}
        loose, strict = claim("loose", exactness="text", **speed), claim("strict", **speed)
        elsewhere = claim("elsewhere", **{**speed, "reference_lane": "fused", "lane": "plain"})
        both = [loose, strict][:: -1 if turned else 1]
        workspace = Workshop(tmp_path).workspace()
        for claims, level in ((both, "tokens"), ([loose], "text"), ([elsewhere, loose], "text")):
            found = admit(workspace, {c.name: c for c in claims}, _control(loose), None)
            assert found.level == level, [c.name for c in claims]

    @pytest.mark.parametrize(
        ("kind", "code"),
        [
            (Unsupported, "unsupported"),
            (PinMismatch, "pin"),
            (ContextExceeded, "context"),
            (ConfigurationError, "configuration"),
            (AdmissionRefused, "refused"),
            (EngineDied, "engine-died"),
            (LedgerBroken, "ledger-broken"),
            (ReceiptUnreadable, "receipt-unreadable"),
            (ParityError, "parity-error"),
        ],
    )
    def test_reasons_have_short_codes(self, kind: type[ParityError], code: str) -> None:
        assert reason_code(kind("x", expected="a", found="b", mend="c")) == code


def _control(of: Claim) -> PairPlan:
    cell = Cell(control_name(of), of.other_lane, 64, "synthetic", 16, "6", control_key(of))
    return PairPlan(cell, 1, control_key(of))


def _can(monkeypatch: pytest.MonkeyPatch, capabilities: Capabilities) -> None:
    monkeypatch.setattr(LlamaServerDriver, "capabilities", lambda self: capabilities)
