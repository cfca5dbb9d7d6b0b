"""Chooses how to serve a model: placements, policies and routers, judged by simulation under an objective."""
