"""Builds engines from configuration. The only package that names concrete classes."""
