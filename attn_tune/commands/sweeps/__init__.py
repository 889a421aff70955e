"""Sweeps on this host, on a cluster and for devices that need not be here."""
