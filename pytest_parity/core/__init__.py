"""The rules of pytest-parity: values in, values out.

Nothing in here imports pytest, reads or writes a file, looks at a clock or at the environment.
"""
