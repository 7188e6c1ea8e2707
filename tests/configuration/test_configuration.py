"""parity.toml and the register: every mistake is told with file, line, what was expected, and the mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_parity.configuration import Configuration, Register, load_configuration, load_register
from pytest_parity.errors import ConfigurationError

ENGINES = """\
default_claims = ["decode"]
device = "gpu0"
quiet_s = 0.5

[gates]
release = ["decode"]

[engines.ours]
argv = ["{binary}", "-m", "{model}", "--port", "{port}"]
binary = "bin/engine"
model = "models/m.gguf"
context = 8192

[engines.ours.lanes]
plain = {}
fast = { argv = ["--fast"] }

[engines.theirs]
argv = ["{python}", "--port", "{port}"]
context = 8192
"""

CLAIM = """\
[claims.decode]
wording = "At {depths}, {candidate} kept up with {reference}."
candidate = "ours"
reference = "theirs"
kind = "exact"
depths = [2048]
fixtures = ["synthetic"]
"""

MEND = "Correct the field; docs/configuration.md has every one."


def load(root: Path, text: str = ENGINES) -> Configuration:
    (root / "parity.toml").write_text(text, encoding="utf-8")
    return load_configuration(root / "parity.toml")


def refused(root: Path, text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(root, text)
    return str(caught.value)


def register(root: Path, *files: str, engines: str = ENGINES) -> Register:
    (root / "claims").mkdir(exist_ok=True)
    for number, text in enumerate(files):
        (root / "claims" / f"{'abc'[number]}.toml").write_text(text, encoding="utf-8")
    return load_register(load(root, engines))


def unregistered(root: Path, *files: str, engines: str = ENGINES) -> str:
    with pytest.raises(ConfigurationError) as caught:
        register(root, *files, engines=engines)
    return str(caught.value)


# --- what is right -----------------------------------------------------------------------------------------


def test_everything_that_is_read(tmp_path: Path) -> None:
    found = load(tmp_path, ENGINES + 'lease = "x"\n'.replace("lease", "# lease"))
    assert (found.device, found.quiet_s, found.default_claims) == ("gpu0", 0.5, ("decode",))
    assert found.root == tmp_path.resolve() and found.claims_folder == tmp_path.resolve() / "claims"
    assert found.gates == {"release": ("decode",)} and found.lease is None and found.harness_cpus is None
    assert list(found.engines) == ["ours", "theirs"]
    assert found.engines["ours"].lanes["fast"].argv == ("--fast",)
    assert list(found.engines["theirs"].lanes) == ["plain"]


def test_what_an_empty_file_means(tmp_path: Path) -> None:
    found = load(tmp_path, "")
    assert (found.device, found.quiet_s, found.default_claims, dict(found.engines)) == ("cpu", 2.0, None, {})


def test_paths_start_at_the_configurations_folder(tmp_path: Path) -> None:
    found = load(tmp_path, 'lease = "run/lease.lock"\nclaims = "register"\n')
    assert found.lease == tmp_path.resolve() / "run/lease.lock"
    assert found.claims_folder == tmp_path.resolve() / "register"


def test_claims_of_all_files_and_where_they_stand(tmp_path: Path) -> None:
    found = register(tmp_path, CLAIM, CLAIM.replace("claims.decode", "claims.other"))
    assert list(found.claims) == ["decode", "other"]
    assert found.places == {"decode": "claims/a.toml", "other": "claims/b.toml"}


def test_a_register_beside_the_configurations_folder(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "a.toml").write_text(CLAIM)
    found = load_register(load(project, 'claims = "../claims"\n' + ENGINES))
    assert found.places == {"decode": "../claims/a.toml"}


# --- parity.toml -------------------------------------------------------------------------------------------

OURS = '[engines.ours]\nargv = ["x", "--port", "{port}"]\ncontext = 8192\n'

BAD: list[tuple[str, str, str]] = [
    (
        "syntax",
        'device = "cpu"\nquiet_s = = 2\n',
        "parity.toml:2:11: expected TOML; found Invalid value. Correct the syntax.",
    ),
    (
        "syntax at the end",
        'device = "cpu"\nquiet_s = """x\n',
        "parity.toml:2: expected TOML; found Unterminated string. Correct the syntax.",
    ),
    (
        "the same key twice",
        'device = "cpu"\ndevice = "cpu"\n',
        "parity.toml:2:15: expected TOML; found Cannot overwrite a value. Correct the syntax.",
    ),
    (
        "unknown field",
        'device = "cpu"\nquiet = 2\n',
        f"parity.toml:2: quiet: expected a known field; found an unknown field. {MEND}",
    ),
    (
        "wrong type",
        'quiet_s = "long"\n',
        "parity.toml:1: quiet_s: expected a valid number, unable to parse string as a number; found 'long'. "
        + MEND,
    ),
    (
        "a negative quiet period",
        "\n\nquiet_s = -1\n",
        f"parity.toml:3: quiet_s: expected greater than or equal to 0; found -1. {MEND}",
    ),
    (
        "a device that cannot be a file name",
        'device = "gpu/0"\n',
        "parity.toml:1: device: expected String should match pattern '^[A-Za-z0-9._-]+$'; found 'gpu/0'. "
        + MEND,
    ),
    (
        "an engine that is no table",
        'device = "cpu"\n[engines]\nours = "llama"\n',
        "parity.toml:3: engine 'ours': expected a table; found 'llama'. Write [engines.ours].",
    ),
    (
        "an unknown field of an engine",
        OURS + 'modle = "m"\n',
        f"parity.toml:4: engines.ours.modle: expected a known field; found an unknown field. {MEND}",
    ),
    (
        "a name within an engine",
        OURS + 'name = "m"\n',
        (
            "parity.toml:4: engines.ours.name: expected a known field; found an unknown field. "
            "Take it out: the name is the table's, [engines.ours]."
        ),
    ),
    (
        "an engine without a context",
        '[engines.ours]\nargv = ["x", "{port}"]\n',
        f"parity.toml:1: engines.ours.context: expected a value; found nothing. {MEND}",
    ),
    (
        "a shell string for argv",
        '[engines.ours]\ncontext = 8192\nargv = "x --port {port}"\n',
        f"parity.toml:3: engines.ours.argv: expected a valid tuple; found 'x --port {{port}}'. {MEND}",
    ),
    (
        "no port",
        '[engines.ours]\ncontext = 8192\nargv = ["x"]\n',
        f"parity.toml:3: engines.ours.argv: expected argv needs {{port}}: the port is chosen for each start; found ['x']. {MEND}",
    ),
    (
        "a model that is not given",
        '\n[engines.ours]\ncontext = 8192\nargv = ["x", "{model}", "{port}"]\n',
        "parity.toml:2: engines.ours: expected argv uses {model}, but 'model' is not given; found the table as written. "
        + MEND,
    ),
    (
        "a binary that is not given",
        '\n[engines.ours]\ncontext = 8192\nargv = ["{binary}", "{port}"]\n',
        "parity.toml:2: engines.ours: expected argv uses {binary}, but 'binary' is not given; found the table as written. "
        + MEND,
    ),
    (
        "a model that argv does not use",
        '\n[engines.ours]\ncontext = 8192\nargv = ["x", "{port}"]\nmodel = "m"\n',
        "parity.toml:2: engines.ours: expected 'model' is given, but argv does not use {model}: its pin would speak of "
        f"nothing; found the table as written. {MEND}",
    ),
    (
        "a binary that argv does not use",
        '\n[engines.ours]\ncontext = 8192\nargv = ["x", "{port}"]\nbinary = "built:llama-cpp"\n',
        "parity.toml:2: engines.ours: expected 'binary' is given, but argv does not use {binary}: its pin would speak "
        f"of nothing; found the table as written. {MEND}",
    ),
    (
        "an unknown placeholder",
        '\n[engines.ours]\ncontext = 8192\nargv = ["x", "{port}", "--threads={cpus}"]\n',
        "parity.toml:2: engines.ours: expected argv has {cpus}; the placeholders are {python}, {binary}, {model}, "
        f"{{port}}, {{context}}, {{position}}; found the table as written. {MEND}",
    ),
    (
        "an unknown placeholder of a lane",
        OURS + '[engines.ours.lanes]\nplain = { argv = ["{modle}"] }\n',
        "parity.toml:1: engines.ours: expected argv has {modle}; the placeholders are {python}, {binary}, {model}, "
        f"{{port}}, {{context}}, {{position}}; found the table as written. {MEND}",
    ),
    (
        "a context that is no whole number",
        OURS.replace("8192", '"8192"'),
        f"parity.toml:3: engines.ours.context: expected a valid integer; found '8192'. {MEND}",
    ),
    (
        "warm-up tokens that are no whole number",
        OURS + "warmup_tokens = 16.0\n",
        f"parity.toml:4: engines.ours.warmup_tokens: expected a valid integer; found 16.0. {MEND}",
    ),
    (
        "no plain lane",
        OURS + "[engines.ours.lanes]\nfast = {}\n",
        f"parity.toml:1: engines.ours: expected lanes need one called 'plain'; found the table as written. {MEND}",
    ),
    (
        "an unknown field of a lane",
        OURS + "[engines.ours.lanes.plain]\n\nargs = []\n",
        f"parity.toml:6: engines.ours.lanes.plain.args: expected a known field; found an unknown field. {MEND}",
    ),
    (
        "an unknown driver",
        OURS + 'driver = "vllm"\n',
        f"parity.toml:4: engines.ours.driver: expected 'llama-server'; found 'vllm'. {MEND}",
    ),
    (
        "an engine's name with an upper case letter",
        OURS.replace("ours", "Ours"),
        "parity.toml:1: engines.Ours.name: expected String should match pattern '^[a-z0-9][a-z0-9-]*$'; found 'Ours'. "
        + MEND,
    ),
    (
        "a pin that is no digest",
        OURS + '[engines.ours.pin]\nmodel_sha256 = "abc"\n',
        (
            "parity.toml:5: engines.ours.pin.model_sha256: expected String should match pattern '^[0-9a-f]{64}$'; "
            f"found 'abc'. {MEND}"
        ),
    ),
]


@pytest.mark.parametrize(("text", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_configuration_that_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert refused(tmp_path, text) == message


def test_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_configuration(tmp_path / "parity.toml")
    assert str(caught.value) == "parity.toml: expected a file; found none. Write it: the README shows one."


def test_a_configuration_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "parity.toml").write_bytes(b'device = "\xff"')
    with pytest.raises(
        ConfigurationError, match="parity.toml: expected readable UTF-8; found 'utf-8' codec can't decode"
    ):
        load_configuration(tmp_path / "parity.toml")


def test_a_configuration_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "parity.toml").mkdir()
    with pytest.raises(
        ConfigurationError, match="parity.toml: expected readable UTF-8; found .*[Dd]irectory"
    ):
        load_configuration(tmp_path / "parity.toml")


# --- claims/*.toml -----------------------------------------------------------------------------------------

ROW = "Correct the row; docs/claims.md has every field."

BAD_CLAIMS: list[tuple[str, str, str]] = [
    (
        "syntax",
        CLAIM + "pairs = \n",
        "claims/a.toml:8:9: expected TOML; found Invalid value. Correct the syntax.",
    ),
    (
        "a table of another name",
        CLAIM + "\n[claim.other]\nx = 1\n",
        "claims/a.toml:9: table 'claim': expected [claims.NAME] tables only; found 'claim'. Correct the table's name.",
    ),
    (
        "a key beside the claims",
        "depths = [16]\n" + CLAIM,
        "claims/a.toml:1: table 'depths': expected [claims.NAME] tables only; found 'depths'. Correct the table's name.",
    ),
    (
        "claims that are no table",
        "\nclaims = 3\n",
        "claims/a.toml:2: 'claims': expected [claims.NAME] tables; found 3. Write one table for each claim.",
    ),
    (
        "a claim that is no table",
        '[claims]\n\ndecode = "fast"\n',
        "claims/a.toml:3: claim 'decode': expected a table of fields; found 'fast'. Write [claims.decode].",
    ),
    (
        "a value that is refused",
        CLAIM + "output_tokens = 0\n",
        "claims/a.toml:8: claim 'decode', field 'output_tokens': expected greater than or equal to 1; found 0. "
        + ROW,
    ),
    (
        "a depth that is refused",
        CLAIM.replace("[2048]", "[0]"),
        "claims/a.toml:6: claim 'decode', field 'depths.0.depth': expected greater than or equal to 1; found 0. "
        + ROW,
    ),
    (
        "a field that is missing",
        "\n\n" + CLAIM.replace('kind = "exact"\n', ""),
        f"claims/a.toml:3: claim 'decode', field 'kind': expected a value; found nothing. {ROW}",
    ),
    (
        "a row that contradicts itself",
        CLAIM + "margin = 0.01\n",
        (
            "claims/a.toml:1: claim 'decode', the row: expected no 'margin' in a claim of kind 'exact'; found the row as "
            f"written. {ROW}"
        ),
    ),
    (
        "an unknown engine",
        CLAIM.replace('"ours"', '"our"'),
        (
            "claims/a.toml:3: claim 'decode', candidate 'our': expected an engine of parity.toml: ours, theirs; found 'our'. "
            "Describe it under [engines.our], or correct the name."
        ),
    ),
    (
        "an unknown reference",
        CLAIM.replace('"theirs"', '"llama"'),
        (
            "claims/a.toml:4: claim 'decode', reference 'llama': expected an engine of parity.toml: ours, theirs; "
            "found 'llama'. Describe it under [engines.llama], or correct the name."
        ),
    ),
    (
        "an unknown lane",
        CLAIM + 'lane = "quick"\n',
        (
            "claims/a.toml:8: claim 'decode', lane 'quick' of ours: expected one of its lanes: plain, fast; found 'quick'. "
            "Describe it under [engines.ours.lanes.quick], or correct the name."
        ),
    ),
    (
        "a lane that the reference lacks",
        CLAIM + 'lane = "fast"\n',
        (
            "claims/a.toml:8: claim 'decode', lane 'fast' of theirs: expected one of its lanes: plain; found 'fast'. "
            "Describe it under [engines.theirs.lanes.fast], or correct the name."
        ),
    ),
    (
        "an unknown lane of the reference",
        CLAIM + 'lane = "fast"\nreference_lane = "slow"\n',
        (
            "claims/a.toml:9: claim 'decode', lane 'slow' of theirs: expected one of its lanes: plain; found 'slow'. "
            "Describe it under [engines.theirs.lanes.slow], or correct the name."
        ),
    ),
]


@pytest.mark.parametrize(
    ("text", "message"), [case[1:] for case in BAD_CLAIMS], ids=[case[0] for case in BAD_CLAIMS]
)
def test_a_register_that_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert unregistered(tmp_path, text) == message


def test_one_name_in_two_files(tmp_path: Path) -> None:
    assert unregistered(tmp_path, CLAIM, "\n" + CLAIM) == (
        "claims/b.toml:2: claim 'decode': expected a name used once in the whole register; "
        "found the same name in claims/a.toml. Rename one of the two."
    )


def test_one_name_twice_in_a_file(tmp_path: Path) -> None:
    assert unregistered(tmp_path, CLAIM + CLAIM).startswith(
        "claims/a.toml:8:15: expected TOML; found Cannot declare"
    )


def test_an_engine_where_there_are_none(tmp_path: Path) -> None:
    assert "expected an engine of parity.toml: none there; found 'ours'." in unregistered(
        tmp_path, CLAIM, engines=""
    )


@pytest.mark.parametrize("made", [False, True])
def test_nothing_no_register(tmp_path: Path, made: bool) -> None:
    if made:
        (tmp_path / "claims").mkdir()
        (tmp_path / "claims" / "notes.md").write_text("no claims here")
    with pytest.raises(ConfigurationError) as caught:
        load_register(load(tmp_path))
    assert str(caught.value) == (
        "register claims/: expected at least one *.toml with claims; found none. Write a claim: see docs/claims.md."
    )


@pytest.mark.parametrize("files", [("",), ("# later\n", "[claims]\n")])
def test_nothing_a_register_of_empty_files(tmp_path: Path, files: tuple[str, ...]) -> None:
    assert unregistered(tmp_path, *files) == (
        "register claims/: expected at least one *.toml with claims; found none. Write a claim: see docs/claims.md."
    )
