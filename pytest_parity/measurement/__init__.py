"""Conducts one pair from lease to receipt.

The only room that knows engines, apparatus and evidence together. It knows no pytest: a script can drive it.
"""
