"""Decides over many replicas: who prefills, who decodes, what KV is moved, what is refused. Pure, like a scheduler."""
