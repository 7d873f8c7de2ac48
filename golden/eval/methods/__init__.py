"""One file per family of methods; every Method of a file is found by its presence here."""
