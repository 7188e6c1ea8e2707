"""An engine with its files: found or refused, digests held against the pin, argv filled in."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from workshop import EMBEDDED, Workshop, acted, body_of, claim, engine, pair

from pytest_parity.core.plan import declared_cells
from pytest_parity.core.receipts import read_pair
from pytest_parity.core.verdicts import Context, judge_claim
from pytest_parity.engines import provision
from pytest_parity.engines.description import EngineDescription
from pytest_parity.engines.provision.records import FileFacts
from pytest_parity.errors import AdmissionRefused, PinMismatch
from pytest_parity.measurement.installed import InstalledEngine, file_digest, install, why_not_installed

WEIGHTS = b"weights"
SHA = hashlib.sha256(WEIGHTS).hexdigest()
OTHER = "0" * 64


def filed(name: str = "e", **fields: Any) -> EngineDescription:
    """An engine whose argv uses the files that it names."""
    used = [f"{{{what}}}" for what in ("binary", "model") if what in fields]
    return engine(name, argv=(*EMBEDDED, *used), **fields)


def pinned(**pin: Any) -> dict[str, Any]:
    """Fields of an engine with a model file and a pin."""
    return {"model": "m.gguf", "pin": pin}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with a model file and a program."""
    (tmp_path / "m.gguf").write_bytes(WEIGHTS)
    (tmp_path / "prog").write_bytes(b"#!/bin/false\n")
    return tmp_path


class TestFiles:
    def test_are_found_beside_parity_toml(self, root: Path) -> None:
        found = install(filed(binary="prog", model="m.gguf"), root)
        assert (found.binary, found.model, found.local) == (root / "prog", root / "m.gguf", {})

    def test_are_not_needed_where_none_is_named(self, root: Path) -> None:
        found = install(engine(), root)
        assert (found.binary, found.model) == (None, None)
        assert found.pin() == {
            "portable": {
                "binary_sha256": None,
                "model_sha256": None,
                "source": None,
                "expires": None,
                "expiries": [],
            },
            "local": {},
        }

    @pytest.mark.parametrize("what", ["binary", "model"])
    def test_that_are_missing(self, root: Path, what: str) -> None:
        description = filed(**{what: "deep/none.bin"})
        with pytest.raises(AdmissionRefused) as caught:
            install(description, root)
        assert str(caught.value) == (
            f"e: its {what} none.bin: expected a file; found none on this machine. Correct {what!r} of [engines.e]."
        )
        assert why_not_installed(description, root) == (
            f"e: its {what} none.bin is not installed. Correct {what!r} of [engines.e]."
        )

    def test_that_are_folders_are_missing(self, root: Path) -> None:
        (root / "folder").mkdir()
        with pytest.raises(
            AdmissionRefused, match="its model folder: expected a file; found none on this machine"
        ):
            install(filed(model="folder"), root)

    def test_that_are_there_need_no_reason(self, root: Path) -> None:
        assert why_not_installed(filed(binary="prog", model="m.gguf"), root) is None

    def test_of_a_build_that_was_not_made(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(root / "empty"))
        with pytest.raises(AdmissionRefused) as caught:
            install(filed(binary="built:llama-cpp"), root)
        assert str(caught.value) == (
            "llama-cpp (engine e): expected a build; found none on this machine. Run: parity engine build llama-cpp"
        )

    def test_of_a_model_that_was_not_provided(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(root / "empty"))
        with pytest.raises(AdmissionRefused) as caught:
            install(filed(model="provided:smollm2:q4_1"), root)
        assert str(caught.value) == (
            "smollm2 q4_1 (engine e): expected a model file; found none on this machine. "
            "Run: parity engine model smollm2"
        )

    def test_of_a_model_that_was(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(provision, "model_path", lambda name, variant: root / f"{name}-{variant}.gguf")
        assert install(filed(model="provided:smollm2:q4_1"), root).model == root / "smollm2-q4_1.gguf"


class TestPins:
    def test_a_right_digest_passes(self, root: Path) -> None:
        found = install(filed(**pinned(model_sha256=SHA)), root)
        assert found.check_pin(date(2025, 1, 1)) is None
        assert found.pin()["local"] == {"model_sha256": SHA}

    @pytest.mark.parametrize(("what", "name"), [("model", "m.gguf"), ("binary", "prog")])
    def test_a_wrong_digest(self, root: Path, what: str, name: str) -> None:
        fields: dict[str, Any] = {what: name, "pin": {f"{what}_sha256": OTHER}}
        found = install(filed(**fields), root)
        digest = hashlib.sha256((root / name).read_bytes()).hexdigest()
        with pytest.raises(PinMismatch) as caught:
            found.check_pin(date(2025, 1, 1))
        assert str(caught.value) == (
            f"e: the {what}: expected SHA-256 {OTHER}; found {digest}. "
            "Install what was pinned, or pin what is installed and measure again."
        )

    def test_a_pinned_file_that_the_engine_does_not_name(self, root: Path) -> None:
        found = install(engine(pin={"binary_sha256": OTHER}), root)
        with pytest.raises(PinMismatch, match=f"e: the binary: expected SHA-256 {OTHER}; found no file"):
            found.check_pin(date(2025, 1, 1))

    def test_expire_on_the_day_that_they_name(self, root: Path) -> None:
        found = install(engine(pin={"expires": date(2025, 6, 30)}), root)
        assert found.check_pin(date(2025, 6, 29)) is None
        for day in (date(2025, 6, 30), date(2025, 7, 1)):
            assert found.check_pin(day) == "the pin of e expired on 2025-06-30"
        assert found.pin()["portable"]["expiries"] == [{"of": "the pin of e", "on": "2025-06-30"}]

    def test_of_this_package_expire_as_well(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What it builds and provides is pinned by it: a description without a pin doesn't outlive that."""
        record = _provided(monkeypatch, root, expires=date(2025, 5, 31))
        build = replace(provision.ENGINE_PINS["llama-cpp"], expires=date(2025, 6, 15))
        monkeypatch.setattr(provision, "ENGINE_PINS", {"llama-cpp": build})
        description = filed(
            binary="built:llama-cpp", model="provided:smollm2:q4_1", pin={"expires": date(2025, 6, 30)}
        )
        found = InstalledEngine(description, root / "prog", record.path)
        assert found.pin()["portable"]["expiries"] == [
            {"of": "the pin of e", "on": "2025-06-30"},
            {"of": "the pinned source of llama-cpp", "on": "2025-06-15"},
            {"of": "the pinned model smollm2", "on": "2025-05-31"},
        ]
        assert [
            found.check_pin(date(2025, month, day)) for month, day in ((5, 30), (5, 31), (6, 15), (6, 30))
        ] == [
            None,
            "the pinned model smollm2 expired on 2025-05-31",
            "the pinned source of llama-cpp expired on 2025-06-15",
            "the pin of e expired on 2025-06-30",
        ]

    def test_that_name_no_day_do_not_expire(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        _provided(monkeypatch, root, expires=None)
        found = install(filed(model="provided:smollm2:q4_1"), root)
        assert found.check_pin(date(9999, 12, 31)) is None
        assert found.pin()["portable"]["expiries"] == []

    def test_a_provided_model_whose_bytes_changed_since(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _provided(monkeypatch, root, expires=None)
        found = install(filed(model="provided:smollm2:q4_1"), root)
        (root / "m.gguf").write_bytes(WEIGHTS.upper())
        changed = hashlib.sha256(WEIGHTS.upper()).hexdigest()
        with pytest.raises(PinMismatch) as caught:
            found.check_pin(date(2025, 1, 1))
        assert str(caught.value) == (
            f"e: the model m.gguf: expected SHA-256 {SHA}; found {changed}. "
            "Delete the folder that it lies in and run: parity engine model smollm2 q4_1"
        )

    def test_a_provided_model_whose_record_is_gone(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        _provided(monkeypatch, root, expires=None)
        found = install(filed(model="provided:smollm2:q4_1"), root)
        monkeypatch.setattr(provision, "model_file", lambda name, variant: None)
        with pytest.raises(
            PinMismatch, match=f"e: the model m.gguf: expected SHA-256 of its record; found {SHA}"
        ):
            found.check_pin(date(2025, 1, 1))

    def test_a_file_that_changes_gets_a_new_digest(self, root: Path) -> None:
        assert file_digest(root / "m.gguf") == SHA
        (root / "m.gguf").write_bytes(b"Weights")
        os.utime(root / "m.gguf", ns=(1, 1))
        assert file_digest(root / "m.gguf") == hashlib.sha256(b"Weights").hexdigest()


def _provided(monkeypatch: pytest.MonkeyPatch, root: Path, expires: date | None) -> provision.ModelFile:
    """Of smollm2 q4_1 there is a file, ``m.gguf``, as it was recorded; its pin ends on ``expires``."""
    record = provision.ModelFile(
        model="smollm2",
        variant="q4_1",
        portable_sha256=OTHER,
        file=FileFacts.of(root / "m.gguf", "m.gguf"),
        tensors_sha256=None,
        made_with=None,
        context_tokens=8192,
        vocabulary=49152,
    ).in_folder(root)
    pin = replace(provision.MODEL_PINS["smollm2"], expires=expires)
    monkeypatch.setattr(provision, "MODEL_PINS", {"smollm2": pin})
    monkeypatch.setattr(provision, "model_file", lambda name, variant: record)
    monkeypatch.setattr(provision, "model_path", lambda name, variant: record.path)
    return record


class TestVocabulary:
    def test_is_named_or_the_model_files_or_the_command_lines(self, root: Path) -> None:
        assert install(filed(vocabulary="bytes", model="m.gguf"), root).vocabulary() == "named:bytes"
        assert install(filed(vocabulary=None, model="m.gguf"), root).vocabulary() == f"model:{SHA}"
        plain = engine(vocabulary=None)
        digest = hashlib.sha256(" ".join(plain.argv).encode()).hexdigest()
        assert install(plain, root).vocabulary() == f"configuration:{digest}"


class TestArgv:
    def test_is_filled_in_and_the_lane_comes_last(self, root: Path) -> None:
        description = engine(
            binary="prog",
            model="m.gguf",
            argv=("{binary}", "-m", "{model}", "--at={port}", "-c", "{context}", "{python}", "{}", "{1}"),
            lanes={"second": {"argv": ("--position", "{position}")}},
        )
        found = install(description, root)
        assert found.argv("second", port=4000, position=2) == (
            str(root / "prog"), "-m", str(root / "m.gguf"), "--at=4000", "-c", "2048", sys.executable, "{}", "{1}",
            "--position", "2",
        )  # fmt: skip
        assert found.argv("plain", port=4000, position=2)[-1] == "{1}"


class TestWhatThePairSays:
    def test_a_wrong_pin_is_refused_and_nothing_starts(self, root: Path) -> None:
        bad = filed("bad", **pinned(model_sha256=OTHER))
        shop = Workshop(root, engines={"e": engine(), "bad": bad}, claim=claim(candidate="bad", lane="plain"))
        error, body = shop.unfinished()
        assert str(error) == (
            f"refused: bad: the model: expected SHA-256 {OTHER}; found {SHA}. "
            "Install what was pinned, or pin what is installed and measure again."
        )
        assert (body["outcome"], body["reason"]["code"], body["lease"]) == ("refused", "pin", None)
        assert shop.nothing_started()
        assert _word(shop, body) == "STALE"

    @pytest.mark.parametrize("what", ["binary", "model"])
    def test_a_missing_file_is_refused_and_nothing_starts(self, root: Path, what: str) -> None:
        bad = filed("bad", **{what: "none.bin"})
        shop = Workshop(root, engines={"e": engine(), "bad": bad}, claim=claim(candidate="bad", lane="plain"))
        error, body = shop.unfinished()
        assert str(error) == (
            f"refused: bad: its {what} none.bin: expected a file; found none on this machine. "
            f"Correct {what!r} of [engines.bad]."
        )
        assert (body["outcome"], body["reason"]["code"]) == ("refused", "refused")
        assert shop.nothing_started()
        assert _word(shop, body) == "INCOMPLETE"

    def test_an_expired_pin_is_measured_and_its_verdict_is_stale(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acted(monkeypatch)
        old = engine("old", pin={"expires": date(2025, 6, 30)})
        shop = Workshop(
            root,
            engines={"e": engine(), "old": old},
            claim=claim(candidate="old", lane="plain", reference_lane="plain", reference="e"),
            now=lambda: datetime(2025, 7, 1, tzinfo=UTC),
        )
        # The same configuration under two names is no comparison; a pin is no part of a configuration.
        error, body = shop.unfinished()
        assert body["reason"]["code"] == "refused" and "the same one twice" in str(error)
        shop = Workshop(
            root,
            engines=shop.engines,
            claim=claim(candidate="old"),
            now=shop.now,
            session="20250701T000000Z-bbbbbb",
        )
        receipts = []
        for rep in (1, 2):
            receipts.append(shop.conductor().measure(pair(shop.claim, rep), "replay").exact().record())
        records = [read_pair(receipt.name, body_of(receipt.path)) for receipt in receipts]
        why = shop.workspace().installed("old").check_pin(shop.workspace().today())
        assert why == "the pin of old expired on 2025-06-30"
        (cell,) = declared_cells(shop.claim)
        for stale, word in ((why, "STALE"), (None, "PASS")):
            verdict = judge_claim(shop.claim, records, {}, Context({cell: frozenset({1, 2})}, stale=stale))
            assert verdict.word == word
        assert body_of(receipts[0].path)["at"].startswith("2025-07-01T00:00:00")


def _word(shop: Workshop, body: dict[str, Any]) -> str:
    """The claim's word by one refused receipt."""
    (cell,) = declared_cells(shop.claim)
    context = Context({cell: frozenset({1, 2})})
    return judge_claim(shop.claim, [read_pair("r", body)], {}, context).word
