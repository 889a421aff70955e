"""The width of the page table that the kernel gets."""


def table_width(pages: int, page_size: int, window: int | None) -> int:
    """The most whole pages that a sequence has, at least one, where its row of the table has ``pages``."""
    # Queries of one sequence see at least so many tokens less than a window and the query's own.
    return max(1, pages if window is None else min(pages, (window + 1) // page_size))
