"""Print metadata with which Datasette describes a lab database: columns, facets, and the five questions as queries.

Example: attn-tune lab metadata --db lab.db > metadata.json
"""

from attn_tune.commands.shared import options, output


def command(db: options.Database) -> None:
    from attn_tune.db.datasette import datasette_metadata

    # Datasette calls a database by the name of its file.
    output.emit_json(**datasette_metadata(db.stem))
