"""Calls over several devices: how a mesh cuts an op's arrays, and the run of one shard."""
