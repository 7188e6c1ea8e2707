"""Every fault of the embedded engine: how its pair ends, what is said, and that no rate of it is anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from project import GENERIC, Project, Ran, exact_claim, properties_of

from pytest_parity.core.metrics import METRICS
from pytest_parity.engines.embedded.faults import NAMES
from pytest_parity.engines.embedded.options import MUTANT_NAMES

PROSE: dict[str, object] = {"depths": [600], "fixtures": ["natural-prose"]}
IMPATIENT: dict[str, object] = {"candidate": "impatient"}

# fault: (argument, more of the claim's row, outcome, a piece of what the item says)
FAULTS: dict[str, tuple[str, dict[str, object], str, str]] = {
    "diverge-at": ("=5", {}, "diverged", "first difference at output token 5: candidate "),
    "nan-logits": ("=3", {}, "diverged", "first difference at output token 3: candidate 0, reference "),
    "silent-penalty": ("", PROSE, "diverged", "first difference at output token "),
    "loud-penalty": ("", PROSE, "broken", "setting repeat_penalty: expected 1.0, as asked; found 1.1"),
    "stop-early": (
        "",
        {},
        "diverged",
        "first difference at output token 15: the candidate ended there, the other side went on",
    ),
    "after-stop": ("", {}, "broken", "expected at most 1 generated tokens, as asked; found 2."),
    "extra-bos": (
        "",
        {},
        "broken",
        "One more: the engine adds a begin token (BOS) of its own to a prompt of ids.",
    ),
    "wrong-prompt": ("", PROSE, "diverged", "first difference at output token 2: candidate "),
    "reuse-cache": (
        "",
        {},
        "void",
        " prompt tokens from a cache that was forbidden (T05)",
    ),
    "bad-token": ("", {}, "broken", "expected token ids to be whole numbers from 0 on; found '"),
    "cut-stream": ("=4", {}, "broken", "found the connection closed in the middle of it"),
    "die-at": ("=4", {}, "broken", "candidate in phase measured request"),
    "unready-forever": (
        "",
        IMPATIENT,
        "broken",
        "expected one generated token within 5 s; found status 503: Loading model",
    ),
    "stall-at": (
        "=5:60",
        IMPATIENT,
        "broken",
        "expected an event at least every 4 s; found silence for longer",
    ),
    # What exactness has no objection to: speed is judged by the claim, never by the pair.
    "half-draft-window": ("", {}, "passed", ""),
    "reuse-cache-silent": ("", {}, "passed", ""),
    "slow": ("=50", {}, "passed", ""),
    "slow-first": ("=50", {}, "passed", ""),
    "chunk": ("=4", {}, "passed", ""),
    "lose-ids": ("", {}, "passed", ""),
    "wrong-timings": ("", {}, "passed", ""),
    "ready-early": ("", {}, "passed", ""),
    "ignore-sigterm": ("", {}, "passed", ""),
    "fork-child": ("", {}, "passed", ""),
}
MORE_ARGV = {
    "half-draft-window": ["--speculative"],
    "slow-first": ["--position", "{position}"],
    "ready-early": ["--load-seconds", "0.5"],
}
MUTANTS = dict.fromkeys(MUTANT_NAMES, ("", PROSE, "diverged", "first difference at output token "))
ALL = {**FAULTS, **MUTANTS}
WORDS = {"diverged": "FAIL", "broken": "INCOMPLETE", "void": "INCOMPLETE", "passed": "INCOMPLETE"}


# A warm-up shares nothing with the prompt: only a primed lane has something that could be reused.
PRIMED = {"reuse-cache": {"argv": ["--fault", "reuse-cache"], "prime": True}}


def _lanes() -> Iterator[tuple[str, list[str]]]:
    for name, (value, *_) in FAULTS.items():
        if name not in PRIMED:
            yield name, ["--fault", name + value, *MORE_ARGV.get(name, [])]
    for name in MUTANTS:
        yield name, ["--mutant", name]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(
        tmp_path_factory.mktemp("faults"),
        lanes=dict(_lanes()),
        lane_tables=PRIMED,
        claims={name: exact_claim(name, **more) for name, (_, more, *_) in ALL.items()},
        tests=GENERIC,
        more_engines={"impatient": {"start_s": 5, "silence_s": 4}},
    )


@pytest.fixture(scope="module")
def ran(project: Project) -> Ran:
    return project.run("-m", "parity", "--reps", "1", "-v", timeout_s=500)


def _pair(name: str) -> str:
    more = ALL[name][1]
    return f"{name}-d600-natural-prose-r1" if "depths" in more else f"{name}-d64-synthetic-r1"


def test_every_fault_is_here() -> None:
    assert set(FAULTS) == set(NAMES)


@pytest.mark.parametrize("name", ALL)
def test_a_fault_ends_its_pair_with_the_right_word(project: Project, ran: Ran, name: str) -> None:
    _, _, outcome, text = ALL[name]
    report, receipt, verdict = ran.of(_pair(name)), project.receipts()[_pair(name)], ran.claim(name)
    assert receipt["outcome"] == outcome
    assert report.word == ("passed" if outcome == "passed" else "failed")
    assert text in report.text
    assert report.properties["parity_outcome"] == outcome
    assert verdict.properties["parity_verdict"] == WORDS[outcome]
    assert verdict.word == ("skipped" if outcome == "passed" else "failed")
    assert "PASS" not in (verdict.properties["parity_verdict"], verdict.properties["parity_sentence"])
    assert f"PASSED claims/x.toml::{name}" not in ran.out
    assert f"PASS  {name}\n" not in ran.out
    assert ran.status == 1


@pytest.mark.parametrize("name", [name for name, fault in ALL.items() if fault[2] != "passed"])
def test_no_rate_of_a_pair_that_did_not_pass_is_anywhere(project: Project, ran: Ran, name: str) -> None:
    receipt = project.receipts()[_pair(name)]
    assert receipt["timing"] is None
    for side in receipt["sides"].values():
        # A void pair keeps its times where its words are equal; nothing else keeps any.
        assert side["clockwork"] is None or receipt["outcome"] == "void"
    assert not _times(receipt, allow_clockwork=receipt["outcome"] == "void")
    case = ran.cases()[_pair(name)]
    rates = {key for key in properties_of(case) if any(metric in key for metric in METRICS)}
    assert not rates
    assert not re.search(r"parity_(ratio|lower|minimum)", str(properties_of(ran.cases()[name])))
    block = ran.out.split("parity: verdicts")[1].split(f"  {name}\n")[1].split("\n\n")[0]
    for text in (block, ran.of(_pair(name)).text, ran.claim(name).text, *case.itertext()):
        assert not re.search(r"tokens?/s|\btps\b|per second|\bratio\b +\d|\d x\b", text), text
    row = next(line for line in block.splitlines() if re.match(r" +(64|600)  [a-z-]+ +\d", line))
    assert row.split()[2:5] == ["0", "-", "-"]


def _times(value: object, *, allow_clockwork: bool, path: str = "") -> list[str]:
    """Paths of numbers that are times or rates, apart from those of the lease and of the machine."""
    found: list[str] = []
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("scans", "machine", "lease", "configuration", "row") or (
                allow_clockwork and key == "clockwork"
            ):
                continue
            found += _times(inner, allow_clockwork=allow_clockwork, path=f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            found += _times(inner, allow_clockwork=allow_clockwork, path=path)
    elif isinstance(value, float) or (
        isinstance(value, int) and re.search(r"_(ns|ms|s|tps|us)$|per_second", path)
    ):
        # Penalties and temperatures are settings that took effect: floats, and no times.
        if ".words.settings." not in path and ".identity.facts." not in path:
            found.append(path)
    return found


def test_the_search_for_times_finds_them(project: Project, ran: Ran) -> None:
    """The check above can fail: it finds the times of a pair that passed."""
    passed = project.receipts()[_pair("chunk")]
    assert any("timing" in path for path in _times(passed, allow_clockwork=False))
    assert any("clockwork" in path for path in _times(passed, allow_clockwork=False))


def test_a_diverged_pair_keeps_its_words(project: Project, ran: Ran) -> None:
    for name, (_, _, outcome, _) in ALL.items():
        if outcome == "diverged":
            receipt = project.receipts()[_pair(name)]
            ours, theirs = (
                receipt["sides"][role]["words"]["output_ids"] for role in ("candidate", "reference")
            )
            position = receipt["divergence"]["position"]
            assert ours[:position] == theirs[:position]
            assert ours[position : position + 1] != theirs[position : position + 1]


def test_a_broken_pair_tells_how_far_it_came(project: Project, ran: Ran) -> None:
    receipt = project.receipts()[_pair("die-at")]
    side = receipt["sides"]["candidate"]
    assert side["phase"] == "measured request"
    assert side["ended"] == "signal SIGKILL"
    assert side["log_tail"]
    assert receipt["sides"]["reference"]["phase"] == "done"
    assert project.receipts()[_pair("unready-forever")]["sides"]["candidate"]["phase"] == "ready"


def test_wrong_times_of_the_engine_are_barred(project: Project, ran: Ran) -> None:
    timing = project.receipts()[_pair("wrong-timings")]["timing"]
    assert timing["candidate"]["engine_decode_n"] is not None or timing["candidate"]["engine_barred"]


def test_no_engine_and_no_child_of_one_lives_on(project: Project, ran: Ran) -> None:
    assert project.engines() == []
    assert project.lease_is_free()
