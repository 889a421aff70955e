"""Ask a lab database with SQL: winners, and where the time of a sweep went.

python examples/ask_database.py LAB.DB
"""

import sqlite3
import sys

if len(sys.argv) != 2:
    sys.exit(__doc__)
connection = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
connection.row_factory = sqlite3.Row


def show(title: str, query: str) -> None:
    print(title)
    for row in connection.execute(query):
        print("  ", dict(row))


show("trials by status", "SELECT status, count(*) AS trials FROM trial GROUP BY status")
show("winners", "SELECT * FROM winners LIMIT 3")
