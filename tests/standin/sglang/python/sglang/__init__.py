"""Stands in for SGLang in labbook's tests: the same processes, arguments, addresses and log lines, and no model."""
__version__ = "0.5.23"
