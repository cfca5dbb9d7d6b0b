"""Builds object graphs from configuration: the only place that names concrete classes."""
