"""Sweeps for absent devices: compile, refuse with numbers, predict. Nothing is measured.

Experimental: the schedules are read from text that libtpu writes for debugging.
"""
