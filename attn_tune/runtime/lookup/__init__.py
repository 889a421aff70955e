"""The lookup of one problem: ``dispatch`` is the way in, ``ladder`` finds the stored row that answers."""
