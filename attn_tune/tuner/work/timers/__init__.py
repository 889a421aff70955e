"""Timers: CUPTI, XPlane and the host clock, behind one interface."""
