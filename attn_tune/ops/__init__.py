"""Ops, that is what is computed: the contract, the registry, the rule of proof, and one folder an op.

No kernel is imported here.
"""
