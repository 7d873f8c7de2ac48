"""Golden models of the paged memory of token vectors."""
