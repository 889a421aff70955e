"""The op ``flash_attention``: its contract, reference, inputs and features. No kernel is imported here."""
