"""Prompt ids: where a text comes from, made once, kept by digest, never repeated, never trusted unchecked."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path

import pytest

from pytest_parity.core.prompts import ids_digest
from pytest_parity.errors import ConfigurationError, EvidenceError, NothingCompared
from pytest_parity.measurement.prompts import PromptStore, source_of

TEXTS = Path(__file__).parents[2] / "fixtures" / "text"
GOLDEN = {
    "prose.txt": "fb45a41a911a60162438c4a7fa8a0c653f0e7e9f172a8c5c2b99e6a0dee42c55",
    "code.txt": "d47972863139261b6b77e23df43aa9804bd35393f36508e951c54e476bcae312",
}
OWN = {"natural-prose": "prose.txt", "natural-code": "code.txt"}


class Tokeniser:
    """One id a byte; counts how often it was asked."""

    def __init__(self, shift: int = 0) -> None:
        self.shift = shift
        self.asked: list[str] = []

    def __call__(self, text: str) -> tuple[int, ...]:
        self.asked.append(text)
        return tuple(byte + self.shift for byte in text.encode())


@pytest.fixture
def store(tmp_path: Path) -> PromptStore:
    """An empty store."""
    return PromptStore(tmp_path / ".parity" / "prompts")


class TestOwnTexts:
    @pytest.mark.parametrize("name", GOLDEN)
    def test_are_the_ones_that_receipts_name(self, name: str) -> None:
        assert hashlib.sha256((TEXTS / name).read_bytes()).hexdigest() == GOLDEN[name]

    @pytest.mark.parametrize("name", GOLDEN)
    def test_reach_8192_tokens_of_a_vocabulary_like_smollm2s(self, name: str) -> None:
        assert len((TEXTS / name).read_bytes()) >= 44_000  # five bytes a token and a reserve
        assert (TEXTS / name).read_text(encoding="utf-8").strip()

    @pytest.mark.parametrize("fixture", OWN)
    def test_give_8192_tokens_without_any_other_text(
        self, store: PromptStore, tmp_path: Path, fixture: str
    ) -> None:
        tokenise = Tokeniser()
        prompt = store.fixture(fixture, 8192, "v", tmp_path, tokenise)
        assert prompt.depth == 8192
        assert prompt.ids == tuple((TEXTS / OWN[fixture]).read_bytes()[:8192])
        assert prompt.source == f"{OWN[fixture]} sha256:{GOLDEN[OWN[fixture]]}"
        assert tokenise.asked == [(TEXTS / OWN[fixture]).read_text(encoding="utf-8")]

    @pytest.mark.parametrize("fixture", OWN)
    def test_are_continued_beyond_by_the_running_python_and_say_which(
        self, store: PromptStore, tmp_path: Path, fixture: str
    ) -> None:
        own = (TEXTS / OWN[fixture]).read_text(encoding="utf-8")
        tokenise = Tokeniser()
        prompt = store.fixture(fixture, 131_008, "v", tmp_path, tokenise)
        (whole,) = tokenise.asked
        assert prompt.depth == 131_008
        assert whole.startswith(own + "\n")
        digest = hashlib.sha256(whole.encode()).hexdigest()
        assert prompt.source == f"{OWN[fixture]} and CPython {platform.python_version()} sha256:{digest}"
        assert prompt.ids[: len(own)] == tuple(own.encode()[: len(own)])

    def test_prose_goes_on_with_the_documentations_topics_in_order(self, tmp_path: Path) -> None:
        from pydoc_data.topics import topics

        source = source_of("natural-prose", 8193, tmp_path)
        assert source is not None and source.text is not None
        own = (TEXTS / "prose.txt").read_text(encoding="utf-8")
        assert source.text == own + "\n" + "\n\n".join(topics[name] for name in sorted(topics))

    def test_code_goes_on_with_the_standard_library(self, tmp_path: Path) -> None:
        source = source_of("natural-code", 8193, tmp_path)
        assert source is not None and source.text is not None
        own = (TEXTS / "code.txt").read_text(encoding="utf-8")
        assert source.text.removeprefix(own + "\n").startswith(
            Path(hashlib.__file__).with_name("__future__.py").read_text()
        )
        assert len(source.text) > 500_000

    def test_are_cut_to_the_very_depth(self, store: PromptStore, tmp_path: Path) -> None:
        for depth in (1, 2, 63, 64, 8191, 8192, 8193):
            prompt = store.fixture("natural-prose", depth, "v", tmp_path, Tokeniser())
            assert (prompt.depth, len(prompt.ids)) == (depth, depth)
            assert prompt.digest == ids_digest(prompt.ids)


class TestSynthetic:
    def test_needs_no_tokeniser_and_no_store(self, store: PromptStore, tmp_path: Path) -> None:
        tokenise = Tokeniser()
        prompt = store.fixture("synthetic", 20, "v", tmp_path, tokenise)
        assert prompt.ids == (71, *(80, 97, 114, 105, 116, 121, 46, 32) * 2, 80, 97, 114)
        assert (prompt.vocabulary, prompt.source) == ("fixed", "its specification")
        assert tokenise.asked == [] and not store.folder.exists()
        assert source_of("synthetic", 20, tmp_path) is None


class TestTheStore:
    def test_asks_the_tokeniser_once(self, store: PromptStore, tmp_path: Path) -> None:
        tokenise = Tokeniser()
        first = store.fixture("natural-prose", 100, "v", tmp_path, tokenise)
        again = PromptStore(store.folder).fixture("natural-prose", 200, "v", tmp_path, tokenise)
        assert len(tokenise.asked) == 1
        assert again.ids[:100] == first.ids
        assert (first.vocabulary, again.vocabulary) == ("v", "v")

    def test_keeps_ids_of_two_vocabularies_apart(self, store: PromptStore, tmp_path: Path) -> None:
        one = store.fixture("natural-prose", 100, "one", tmp_path, Tokeniser())
        other = store.fixture("natural-prose", 100, "other", tmp_path, Tokeniser(shift=1))
        assert tuple(i + 1 for i in one.ids) == other.ids
        assert len(list(store.folder.iterdir())) == 2
        assert store.fixture("natural-prose", 100, "one", tmp_path, Tokeniser(shift=9)).ids == one.ids

    def test_keeps_ids_of_two_texts_apart(self, store: PromptStore, tmp_path: Path) -> None:
        (tmp_path / "x.txt").write_text("first text")
        before = store.fixture("file:x.txt", 5, "v", tmp_path, Tokeniser())
        (tmp_path / "x.txt").write_text("second text")
        after = store.fixture("file:x.txt", 5, "v", tmp_path, Tokeniser())
        assert (bytes(before.ids), bytes(after.ids)) == (b"first", b"secon")
        assert before.source != after.source

    def test_file_says_what_it_holds(self, store: PromptStore, tmp_path: Path) -> None:
        (tmp_path / "x.txt").write_text("abc")
        store.fixture("file:x.txt", 3, "v", tmp_path, Tokeniser())
        (file,) = store.folder.iterdir()
        digest = hashlib.sha256(b"abc").hexdigest()
        assert json.loads(file.read_bytes()) == {
            "source": f"x.txt sha256:{digest}",
            "vocabulary": "v",
            "digest": ids_digest((97, 98, 99)),
            "ids": [97, 98, 99],
        }
        assert file.name == hashlib.sha256(f"{digest}\nv".encode()).hexdigest() + ".json"

    @pytest.mark.parametrize(
        "damage",
        [
            lambda body: {**body, "ids": [97, 98, 100]},
            lambda body: {**body, "ids": [97, 98]},
            lambda body: {**body, "ids": [97.0, 98, 99]},
            lambda body: {**body, "ids": ["97", 98, 99], "digest": ids_digest((97, 98, 99))},
            lambda body: {**body, "ids": [-97], "digest": "sha256:" + hashlib.sha256(b"-97").hexdigest()},
            lambda body: {**body, "digest": "sha256:" + "0" * 64},
            lambda body: {**body, "ids": None},
            lambda body: {"ids": body["ids"]},
            lambda body: body["ids"],
        ],
    )
    def test_refuses_a_file_that_was_edited(self, store: PromptStore, tmp_path: Path, damage: object) -> None:
        (tmp_path / "x.txt").write_text("abc")
        store.fixture("file:x.txt", 3, "v", tmp_path, Tokeniser())
        (file,) = store.folder.iterdir()
        assert callable(damage)
        file.write_text(json.dumps(damage(json.loads(file.read_bytes()))))
        tokenise = Tokeniser()
        with pytest.raises(EvidenceError) as caught:
            store.fixture("file:x.txt", 3, "v", tmp_path, tokenise)
        assert str(caught.value) == (
            f"stored prompt {file.name}: expected ids that match their digest; found others, or a file that cannot be "
            "read. Remove the file; it is made again."
        )
        assert tokenise.asked == []
        file.unlink()
        assert store.fixture("file:x.txt", 3, "v", tmp_path, tokenise).ids == (97, 98, 99)

    @pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"null"])
    def test_refuses_a_file_that_is_no_json(self, store: PromptStore, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x.txt").write_text("abc")
        store.fixture("file:x.txt", 3, "v", tmp_path, Tokeniser())
        (file,) = store.folder.iterdir()
        file.write_bytes(content)
        with pytest.raises(EvidenceError, match="found others, or a file that cannot be read"):
            store.fixture("file:x.txt", 3, "v", tmp_path, Tokeniser())

    def test_leaves_nothing_half_written(self, store: PromptStore, tmp_path: Path) -> None:
        def fail(text: str) -> tuple[int, ...]:
            raise RuntimeError("the engine died")

        with pytest.raises(RuntimeError):
            store.fixture("natural-prose", 3, "v", tmp_path, fail)
        assert not store.folder.exists()


class TestUserFiles:
    def test_text_is_tokenised_and_ids_are_taken_as_they_are(
        self, store: PromptStore, tmp_path: Path
    ) -> None:
        (tmp_path / "p").mkdir()
        (tmp_path / "p" / "x.txt").write_text("häuser")
        (tmp_path / "p" / "x.json").write_text("[0, 5, 70000, 5]")
        tokenise = Tokeniser()
        text = store.fixture("file:p/x.txt", 7, "v", tmp_path, tokenise)
        assert bytes(text.ids).decode() == "häuser"
        ids = store.fixture("file:p/x.json", 3, "v", tmp_path, tokenise)
        assert (ids.ids, ids.vocabulary) == ((0, 5, 70000), "fixed")
        assert tokenise.asked == ["häuser"]
        digest = hashlib.sha256(b"[0, 5, 70000, 5]").hexdigest()
        assert ids.source == f"x.json sha256:{digest}"
        assert text.blind_spot == "A file of the user's: what it cannot see is for its author to say."

    @pytest.mark.parametrize("name", ["x.txt", "x.json"])
    def test_shorter_than_the_depth_is_an_error_and_never_repeated(
        self, store: PromptStore, tmp_path: Path, name: str
    ) -> None:
        (tmp_path / name).write_text("[97, 98, 99]" if name == "x.json" else "abc")
        with pytest.raises(ConfigurationError) as caught:
            store.fixture(f"file:{name}", 4, "v", tmp_path, Tokeniser())
        assert str(caught.value) == (
            f"prompt file:{name} at depth 4: expected a source of at least 4 tokens; found 3 tokens. "
            "Use a longer text or a smaller depth; a text is never repeated to fill a depth."
        )

    def test_an_empty_text_fills_no_depth(self, store: PromptStore, tmp_path: Path) -> None:
        (tmp_path / "x.txt").write_text("")
        with pytest.raises(
            ConfigurationError, match="expected a source of at least 1 tokens; found 0 tokens"
        ):
            store.fixture("file:x.txt", 1, "v", tmp_path, Tokeniser())

    @pytest.mark.parametrize("depth", [0, -1])
    def test_no_depth_is_no_prompt(self, store: PromptStore, tmp_path: Path, depth: int) -> None:
        (tmp_path / "x.json").write_text("[1]")
        for fixture in ("file:x.json", "synthetic"):
            with pytest.raises(NothingCompared, match=f"expected a depth of at least 1; found {depth}"):
                store.fixture(fixture, depth, "v", tmp_path, Tokeniser())

    def test_a_missing_file(self, store: PromptStore, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError) as caught:
            store.fixture("file:p/none.txt", 1, "v", tmp_path, Tokeniser())
        assert str(caught.value) == (
            "prompt file none.txt: expected a readable file; found No such file or directory. Correct the path."
        )

    def test_a_folder(self, store: PromptStore, tmp_path: Path) -> None:
        (tmp_path / "x.json").mkdir()
        with pytest.raises(ConfigurationError, match="expected a readable file; found Is a directory"):
            store.fixture("file:x.json", 1, "v", tmp_path, Tokeniser())

    def test_text_that_is_no_utf8(self, store: PromptStore, tmp_path: Path) -> None:
        (tmp_path / "x.txt").write_bytes(b"ab\xff")
        with pytest.raises(ConfigurationError) as caught:
            store.fixture("file:x.txt", 1, "v", tmp_path, Tokeniser())
        assert str(caught.value) == (
            "prompt file x.txt: expected UTF-8 text; found 'utf-8' codec can't decode byte 0xff in position 2: "
            "invalid start byte. Correct the file."
        )

    def test_ids_that_are_no_json(self, store: PromptStore, tmp_path: Path) -> None:
        (tmp_path / "x.json").write_text("[1,")
        with pytest.raises(ConfigurationError) as caught:
            store.fixture("file:x.json", 1, "v", tmp_path, Tokeniser())
        assert str(caught.value) == (
            "prompt file x.json: expected JSON; found Expecting value: line 1 column 4 (char 3). Correct the file."
        )

    @pytest.mark.parametrize(
        ("content", "found"),
        [
            ("{}", "{}"),
            ('"abc"', "'abc'"),
            ("7", "7"),
            ("null", "None"),
            ("[]", "[]"),
            ("[true, false]", "[True, False]"),
            ("[1, -1]", "[1, -1]"),
            ("[1.0]", "[1.0]"),
            ('["1"]', "['1']"),
            ("[[1]]", "[[1]]"),
            ("[1, null]", "[1, None]"),
            ("[" + ", ".join(["-1"] * 50) + "]", "[" + "-1, " * 14 + "-1,"),
        ],
    )
    def test_ids_that_are_none(self, store: PromptStore, tmp_path: Path, content: str, found: str) -> None:
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(ConfigurationError) as caught:
            store.fixture("file:x.json", 1, "v", tmp_path, Tokeniser())
        assert str(caught.value) == (
            f"prompt file x.json: expected a list of token ids, whole numbers from 0; found {found}. Correct the file."
        )
        assert not store.folder.exists()
