"""The pack format: rows, manifest, archive, reader, writer, signatures and wheels. Standard library only.

``shipped/`` holds the packs of this package. ``docs/packs.md`` describes the format.
"""
