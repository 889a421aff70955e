"""Devices and their software: identity, marketing names, published figures, drivers, environments.

Standard library only; jax inside functions, when the device of a call is asked for.
"""
