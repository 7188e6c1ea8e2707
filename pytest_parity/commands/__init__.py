"""What the ``parity`` command does, one module a subject."""
