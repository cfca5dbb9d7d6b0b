"""Decides what each step computes: queues, admission, policies, preemption. Knows no tensors and no clock."""
