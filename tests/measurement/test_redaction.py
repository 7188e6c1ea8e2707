"""No secret and no path of this machine gets into evidence, whatever way a pair ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from workshop import EMBEDDED, Workshop, bodies, body_of, claim, engine, foreign_engine, pair

import pytest_parity
from pytest_parity.measurement.redact import Redactor

SECRET = "hunter2-of-the-environment"
ARGV_SECRET = "sk-hunter3-of-the-command-line"
NAMES = (
    "OPENAI_API_KEY",
    "HF_TOKEN",
    "MY_SECRET",
    "DB_PASSWORD",
    "PASSWD",
    "AWS_CREDENTIALS",
    "X_AUTH",
    "api_key",
)
PACKAGE = Path(pytest_parity.__file__).parent

SHOUTS = (
    "import os, sys; sys.path[0] or None; print({secret!r}); print(os.environ.get('HOME')); "
    "print(sys.executable); print(os.getcwd()); print('at ' + {root!r} + '/file'); print(sys.prefix); "
    "print({package!r}, flush=True); raise SystemExit(1)"
)


@pytest.fixture(autouse=True)
def _planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(NAMES):
        monkeypatch.setenv(name, f"{SECRET}-{number}")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)


def evidence_files(shop: Workshop) -> Iterator[Path]:
    """Everything that could be published: receipts, intents, the log, prompts."""
    for folder in (shop.receipts, shop.root / ".parity" / "prompts"):
        yield from (path for path in folder.rglob("*") if path.is_file())


def leaks(shop: Workshop) -> list[str]:
    """What stands in the evidence and must not."""
    home = os.path.expanduser("~")
    places = {
        "secret": SECRET,
        "argv secret": ARGV_SECRET,
        "root": str(shop.root),
        "home": home,
        "python": sys.executable,
        "its target": os.path.realpath(sys.executable),
        "venv": sys.prefix,
        "package": str(PACKAGE),
        "working folder": os.getcwd(),
    }
    found, read = [], 0
    for path in evidence_files(shop):
        text = path.read_text(encoding="utf-8")
        read += len(text)
        found += [
            f"{what} in {path.name}" for what, needle in places.items() if len(needle) > 1 and needle in text
        ]
    assert read > 2000, "nothing was looked at"
    return found


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The receipt of a real pair with secrets wherever one can stand."""
    root = tmp_path_factory.mktemp("secrets")
    (root / "model.gguf").write_bytes(b"weights")
    lane = {"keyed": {"argv": ("--alias", f"{SECRET}-1", "--kernels", "fused")}}
    shop = Workshop(
        root, engines={"e": engine(lanes=lane)}, claim=claim(lane="keyed", fixtures=["natural-prose"])
    )
    with pytest.MonkeyPatch.context() as patch:
        for number, name in enumerate(NAMES):
            patch.setenv(name, f"{SECRET}-{number}")
        patch.setenv("PATH", f"{os.getcwd()}/bin:{root}/bin:{os.environ['PATH']}")
        replay = f"pytest {root}/test_x.py --receipts {os.path.expanduser('~')}/here"
        receipt = shop.conductor().measure(pair(shop.claim), replay).exact().record()
    assert leaks(shop) == []
    return body_of(receipt.path)


class TestAPassedPair:
    def test_holds_no_secret_and_no_place(self, body: dict[str, Any]) -> None:
        side = body["sides"]["candidate"]
        assert "--alias" in side["argv"] and "[redacted]" in side["argv"]
        assert side["identity"]["facts"]["model_alias"] == "[redacted]"
        assert side["configuration"]["argv"][-3] == "[redacted]"

    def test_says_where_things_lay_in_words(self, body: dict[str, Any]) -> None:
        assert body["sides"]["candidate"]["argv"][0] == "{python}"
        assert body["replay"] == "pytest {root}/test_x.py --receipts {home}/here"
        assert "{root}/bin:" in body["sides"]["reference"]["environment"]["kept"]["PATH"]

    def test_names_dropped_variables_and_never_their_values(self, body: dict[str, Any]) -> None:
        dropped = body["sides"]["candidate"]["environment"]["dropped"]
        assert set(NAMES) <= set(dropped)
        assert not set(NAMES) & set(body["sides"]["candidate"]["environment"]["kept"])

    def test_leaves_the_words_alone(self, body: dict[str, Any]) -> None:
        for side in body["sides"].values():
            assert side["words"]["output_ids"] and "[redacted]" not in side["words"]["text"]


class TestABrokenPair:
    def shop(self, root: Path, **fields: Any) -> Workshop:
        """A claim whose candidate is another engine."""
        return Workshop(
            root,
            engines={"e": engine(), "x": engine("x", **fields)},
            claim=claim(candidate="x", lane="plain"),
        )

    def test_the_last_lines_of_a_log(self, tmp_path: Path) -> None:
        script = SHOUTS.format(secret=f"{SECRET}-3", root=str(tmp_path), package=str(PACKAGE / "x.py"))
        shop = self.shop(tmp_path, argv=("{python}", "-c", script, "{port}"))
        _, body = shop.unfinished(2)
        tail = body["sides"]["candidate"]["log_tail"]
        assert (tail[0], tail[1], tail[2], tail[4], tail[5], tail[6]) == (
            "[redacted]", "{home}", "{python}", "at {root}/file", "{venv}", "{package}/x.py",
        )  # fmt: skip
        assert leaks(shop) == []

    @pytest.mark.parametrize(
        "words",
        [
            ("--api-key", ARGV_SECRET),
            (f"--api-key={ARGV_SECRET}",),
            ("--hf-token", ARGV_SECRET),
            ("-password", ARGV_SECRET),
            ("--url", f"https://me:{ARGV_SECRET}@host/v1"),
        ],
    )
    def test_a_key_on_the_command_line(self, tmp_path: Path, words: tuple[str, ...]) -> None:
        shop = self.shop(
            tmp_path,
            argv=("{python}", "-c", "import sys; raise SystemExit(' '.join(sys.argv))", "{port}", *words),
        )
        _, body = shop.unfinished(2)
        side = body["sides"]["candidate"]
        assert words[0].partition("=")[0] in str(side["argv"])
        assert "[redacted]" in str(side["argv"]) and "[redacted]" in side["log_tail"][0]
        assert leaks(shop) == []

    @pytest.mark.parametrize(
        "environment", [{"API_KEY": ARGV_SECRET}, {"PROXY": f"http://me:{ARGV_SECRET}@host"}]
    )
    def test_a_secret_that_is_declared_is_refused_and_not_published_in_the_refusal(
        self, tmp_path: Path, environment: dict[str, str]
    ) -> None:
        shop = self.shop(tmp_path, environment=environment)
        error, body = shop.unfinished(2)
        (name,) = environment
        assert str(error) == (
            f"broken: candidate in phase start: environment variable {name} of an engine: expected settings that may "
            "stand in a receipt; found a name or a value that looks like a secret. "
            "Let the engine read the secret from a file outside of the repository."
        )
        assert body["reason"]["code"] == "configuration-in-start"
        assert leaks(shop) == []

    def test_a_binary_and_a_model_outside_of_the_project(self, tmp_path: Path) -> None:
        root = tmp_path / "project"
        root.mkdir()
        outside = tmp_path / "elsewhere"
        outside.mkdir()
        (outside / "prog").write_text("#!/bin/sh\necho $2; echo $0; exit 4\n")
        (outside / "prog").chmod(0o755)
        (outside / "m.gguf").write_bytes(b"weights")
        shop = self.shop(
            root,
            binary=str(outside / "prog"),
            model=str(outside / "m.gguf"),
            argv=("{binary}", "{port}", "{model}"),
        )
        _, body = shop.unfinished(2)
        side = body["sides"]["candidate"]
        assert (side["argv"][0], side["argv"][2]) == ("{binary of x}", "{model of x}")
        assert side["log_tail"] == ["{model of x}", "{binary of x}"]
        assert side["configuration"]["binary"] == "{binary of x}"
        assert str(outside) not in "".join(path.read_text() for path in evidence_files(shop))

    def test_a_side_that_was_never_started(self, tmp_path: Path) -> None:
        shop = self.shop(tmp_path, argv=(*EMBEDDED, "--api-key", ARGV_SECRET, "--model", f"{tmp_path}/m"))
        with foreign_engine():
            _, body = shop.unfinished()
        assert body["outcome"] == "refused"
        assert body["sides"]["candidate"]["configuration"]["argv"][-4:] == [
            "--api-key",
            "[redacted]",
            "--model",
            "{root}/m",
        ]
        assert leaks(shop) == []

    def test_what_somebody_else_runs(self, tmp_path: Path) -> None:
        shop = Workshop(tmp_path)
        with foreign_engine():
            _, body = shop.unfinished()
        assert body["scans"][0]["processes"][0]["argv_head"][0] == "{python}"
        assert "({python} -m pytest_parity.engines.embedded --port)" in body["reason"]["sentence"]
        assert leaks(shop) == []

    def test_what_was_interrupted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shop = Workshop(tmp_path)

        def stop(phase: str, done: int, total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            shop.conductor().measure(pair(shop.claim), f"pytest {tmp_path}", progress=stop)
        (body,) = bodies(shop.receipts).values()
        assert body["reason"] == {"code": "interrupted", "sentence": "ended by KeyboardInterrupt"}
        assert leaks(shop) == []


class TestTheRedactor:
    def test_takes_the_longest_match_first(self) -> None:
        redactor = Redactor({"{root}": "/a/b", "{model}": "/a/b/m.gguf"}, [{}])
        assert redactor.text("/a/b/m.gguf /a/b/x") == "{model} {root}/x"

    def test_takes_values_of_secret_names_from_every_environment(self) -> None:
        redactor = Redactor({}, [{"A_TOKEN": "first-one"}, {"B_KEY": "second-one", "C": "third-one"}])
        assert redactor.text("first-one second-one third-one") == "[redacted] [redacted] third-one"

    def test_leaves_values_alone_that_are_too_short_to_be_secrets(self) -> None:
        assert Redactor({}, [{"A_TOKEN": "token"}]).text("a token") == "a token"
        assert Redactor({}, [{"A_TOKEN": "tokens"}]).text("a tokens") == "a [redacted]"

    def test_goes_through_every_value_and_leaves_numbers(self) -> None:
        redactor = Redactor({"{root}": "/a/b"}, [{}])
        value = {"x": ["/a/b", {"y": ("/a/b/c", 1, None, True, 1.5)}]}
        assert redactor.value(value) == {"x": ["{root}", {"y": ["{root}/c", 1, None, True, 1.5]}]}

    def test_leaves_places_out_that_are_not_there(self) -> None:
        assert Redactor({"{binary}": None}, [{}]).text("None") == "None"

    @pytest.mark.parametrize(
        ("argv", "hidden"),
        [
            (("--api-key", "abcdefgh"), ["abcdefgh"]),
            (("--api-key=abcdefgh",), ["abcdefgh"]),
            (("--API_KEY", "abcdefgh"), ["abcdefgh"]),
            (("--token", "--abcdefgh"), ["--abcdefgh"]),
            (("--tokens", "abcdefgh"), []),
            (("--max-tokens", "123456"), []),
            (("--keep", "abcdefgh"), []),
            (("--n-keys-extra", "abcdefgh"), []),
            (("abcdefgh", "--api-key"), []),
        ],
    )
    def test_tells_secret_options_from_others(self, argv: tuple[str, ...], hidden: list[str]) -> None:
        text = " ".join(argv)
        shown = Redactor({}, [{}], [argv]).text(text)
        assert shown == (text.replace(hidden[0], "[redacted]") if hidden else text)
