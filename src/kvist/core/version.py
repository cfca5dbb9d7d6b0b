"""The version of kvist, and nothing else: packaging reads it from here."""

__version__ = "0.1.0"
