"""The documentation held against the code: what exists is described, and what is described exists."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from pytest_parity import fixtures, options
from pytest_parity.cli import main
from pytest_parity.configuration import _Top, load_configuration, load_register
from pytest_parity.core import claims, diagnostics, exactness, prompts, receipts, stats
from pytest_parity.core.metrics import METRICS
from pytest_parity.core.verdicts import HOLDING
from pytest_parity.engines import description

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for folder in (ROOT, *(f for f in ROOT.iterdir() if f.is_dir() and f.name[0] not in "._"))
    for page in (folder.glob("*.md") if folder == ROOT else folder.rglob("*.md"))
)
PAGE_NAMES = [p.relative_to(ROOT).as_posix() for p in PAGES]

# The five published pairs of the worked example, tokens per second.
J3 = ((35.0973, 35.0850, 35.1586, 35.1939, 35.1910), (33.3817, 33.3035, 33.4304, 33.4261, 33.4900))


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def table(page: str, mark: str) -> list[list[str]]:
    """Cells of the table below the comment ``mark``, its header left out."""
    _, found, rest = read(page).partition(f"<!-- {mark} -->\n")
    assert found, f"{page} has no table marked {mark!r}"
    rows = []
    for line in rest.splitlines():
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    assert len(rows) > 2, f"{page}: the table marked {mark!r} is empty"
    return rows[2:]


def first_names(page: str, mark: str) -> list[str]:
    """Names in backticks in the first column; every row has at least one."""
    names = []
    for row in table(page, mark):
        found = re.findall(r"`([^`]+)`", row[0])
        assert found, f"{page}: a row of {mark!r} names nothing: {row[0]!r}"
        names.extend(found)
    return names


@dataclass(frozen=True)
class Block:
    """One fenced block: ``info`` is what stands behind the fence, ``line`` that of its first line."""

    page: str
    info: str
    line: int
    text: str

    @property
    def id(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(language: str) -> list[Block]:
    return [block for page in PAGE_NAMES for block in _blocks(page) if block.info.split()[:1] == [language]]


def _blocks(page: str) -> Iterator[Block]:
    info, start, inside = "", 0, False
    body: list[str] = []
    for number, line in enumerate(read(page).splitlines(), start=1):
        if line.startswith("```") and not inside:
            info, start, inside, body = line[3:].strip(), number + 1, True, []
        elif line.startswith("```"):
            inside = False
            yield Block(page, info, start, "\n".join(body) + "\n")
        elif inside:
            body.append(line)
    assert not inside, f"{page}: a fence that is never closed"


# --- fields --------------------------------------------------------------------------------------------

MODELS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("docs/claims.md", claims.Claim),
    ("docs/claims.md", claims.DepthEntry),
    ("docs/claims.md", claims.Expected),
    ("docs/configuration.md", _Top),
    ("docs/configuration.md", description.EngineDescription),
    ("docs/configuration.md", description.Lane),
    ("docs/configuration.md", description.Pin),
    ("docs/configuration.md", description.Estimate),
)
MODEL_IDS = [model.__name__ for _, model in MODELS]
NAMED_BY_THE_TABLE = {claims.Claim, description.EngineDescription}


@pytest.mark.parametrize(("page", "model"), MODELS, ids=MODEL_IDS)
def test_every_field_is_documented_and_no_other(page: str, model: type[BaseModel]) -> None:
    fields = set(model.model_fields) - ({"name"} if model in NAMED_BY_THE_TABLE else set())
    documented = first_names(page, f"fields: {model.__name__}")
    assert sorted(documented) == sorted(fields)


@pytest.mark.parametrize(("page", "model"), MODELS, ids=MODEL_IDS)
def test_documented_defaults_are_the_models(page: str, model: type[BaseModel]) -> None:
    for cells in table(page, f"fields: {model.__name__}"):
        name, told = cells[0].strip("`"), cells[2]
        field = model.model_fields[name]
        if field.is_required():
            assert told == "required", name
        else:
            value = field.get_default(call_default_factory=True, validated_data={})
            expected = None if value is None else _plain(value)
            documented = None if told == "none" else tomllib.loads(f"x = {told.strip('`')}")["x"]
            assert documented == expected, name


def _plain(value: Any) -> Any:
    """A default as TOML would write it."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_defaults=True)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def test_every_model_of_the_configuration_is_in_the_list() -> None:
    """A new table of fields can't stay undocumented."""
    found = {
        item
        for module in (claims, description)
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, BaseModel) and item.model_fields
    }
    assert found <= {model for _, model in MODELS}


def test_every_field_of_a_receipt_is_documented_and_no_other() -> None:
    tree = ast.parse(read("pytest_parity/measurement/receipt_parts.py"))
    (body,) = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "body_of")
    returned = (node.value for node in ast.walk(body) if isinstance(node, ast.Return))
    (written,) = (value for value in returned if isinstance(value, ast.Dict))
    keys = [str(key.value) for key in written.keys if isinstance(key, ast.Constant)]
    assert sorted(first_names("docs/evidence.md", "fields: receipt")) == sorted(keys)
    assert f"`{receipts.FORMAT}`" in read("docs/evidence.md")


@pytest.mark.parametrize("outcome", get_args(receipts.Outcome))
def test_every_outcome_is_documented(outcome: str) -> None:
    assert f"`{outcome}`" in read("docs/verdicts.md")
    assert f"`{outcome}`" in read("docs/evidence.md")


# --- names ---------------------------------------------------------------------------------------------


class _Recorder:
    """Stands in for pytest's parser and its groups."""

    def __init__(self) -> None:
        self.options: dict[str, dict[str, Any]] = {}

    def getgroup(self, *_: str) -> _Recorder:
        return self

    def addoption(self, name: str, **how: Any) -> None:
        self.options[name] = how


def test_every_option_is_documented_and_no_other() -> None:
    parser = _Recorder()
    options.add_options(parser)  # type: ignore[arg-type]
    rows = {cells[0].strip("`"): cells[1] for cells in table("docs/options.md", "options")}
    assert rows == {name: how.get("metavar", "") for name, how in parser.options.items()}


def test_every_fixture_and_the_marker_are_documented() -> None:
    public = [name for name in fixtures.__all__ if name.islower()]
    assert sorted(first_names("docs/options.md", "fixtures")) == sorted(public)
    assert first_names("docs/options.md", "markers")[0] == "parity"


def test_every_command_is_documented_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = re.findall(r"^    ([a-z-]+) ", capsys.readouterr().out, re.MULTILINE)
    assert listed
    documented = [cells[0].strip("`") for cells in table("docs/options.md", "commands")]
    assert documented == [f"parity {name}" for name in listed]


def test_every_word_of_a_verdict_is_documented_and_no_other() -> None:
    words = set(get_args(claims.Word)) | set(HOLDING) | _words_given()
    assert {"PASS", "FAIL", "STALE", "INVALID", "INCOMPLETE"} <= _words_given()
    assert sorted(first_names("docs/verdicts.md", "words")) == sorted(words)


def _words_given() -> set[str]:
    """Words that the rooms that decide a cell or a claim spell out."""
    trees = [
        ast.parse(read(f"pytest_parity/core/{room}.py")) for room in ("cells", "performance", "verdicts")
    ]
    texts = {
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {text for text in texts if re.fullmatch(r"[A-Z]{4,}(\([a-z]+\))?", text)}


def test_the_words_that_may_be_expected_are_documented_and_no_other() -> None:
    (meaning,) = (row[3] for row in table("docs/claims.md", "fields: Expected") if row[0] == "`verdict`")
    assert re.findall(r"`([A-Z][^`]*)`", meaning) == list(get_args(claims.Word))


def test_exit_statuses_stand_in_their_order() -> None:
    assert [cells[0] for cells in table("docs/options.md", "exit")] == ["2", "4", "1", "75", "5", "0"]


def test_kinds_metrics_plans_classes_and_placeholders_are_those_of_the_code() -> None:
    assert first_names("docs/claims.md", "kinds") == list(claims.KINDS)
    assert [(c[0].strip("`"), c[1]) for c in table("docs/claims.md", "metrics")] == [
        (name, metric.unit) for name, metric in METRICS.items()
    ]
    assert [(c[0].strip("`"), c[1]) for c in table("docs/claims.md", "plans")] == [
        (name, ", ".join(map(str, looks))) for name, looks in claims.PLANS.items()
    ]
    classes = first_names("docs/claims.md", "classes")
    assert {name.partition(":")[0] for name in classes} == set(prompts.BLIND_SPOTS)
    assert first_names("docs/configuration.md", "placeholders") == list(description.PLACEHOLDERS)
    (statistic,) = (c[3] for c in table("docs/claims.md", "fields: Claim") if c[0] == "`statistic`")
    assert set(diagnostics.STATISTICS) <= set(re.findall(r"`([^`]+)`", statistic))


@pytest.mark.parametrize("level", get_args(exactness.Level))
def test_every_level_is_documented(level: str) -> None:
    assert f"| `{level}` |" in read("docs/exactness.md")


# --- figures -------------------------------------------------------------------------------------------


def _ordinal(n: int) -> str:
    return f"{n}{'th' if 10 < n % 100 < 14 else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"


def test_plans_and_their_alphas_are_the_codes() -> None:
    expected = []
    for name in claims.PLANS:
        if name == "2":
            continue
        plan = stats.plan(name)
        for look in plan.looks:
            together = f"{plan.total_alpha * 100:.4f} %" if look is plan.looks[-1] else ""
            averages = look.pairs * (look.pairs + 1) // 2
            bounds = f"{_ordinal(look.walsh_k + 1)} of {averages} averages"
            alpha = f"{look.alpha * 100:.4f} %"
            expected.append([f"`{name}`", f"{look.pairs} pairs", bounds, alpha, together])
    assert table("docs/statistics.md", "plans") == expected


def test_the_readings_of_the_worked_example() -> None:
    d = stats.pair_log_ratios(*J3, "rate")
    assert table("docs/statistics.md", "j3 readings") == [
        [f"r{rep}", f"{ours:.4f}", f"{theirs:.4f}", f"{stats.ratio_of_log(log):.5f}"]
        for rep, (ours, theirs, log) in enumerate(zip(*J3, d, strict=True), start=1)
    ]


def test_the_figures_of_the_worked_example() -> None:
    d = diagnostics.describe(*J3, "rate")
    look = stats.plan("5").looks[0]
    bounds = stats.walsh_bounds(stats.pair_log_ratios(*J3, "rate"), look.walsh_k)
    assert None not in (d.pair_sd_log, d.unpaired_sd_log, d.pairing_worth, d.t_interval, d.resolvable_log)
    assert d.t_interval is not None
    figures = {
        "exact bounds, plan `5`": f"[{bounds.lower:.5f}, {bounds.upper:.5f}]",
        "confidence a side": f"{(1 - bounds.one_sided_alpha) * 100:.3f} %",
        "ratio of medians": f"{d.ratio_of_medians:.5f}",
        "median pair": f"{d.median_pair_ratio:.5f}",
        "smallest pair": f"{d.smallest_pair_ratio:.5f} (r{d.smallest_pair})",
        "CV of the candidate, n - 1": _percent(d.candidate.cv_sample),
        "CV of the reference, n - 1": _percent(d.reference.cv_sample),
        "CV of the candidate, n": _percent(d.candidate.cv_population),
        "CV of the reference, n": _percent(d.reference.cv_population),
        "pair SD": _percent(d.pair_sd_log),
        "SD if the sides were unpaired": _percent(d.unpaired_sd_log),
        "pairing worth": f"{d.pairing_worth:.1f}",
        "t interval, 90 % (description)": f"[{d.t_interval.lower:.5f}, {d.t_interval.upper:.5f}]",
        "resolvable at this noise, 80 % power": _percent(d.resolvable_log, 2),
    }
    assert table("docs/statistics.md", "j3 figures") == [[name, told] for name, told in figures.items()]


def _percent(share: float | None, places: int = 3) -> str:
    assert share is not None
    return f"{share * 100:.{places}f} %"


def test_the_claims_of_the_worked_example() -> None:
    logs, plan = stats.pair_log_ratios(*J3, "rate"), stats.plan("5")
    rows = table("docs/statistics.md", "j3 claims")
    thresholds = [float(cells[0].removeprefix("at least ")) for cells in rows]
    decisions = [stats.decide(logs, plan, threshold, None, "absent") for threshold in thresholds]
    assert [cells[1] for cells in rows] == [decision.by_bounds for decision in decisions]
    assert {decision.word for decision in decisions} == {"UNRESOLVED"}, "without a control"


def test_how_often_a_healthy_control_is_invalid() -> None:
    share = f"{2 * stats.signed_rank_cdf(stats.CONTROL_PAIRS, 0) * 100:.1f} %"
    assert share == "3.1 %"
    assert share in read("docs/statistics.md")
    assert share in read("docs/verdicts.md")


# --- links and code ------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGE_NAMES)
def test_every_relative_link_leads_somewhere(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", read(page), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (ROOT / page).parent / file if file else ROOT / page
        assert path.resolve().is_relative_to(ROOT), f"{page}: {target} leaves the repository"
        assert path.exists(), f"{page}: {target} is not there"
        if anchor:
            assert anchor in _anchors(path.read_text(encoding="utf-8")), f"{page}: {target}: no such heading"


def _anchors(text: str) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_page_is_in_the_index() -> None:
    index = read("docs/README.md")
    for path in ROOT.glob("docs/*.md"):
        assert path.name == "README.md" or f"]({path.name})" in index, path.name


@pytest.mark.parametrize("page", [name for name in PAGE_NAMES if name.startswith("docs/")])
def test_every_page_begins_with_a_title_and_a_sentence(page: str) -> None:
    title, blank, sentence, *_ = read(page).splitlines()
    assert title.startswith("# ") and not blank
    assert re.match(r"[A-Z]", sentence), sentence


def blocks_of(*infos: str) -> list[Any]:
    return [pytest.param(b, id=b.id) for b in blocks("toml") if not infos or b.info in infos]


@pytest.mark.parametrize("block", blocks_of())
def test_toml_is_toml(block: Block) -> None:
    tomllib.loads(block.text)


@pytest.mark.parametrize("block", blocks_of("toml claims"))
def test_claims_in_the_docs_can_be_read(block: Block) -> None:
    rows = tomllib.loads(block.text)["claims"]
    for name, row in rows.items():
        assert "{" not in claims.parse_claim(name, row).sentence()


@pytest.mark.parametrize("block", blocks_of("toml parity"))
def test_configurations_in_the_docs_can_be_read(block: Block, tmp_path: Path) -> None:
    (tmp_path / "parity.toml").write_text(block.text, encoding="utf-8")
    assert load_configuration(tmp_path / "parity.toml").engines


def test_the_register_of_your_engine_fits_its_configuration(tmp_path: Path) -> None:
    mine = [b for b in blocks("toml") if b.page == "docs/your-engine.md"]
    (configuration,) = (b for b in mine if b.info == "toml parity")
    (register,) = (b for b in mine if b.info == "toml claims")
    (tmp_path / "claims").mkdir()
    (tmp_path / "parity.toml").write_text(configuration.text, encoding="utf-8")
    (tmp_path / "claims" / "fork.toml").write_text(register.text, encoding="utf-8")
    read_back = load_configuration(tmp_path / "parity.toml")
    known = load_register(read_back).claims
    assert set(read_back.default_claims or ()) <= set(known)
    for claim in known.values():
        if read_back.engines[claim.candidate].lanes[claim.lane].speculative:
            assert claim.has_natural and claim.minimum_tokens > 1


@pytest.mark.parametrize("block", [pytest.param(b, id=b.id) for b in blocks("python")])
def test_python_compiles(block: Block) -> None:
    compile(block.text, block.id, "exec")


def test_nothing_was_found_nowhere() -> None:
    """Each of the searches above finds something: a typo in a mark must not pass for want of blocks."""
    assert len(PAGES) > 12
    assert blocks_of("toml claims") and blocks_of("toml parity")
    assert blocks("python")
