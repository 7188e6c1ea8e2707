"""Shared by the tests and the claims of this repository."""

pytest_plugins = ["pytester"]
