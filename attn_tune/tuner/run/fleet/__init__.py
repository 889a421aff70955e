"""Use several devices at once: of this host under leases, or of a Ray cluster."""
