"""Proposes tokens for verification, and decides how many pay. Token ids and step times only: no tensors, no clock."""
